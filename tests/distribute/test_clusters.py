"""The processes of a training are found where TF_CONFIG, SLURM, Kubernetes and Keras name them."""

import json
import os
import sys
import types

import keras
import pytest

from zoo import distribute
from zoo.distribute import clusters

BACKEND = keras.backend.backend()
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="its cluster resolvers")
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="jax.distributed")
TWO_WORKERS = {"worker": ["a:1", "b:2"]}
CONFIG = {"TF_CONFIG": json.dumps({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 1}})}
KERAS = {
    "KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1,b:2",
    "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
    "KERAS_DISTRIBUTION_PROCESS_ID": "1",
}
SLURM = {  # as srun sets them, for the last of three tasks
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NODELIST": "node[09-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
PODS = {"ZOO_CLUSTER": "kubernetes", "JOB_COMPLETION_INDEX": "10", "HOSTNAME": "train-10"}
NAMES = ("TF_CONFIG", "TPU_", "KERAS_DISTRIBUTION_", "SLURM_", "ZOO_CLUSTER", "JOB_COMPLETION")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Remove what the scheduler of this machine may have set, and return a setter of variables."""
    for name in [*os.environ]:
        if name.startswith(NAMES):
            monkeypatch.delenv(name)
    return lambda variables: [monkeypatch.setenv(*item) for item in variables.items()]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (CONFIG, "TF_CONFIG"),
        ({**CONFIG, **SLURM}, "TF_CONFIG"),  # which a user writes on purpose
        (KERAS, "KERAS_DISTRIBUTION"),
        (SLURM, "SLURM"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, None),
        (PODS, "Kubernetes"),
        ({"JOB_COMPLETION_INDEX": "1"}, None),  # pods may be independent
        ({"TPU_NAME": "local"}, "TPU"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
    ],
)
def test_the_environment_says_who_started_this_process(environment, variables, expected):
    environment(variables)
    assert clusters.find() == expected


@pytest.mark.parametrize("text", ["{", "[1]", '{"cluster": {"worker": ["a:1"]}}'])
def test_an_unusable_description_is_shown(environment, text):
    environment({"TF_CONFIG": text})
    with pytest.raises(ValueError, match="Expected TF_CONFIG as TensorFlow does"):
        clusters.find()


def test_the_number_of_processes_must_be_one(environment):
    environment({"SLURM_STEP_NUM_TASKS": "two"})
    with pytest.raises(ValueError, match="SLURM_STEP_NUM_TASKS. Received: 'two'"):
        clusters.find()


def test_the_chief_of_a_cluster_is_its_first_process(environment):
    cluster = {"chief": ["c:1"], **TWO_WORKERS}
    for kind, index, expected in (("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)):
        task = {"cluster": cluster, "task": {"type": kind, "index": index}}
        environment({"TF_CONFIG": json.dumps(task)})
        assert clusters.tf_config() == (["c:1", "a:1", "b:2"], expected)


@on_tensorflow
def test_the_tasks_of_slurm_are_workers(environment):
    environment({**SLURM, "CUDA_VISIBLE_DEVICES": "3"})  # one of four, which SLURM gave this task
    resolver = clusters.resolver()
    expected = {"worker": ["node09:8888", "node09:8889", "node10:8888"]}
    assert resolver.cluster_spec().as_dict() == expected
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)
    assert resolver.num_accelerators() == {"GPU": 0}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


@on_tensorflow
def test_missing_variables_of_slurm_are_named(environment):
    environment({**SLURM, "SLURM_STEP_NODELIST": "]"})
    with pytest.raises(ValueError, match="Invalid hostlist"):
        distribute.strategy("auto")
    environment({"SLURM_STEP_NUM_TASKS": "3"})
    os.environ.pop("SLURM_PROCID")
    with pytest.raises(ValueError, match=r'cluster of SLURM.*SLURM_PROCID.*strategy "one"'):
        distribute.strategy("auto")


def kubernetes(running):
    """Return a stand-in for the package, whose job of 11 pods has so many running at each look."""

    def pods(namespace, label_selector):
        assert (namespace, label_selector) == ("lab", "job-name=train")
        number = next(running)
        return types.SimpleNamespace(items=[pod(i, i < number) for i in reversed(range(11))])

    def pod(index, runs):
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        return types.SimpleNamespace(
            metadata=types.SimpleNamespace(name=f"train-{index}-x", annotations=annotations),
            status=types.SimpleNamespace(
                phase="Running" if runs else "Pending", host_ip="node", pod_ip=f"10.0.0.{index}"
            ),
        )

    job = types.SimpleNamespace(spec=types.SimpleNamespace(completions=11))
    module = types.ModuleType("kubernetes")
    module.config = types.SimpleNamespace(load_incluster_config=lambda: None)
    module.client = types.SimpleNamespace(
        CoreV1Api=lambda: types.SimpleNamespace(list_namespaced_pod=pods),
        BatchV1Api=lambda: types.SimpleNamespace(read_namespaced_job=lambda name, namespace: job),
    )
    return module


@on_tensorflow
def test_the_pods_of_an_indexed_job_are_workers(environment, monkeypatch, tmp_path):
    environment(PODS)
    (tmp_path / "namespace").write_text("lab\n")
    monkeypatch.setattr(clusters._Pods, "NAMESPACE", str(tmp_path / "namespace"))
    monkeypatch.setattr(clusters, "POLL", 0.0)
    monkeypatch.setitem(sys.modules, "kubernetes", kubernetes(iter([3, 10, 11])))
    resolver = clusters.resolver()
    expected = [f"10.0.0.{index}:8470" for index in range(11)]
    assert resolver.cluster_spec().as_dict() == {"worker": expected}
    assert (resolver.task_type, resolver.task_id) == ("worker", 10)
    monkeypatch.setattr(clusters, "PODS_START", 0.0)
    monkeypatch.setitem(sys.modules, "kubernetes", kubernetes(iter([3, 3, 3])))
    with pytest.raises(ValueError, match="3 of 11 pods of the job train run after 0 seconds"):
        clusters.resolver()


@on_tensorflow
def test_kubernetes_needs_its_package(environment, monkeypatch):
    environment(PODS)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ValueError, match="needs the Python package kubernetes"):
        distribute.strategy("multiworker")


@on_jax
@pytest.mark.parametrize("variables", [CONFIG, KERAS, SLURM, PODS, {"TPU_NAME": "local"}])
def test_jax_is_told_what_it_does_not_find_itself(environment, monkeypatch, variables):
    import jax

    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: calls.append(options))
    environment({**variables, "CUDA_VISIBLE_DEVICES": "2,3"})
    clusters.join()
    (options,) = calls
    assert options.pop("shutdown_timeout_seconds") > 3600  # the chief may export for long
    gpus = {"local_device_ids": [0, 1]} if variables is SLURM else {}
    described = {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1}
    assert options == (described if variables in (CONFIG, KERAS) else gpus)


@on_jax
def test_processes_join_before_jax_computes(environment):
    keras.ops.zeros(1)
    environment(CONFIG)
    with pytest.raises(ValueError, match=r'before JAX computes.*strategy "one"'):
        distribute.strategy("data_parallel")
    assert distribute.strategy("one").is_chief
