"""Every test starts from the same state: seeds, Keras's names, figures without a screen."""

import gc
import os

os.environ["MPLBACKEND"] = "Agg"  # before matplotlib is imported, here and in new processes
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up lines
# Three suites share the cores, and torch's threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiling takes most of JAX's time here, and some of TensorFlow's. An empty XLA_FLAGS tests what
# XLA optimizes, as users run it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import keras
import pytest

import zoo


def pytest_collection_modifyitems(config, items):
    """Leave tests that are marked `without_backend` to one suite.

    It is torch's but for a few files, so that all suites take about as long.
    """
    suites = dict.fromkeys(["test_structure.py", "test_experiment.py"], "jax")
    suites["test_applications.py"] = "tensorflow"
    kept, left = [], []
    for item in items:
        suite = suites.get(item.path.name, "torch")
        is_here = suite == keras.backend.backend() or not item.get_closest_marker("without_backend")
        (kept if is_here else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def pytest_collection_finish():
    """Collect garbage rarely, and without looking at what has been imported."""
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True)
def same_start():
    """Keras counts names from one again and every unseeded draw repeats from run to run."""
    keras.utils.clear_session(free_memory=False)
    zoo.seed_everything(0)


@pytest.fixture
def backend():
    """The name of the Keras backend that these tests run on."""
    return keras.backend.backend()
