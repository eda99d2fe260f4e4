"""Manifests for Kubernetes, held to its own schema; nothing is applied."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import needs_kubeflow, needs_kubernetes_validate

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.jobs.kubernetes import LONGEST, name_of

IMAGE = ("launcher=kubernetes", "launcher.image=registry.example/paceline:1", "tracking=none")
VERSION = "1.34"


def manifests(*overrides: str, name: str = "mine") -> list[dict[str, Any]]:
    text = engine.prepare([*IMAGE, *overrides], name=name).submission()
    assert text is not None
    return list(yaml.safe_load_all(text))


def of_kind(kind: str, *overrides: str) -> dict[str, Any]:
    return next(each for each in manifests(*overrides) if each["kind"] == kind)


@needs_kubernetes_validate
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [
            "launcher.nodes=4",
            "launcher.workers_per_node=8",
            "launcher.gpus_per_node=8",
            "launcher.memory_per_node=64Gi",
        ],
        ["launcher.claim=runs", "launcher.namespace=team", "launcher.retries.failed=3", "launcher.retries.lost=0"],
    ],
)
def test_every_manifest_is_one_of_kubernetes(overrides: list[str]) -> None:
    kubernetes_validate = import_module("kubernetes_validate")
    found = manifests(*overrides)
    assert [each["kind"] for each in found] == ["Secret", "ConfigMap", "Service", "Job"]
    for each in found:
        kubernetes_validate.validate(each, VERSION, strict=True)


@needs_kubernetes_validate
def test_the_schema_refuses_a_key_that_is_misspelt() -> None:
    kubernetes_validate = import_module("kubernetes_validate")
    job = of_kind("Job")
    job["spec"]["completion"] = job["spec"].pop("completions")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSION, strict=True)


@needs_kubeflow
def test_a_train_job_is_one_of_kubeflow() -> None:
    models = import_module("kubeflow_trainer_api.models")
    job = of_kind(
        "TrainJob", "launcher.kind=trainjob", "launcher.nodes=2", "launcher.gpus_per_node=4", "launcher.claim=c"
    )
    read = models.TrainerV1alpha1TrainJob.from_dict(job)
    assert read is not None and read.to_dict() == job, "a key that it does not know is left out"


def test_the_config_map_has_the_configuration_that_was_asked_for() -> None:
    config = yaml.safe_load(of_kind("ConfigMap", "sync=asp", "steps=7")["data"]["config.yaml"])
    assert config["sync"]["name"] == "asp" and config["steps"] == 7


def test_each_pod_is_an_agent_of_torchrun_that_knows_its_rank() -> None:
    pod = of_kind("Job", "launcher.nodes=3", "launcher.workers_per_node=2")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = " ".join(container["command"])
    assert "--nnodes=3 --nproc-per-node=2 --node-rank=$(JOB_COMPLETION_INDEX)" in words
    assert "--master-addr=paceline-mine-0.paceline-mine" in words and pod["subdomain"] == "paceline-mine"
    assert {each["name"] for each in container["env"]} == {"PACELINE_TOKEN", "JOB_COMPLETION_INDEX"}


def test_each_pod_asks_for_what_its_workers_need() -> None:
    given = ("launcher.workers_per_node=8", "launcher.gpus_per_node=4", "launcher.memory_per_node=64Gi")
    (container,) = of_kind("Job", *given)["spec"]["template"]["spec"]["containers"]
    asked = container["resources"]
    assert asked["limits"]["nvidia.com/gpu"] == "4" and asked["limits"]["memory"] == "64Gi"
    (without,) = of_kind("Job")["spec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in without["resources"]["limits"]


def test_what_would_come_again_fails_the_job_and_a_disruption_does_not_count() -> None:
    spec = of_kind("Job")["spec"]
    failing, ignoring = spec["podFailurePolicy"]["rules"]
    assert failing["onExitCodes"]["values"] == [2, 3, 6, 7] and ignoring["action"] == "Ignore"
    assert spec["backoffLimit"] == 0


def test_each_manifest_has_a_token_of_its_own() -> None:
    assert of_kind("Secret")["stringData"] != of_kind("Secret")["stringData"]


@pytest.mark.parametrize("run", ["Ein Lauf", "a" * 200, "x_" * 40, "A.B"])
def test_names_are_those_that_kubernetes_takes(run: str) -> None:
    name = name_of(run)
    assert (
        len(name) <= LONGEST and name == name.strip("-") and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    )


def test_runs_of_different_names_replace_nothing_of_one_another() -> None:
    runs = ["a-b", "a_b", "A-b", "a.b", "a-b-", "x" * 60, "x" * 61, "y" * 43, "y" * 44]
    assert len({name_of(run) for run in runs}) == len(runs)
    assert name_of("a-b") == "paceline-a-b"
    longest = "y" * (LONGEST - len("paceline-"))
    assert name_of(longest) == f"paceline-{longest}" != name_of(f"{longest}y")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["launcher.image=null"], "launcher.image=null: the pods need an image that has paceline. Give its name."),
        (["launcher.image="], "launcher.image=: the pods need an image that has paceline. Give its name."),
        (["launcher.memory_per_node=lots"], "launcher.memory_per_node=lots: must be a quantity, for instance 32Gi."),
        (["launcher.retries.losst=1"], "launcher.retries.losst: there is no such key; did you mean"),
        (["+launcher.retries.never=1"], "launcher.retries.never: there is no such key. Choose lost or failed."),
        (["launcher.retries.lost=-1"], "launcher.retries.lost=-1: must be a number of times from 0, or inf."),
        (["hardware=virtual"], "launcher=kubernetes: hardware=virtual is one process on this host"),
    ],
)
def test_what_is_wrong_is_said(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        manifests(*overrides)
    assert said in str(caught.value)


def test_it_submits_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"paceline submits nothing to it. Choose --print"):
        engine.run([*IMAGE], root=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())
