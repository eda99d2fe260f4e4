"""Manifests for Kubernetes, printed and not applied: `paceline train launcher=kubernetes --print | kubectl apply -f -`.

An Indexed Job (batch/v1) has one pod for each node, each of which is torchrun's agent of that index; a headless Service
names the first pod, a Secret has the workers' token, and a ConfigMap has the configuration. Exit statuses that would
come again fail the job at once, and disruptions do not count (podFailurePolicy). A TrainJob of Kubeflow Trainer v2 says
the same in fewer words, where the cluster has a runtime for torch.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from math import isinf
from types import MappingProxyType
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge

from ...conf.errors import ConfigError
from .scheduler import FINAL, JobLauncher, Retries, SubmittedRun

PORT = 29500
LONGEST = 52  # characters of a job's name; pods add an index of up to ten more
CONFIG = "/etc/paceline"
WORK = "/work"
MOST_RETRIES = 2**31 - 1


class Kubernetes(JobLauncher):
    def __init__(
        self,
        image: str | None = None,
        nodes: Annotated[int, Ge(1)] = 1,
        workers_per_node: Annotated[int, Ge(1)] = 2,
        kind: Literal["job", "trainjob"] = "job",
        runtime: str = "torch-distributed",
        namespace: str | None = None,
        gpus_per_node: Annotated[int, Ge(0)] = 0,
        cpus_per_worker: Annotated[int, Ge(1)] = 1,
        memory_per_node: str | None = None,
        claim: str | None = None,
        python: str = "python",
        retries: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if not image:
            given = "null" if image is None else image
            raise ConfigError(f"launcher.image={given}: the pods need an image that has paceline. Give its name.")
        self.nodes, self.workers_per_node, self.retries = nodes, workers_per_node, Retries.of(retries)
        self._image, self._kind, self._runtime, self._python = image, kind, runtime, python
        self._meta = {} if namespace is None else {"namespace": namespace}
        self._claim = claim
        if memory_per_node is not None and not re.fullmatch(r"[1-9]\d*([kMGTPE]|[KMGTPE]i)?", memory_per_node):
            raise ConfigError(f"launcher.memory_per_node={memory_per_node}: must be a quantity, for instance 32Gi.")
        amounts = {"cpu": str(workers_per_node * cpus_per_worker), "memory": memory_per_node}
        amounts["nvidia.com/gpu"] = str(gpus_per_node) if gpus_per_node else None
        self._resources = {key: value for key, value in amounts.items() if value is not None}

    def check(self) -> None:
        """Checks nothing: paceline does not speak with the cluster."""

    def text(self, job: SubmittedRun) -> str:
        name = name_of(job.run.name)
        parts = [self._secret(name), self._config(name, job)]
        parts += [self._service(name), self._job(name, job)] if self._kind == "job" else [self._trainjob(name, job)]
        return yaml.dump_all(parts, Dumper=_Readable, sort_keys=False)

    # -- manifests

    def _manifest(self, kind: str, name: str, version: str = "v1", **body: object) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": "paceline", "paceline/run": name}
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **self._meta, "labels": labels}, **body}

    def _secret(self, name: str) -> dict[str, Any]:
        return self._manifest("Secret", name, stringData={"token": secrets.token_hex(32)})

    def _config(self, name: str, job: SubmittedRun) -> dict[str, Any]:
        return self._manifest("ConfigMap", name, data={"config.yaml": job.config})

    def _service(self, name: str) -> dict[str, Any]:
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}}
        return self._manifest("Service", name, spec=spec)

    def _train(self, job: SubmittedRun) -> list[str]:
        command = ["-m", "paceline.cli.main", "train", "--config", f"{CONFIG}/config.yaml"]
        return [*command, "--name", job.run.name, *job.allow, "launcher=auto"]

    def _job(self, name: str, job: SubmittedRun) -> dict[str, Any]:
        where = f"--nnodes={self.nodes} --nproc-per-node={self.workers_per_node} --node-rank=$(JOB_COMPLETION_INDEX)"
        where += f" --master-addr={name}-0.{name} --master-port={PORT}"
        container = {
            "name": "workers",
            "image": self._image,
            "command": [self._python, "-m", "torch.distributed.run", *where.split()],
            "args": self._train(job),
            "workingDir": WORK,
            "env": [self._token(name), _index()],
            "resources": {"limits": self._resources},
            "volumeMounts": _mounts(),
        }
        pod = {
            "subdomain": name,
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": self._volumes(name),
        }
        rules: list[dict[str, Any]] = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [*FINAL]}}]
        if self.retries.lost:
            rules.append({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
        failed = self.retries.failed
        spec = {
            "completionMode": "Indexed",
            "completions": self.nodes,
            "parallelism": self.nodes,
            "backoffLimit": MOST_RETRIES if isinf(failed) else int(failed),
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": {"paceline/run": name}}, "spec": pod},
        }
        return self._manifest("Job", name, "batch/v1", spec=spec)

    def _trainjob(self, name: str, job: SubmittedRun) -> dict[str, Any]:
        trainer = {
            "image": self._image,
            "numNodes": self.nodes,
            "numProcPerNode": self.workers_per_node,
            "command": ["torchrun"],
            "args": self._train(job),
            "env": [self._token(name)],
            "resourcesPerNode": {"limits": self._resources},
        }
        containers = [{"name": "node", "volumeMounts": _mounts()}]
        pod = {"spec": {"volumes": self._volumes(name), "containers": containers}}
        node = {"name": "node", "template": {"spec": {"template": pod}}}
        patch = {"template": {"spec": {"replicatedJobs": [node]}}}
        patches = [{"manager": "paceline.dev/train", "trainingRuntimeSpec": patch}]
        spec = {"runtimeRef": {"name": self._runtime}, "trainer": trainer, "runtimePatches": patches}
        return self._manifest("TrainJob", name, "trainer.kubeflow.org/v1alpha1", spec=spec)

    def _token(self, name: str) -> dict[str, Any]:
        return {"name": "PACELINE_TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}}

    def _volumes(self, name: str) -> list[dict[str, Any]]:
        runs = {"emptyDir": {}} if self._claim is None else {"persistentVolumeClaim": {"claimName": self._claim}}
        return [{"name": "config", "configMap": {"name": name}}, {"name": "work", **runs}]


class _Readable(yaml.SafeDumper):
    """Writes a text of several lines line by line, and not in quotes."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Readable.add_representer(str, _Readable.represent_str)


def name_of(run: str) -> str:
    """Returns a name that Kubernetes takes: lower-case letters, digits and dashes. Another run has another name."""
    name = f"paceline-{re.sub(r'[^a-z0-9]+', '-', run.lower()).strip('-')}"
    if name == f"paceline-{run}" and len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 9].rstrip('-')}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def _index() -> dict[str, Any]:
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _mounts() -> list[dict[str, str]]:
    return [{"name": "config", "mountPath": CONFIG}, {"name": "work", "mountPath": WORK}]
