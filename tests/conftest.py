"""Every test starts from the same state: seeds, Keras's names, figures without a screen."""

import importlib.util
import os
import sys

os.environ["MPLBACKEND"] = "Agg"  # before matplotlib is imported, here and in new processes
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up lines
# torch's threads wait for each other: two of them, beside another suite, take six times as long
os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import pytest
from absl import flags

import zoo
from helpers.harness import ROOT


@pytest.fixture(autouse=True)
def same_start():
    """Keras counts names from one again and every unseeded draw repeats from run to run."""
    keras.utils.clear_session(free_memory=False)
    zoo.seed_everything(0)


@pytest.fixture
def backend():
    """The name of the Keras backend that these tests run on."""
    return keras.backend.backend()


@pytest.fixture(scope="session")
def recipe():
    """recipes/ptb_char_lm.py as a module, its flags at their defaults."""
    if "ptb_char_lm" not in sys.modules:
        sys.path.append(str(ROOT / "recipes"))  # it imports what stands beside it
        path = ROOT / "recipes" / "ptb_char_lm.py"
        spec = importlib.util.spec_from_file_location("ptb_char_lm", path)
        module = sys.modules["ptb_char_lm"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["ptb_char_lm.py"])
    return sys.modules["ptb_char_lm"]
