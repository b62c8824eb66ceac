"""Clusters of processes, found in the environment: TF_CONFIG, SLURM, Kubernetes, Cloud TPU.

On TensorFlow its own cluster resolvers read them, on JAX `jax.distributed.initialize`.
"""

import json
import os
import random
import time
import zlib
from typing import Any

import numpy as np

from zoo.backend import runtime

PORT = 8888  # of the workers of SLURM; TensorFlow's own default
PODS_START = 300.0  # seconds that the pods of a job get to start; that of jax.distributed
SHUTDOWN = 24 * 3600  # seconds that JAX's processes wait for process 0, which writes the results
POLL = 2.0  # seconds between two looks at the pods; ours


def find() -> str | None:
    """Return who started this process as one of several, or None for a single process.

    Returns:
        "TF_CONFIG", "KERAS_DISTRIBUTION", "SLURM", "Kubernetes", "TPU", or None.

    Raises:
        ValueError: if TF_CONFIG is not as TensorFlow expects it.
    """
    if len(tf_config()[0]) > 1:
        return "TF_CONFIG"
    if _number("KERAS_DISTRIBUTION_NUM_PROCESSES") > 1:
        return "KERAS_DISTRIBUTION"
    if _number("SLURM_STEP_NUM_TASKS") > 1:  # a job's own script is no step, srun starts one
        return "SLURM"
    # pods of an indexed job may as well be independent of each other: it must be asked for
    if os.environ.get("ZOO_CLUSTER") == "kubernetes" and os.environ.get("JOB_COMPLETION_INDEX"):
        return "Kubernetes"
    if os.environ.get("TPU_NAME") or "," in os.environ.get("TPU_WORKER_HOSTNAMES", ""):
        return "TPU"
    return None


def _number(name):
    text = os.environ.get(name) or "0"
    if not text.isdecimal():
        raise ValueError(f"Expected a number of processes in {name}. Received: {text!r}.")
    return int(text)


def tf_config() -> tuple[list[str], int]:
    """Return the addresses of all workers that TF_CONFIG names, the chief first, and our index.

    Raises:
        ValueError: if it is no JSON, or does not name this process.

    Example:
    >>> os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": '
    >>> os.environ["TF_CONFIG"] += '{"type": "worker", "index": 1}}'
    >>> tf_config()
    (['a:1', 'b:1'], 1)
    >>> del os.environ["TF_CONFIG"]
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return [], 0
    try:
        config = json.loads(text)
        cluster = config.get("cluster", {})
        chief = cluster.get("chief", [])
        addresses = [*chief, *cluster.get("worker", [])]
        if not addresses:
            return [], 0
        first = {"chief": 0, "worker": len(chief)}[config["task"]["type"]]
        return addresses, first + int(config["task"]["index"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"Expected TF_CONFIG as TensorFlow does: a cluster of workers and the task of this "
            f'process, {{"cluster": {{"worker": ["host:port", ...]}}, "task": {{"type": '
            f'"worker", "index": 0}}}}. Received: {text!r} ({error!r}).'
        ) from error


def resolver() -> Any:
    """Return the `tf.distribute.cluster_resolver.ClusterResolver` of `find`.

    Raises:
        ValueError: if there is no cluster, or TensorFlow cannot read it.
    """
    import tensorflow as tf

    source = find()
    resolvers = {"SLURM": _slurm, "Kubernetes": _kubernetes}
    if source not in resolvers:
        if not tf_config()[0]:
            raise ValueError(
                "Expected TF_CONFIG, a step of SLURM (srun) or an indexed job of Kubernetes to "
                "name this process and the others. Received: none. Start workers on this machine "
                "with `python -m zoo.launch --workers 2 SCRIPT ...`, on several with your "
                "scheduler."
            )
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        cluster, index = resolvers[source]()
    except Exception as error:  # of resolvers, and of a client that need not be installed
        raise ValueError(
            f"Expected a cluster of {source}. Received: {error}. Kubernetes needs the Python "
            f"package kubernetes and the permission to read jobs and pods. Set TF_CONFIG to "
            f'describe a cluster yourself, or use the strategy "one" to train in this process '
            f"alone."
        ) from error
    # with the GPUs that the scheduler lets this process see
    gpus = {"GPU": len(tf.config.list_physical_devices("GPU"))}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=index, num_accelerators=gpus, rpc_layer="grpc"
    )


def _slurm():
    """Return SLURM's tasks as a `tf.train.ClusterSpec`, and the index of this one.

    TensorFlow's resolver would also distribute a node's GPUs, and fails where there are fewer
    than tasks; here that is left to SLURM (`srun --gpus-per-task`).
    """
    import tensorflow as tf

    tasks = _number("SLURM_STEP_NUM_TASKS")
    found = tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=PORT, gpus_per_node=tasks, gpus_per_task=1, auto_set_gpu=False
    )
    cluster = found.cluster_spec()
    return cluster, found.get_task_info()[1]


def _kubernetes():
    """Return the pods of this indexed job as a `tf.train.ClusterSpec`, and the index of this one.

    Waits until all run.
    """
    import tensorflow as tf
    from kubernetes import client, config

    config.load_incluster_config()
    pods = _Pods(client, int(os.environ["JOB_COMPLETION_INDEX"]))
    found = tf.distribute.cluster_resolver.KubernetesClusterResolver(
        {"worker": [f"job-name={pods.job}"]}, override_client=pods
    )
    return found.cluster_spec(), pods.index


class _Pods:
    """The Kubernetes client of TensorFlow's resolver, changed in three points.

    The pods are those of this job in this namespace, sorted by their index (the resolver sorts by
    name, "job-10" before "job-2"), and at their own addresses (the resolver takes their nodes').
    """

    NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

    def __init__(self, client: Any, index: int) -> None:
        with open(self.NAMESPACE, encoding="utf-8") as file:
            self.namespace = file.read().strip()
        self.pods = client.CoreV1Api()
        self.index = index
        self.job = os.environ["HOSTNAME"].removesuffix(f"-{index}")  # as of every indexed job
        job = client.BatchV1Api().read_namespaced_job(self.job, self.namespace)
        self.count = job.spec.completions

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        """Return the list of the job's pods once all of them run."""
        end = time.monotonic() + PODS_START
        while True:
            found = self.pods.list_namespaced_pod(self.namespace, label_selector=label_selector)
            running = {self._index(p): p for p in found.items if p.status.phase == "Running"}
            if len(running) == self.count:
                break
            if time.monotonic() > end:
                raise RuntimeError(
                    f"{len(running)} of {self.count} pods of the job {self.job} run after "
                    f"{PODS_START:g} seconds"
                )
            time.sleep(POLL)
        found.items = [running[index] for index in sorted(running)]
        for index, pod in enumerate(found.items):
            pod.metadata.name = f"{index:09d}"
            pod.status.host_ip = pod.status.pod_ip
        return found

    def _index(self, pod):
        return int(pod.metadata.annotations["batch.kubernetes.io/job-completion-index"])


def join() -> None:
    """Make this process one of JAX's, if it is one of several; a second call does nothing.

    Raises:
        ValueError: if JAX has computed before, or does not find the others.
    """
    import jax

    source = find()
    if source is None or jax.distributed.is_initialized():
        return
    addresses, index = tf_config()
    options: dict[str, Any] = {"shutdown_timeout_seconds": SHUTDOWN}
    if source == "TF_CONFIG":
        options |= {
            "coordinator_address": addresses[0],
            "num_processes": len(addresses),
            "process_id": index,
        }
    elif source == "KERAS_DISTRIBUTION":
        options |= {
            "coordinator_address": os.environ["KERAS_DISTRIBUTION_JOB_ADDRESSES"].split(",")[0],
            "num_processes": _number("KERAS_DISTRIBUTION_NUM_PROCESSES"),
            "process_id": _number("KERAS_DISTRIBUTION_PROCESS_ID"),
        }
    elif source == "SLURM" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        # all GPUs that SLURM gave this task; JAX would take one, and not the first
        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        options["local_device_ids"] = [*range(len(visible))]
    try:
        jax.distributed.initialize(**options)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"Expected to join the other processes of {source}. Received: {error} Call "
            f'`zoo.distribute.strategy` before JAX computes, or use the strategy "one" to train '
            f"in this process alone; see docs/devices.md."
        ) from error
    _agree_on_seeds()


def wait_for_all() -> None:
    """Wait until all of JAX's processes have called this function."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("zoo.distribute")


def _agree_on_seeds():
    """Make the processes initialize alike: where their random states differ, all are seeded."""
    from jax.experimental import multihost_utils

    states = [random.getstate()[1], runtime.GENERATOR.bit_generator.state]
    own = [zlib.crc32(repr(state).encode()) for state in states]
    all_states = multihost_utils.process_allgather(np.array(own, "uint32"))
    differ = (all_states != all_states[0]).any(axis=0)
    if differ[0]:  # Keras's layers take their seeds from it
        random.seed(int(all_states[0, 0]))
    if differ[1]:
        seeded = np.random.default_rng(int(all_states[0, 1]))
        runtime.GENERATOR.bit_generator.state = seeded.bit_generator.state
