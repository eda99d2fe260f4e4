"""evaluate.attack: on whichever strategy and sync mode, in rows, records and the run's directory; what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stored_configs import from_yaml, to_yaml

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import Evaluate
from paceline.engine.features.robustness import Robustness, attack_of
from paceline.strategies.core.state import load_state
from paceline.tasks.adversarial.robust import robustness
from paceline.tasks.data.digits import Digits
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.mlp import MLP
from paceline.tracking.adversarial import read_adversarial
from paceline.tracking.compare import rows
from paceline.tracking.files import UnusableFileError
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.sources import from_directory

slow = pytest.mark.slow
SMALL = ("tracking=none", "data.limit=200", "batch_size=25", "model.hidden=[24]", "steps=24", "epochs=1000")
SMALL += (
    "evaluate.every=1000",
    "checkpoint.every=0",
    "evaluate.attack=pgd",
    "evaluate.steps=5",
    "evaluate.samples=100",
)
VIRTUAL = (*SMALL, "hardware=virtual")


def kept(run: Path) -> dict:
    return json.loads((run / "adversarial.json").read_text())


def test_a_run_tells_what_an_attack_leaves_of_what_it_trained(tmp_path: Path) -> None:
    result = run([*VIRTUAL, "hardware.workers=2", "evaluate.curve=[0.1,0.02]"], root=tmp_path, quiet=True, name="one")
    spec, (_, test) = Digits().spec, Digits().load()
    model = MLP(spec, hidden=[24])
    load_state(model, load_file(result.weights))
    attack = attack_of(compose([*VIRTUAL]).evaluate, spec, seed=0)
    wanted = robustness(CrossEntropy(), model, test, attack, most=100).accuracy
    assert 0.05 < wanted < 0.95
    [row] = rows([result.summary])
    evaluation = [each for each in result.data.records if each["kind"] == "evaluation"][-1]
    told = read_adversarial(result.path / "adversarial.json")
    assert result.summary["metrics"]["robust_accuracy"] == row["robust_accuracy"] == wanted
    assert evaluation["robust_accuracy"] == wanted and told["samples"] == 100
    assert told["curve"]["eps"] == [0.02, 0.1] and told["curve"]["pgd"][1] == wanted
    assert told["curve"]["pgd"][1] <= told["curve"]["fgsm"][1] <= told["curve"]["noise"][1] <= told["curve"]["noise"][0]
    assert told["doubts"] == [] and len(told["examples"]["items"]) == 6
    assert all(item["label"] == item["before"] != item["after"] for item in told["examples"]["items"])
    assert result.data.adversarial == told and not result.data.damage


@slow
@pytest.mark.parametrize(
    "how",
    [
        ("strategy=pipeline", "strategy.stages=2", "hardware.workers=2"),
        ("strategy=tensor", "strategy.degree=2", "hardware.workers=2"),
        ("strategy=data_parallel", "hardware.workers=1"),
        ("strategy=offload", "hardware.workers=1"),
    ],
    ids=lambda how: how[0].partition("=")[2],
)
def test_every_strategy_is_attacked_alike(tmp_path: Path, how: tuple[str, ...]) -> None:
    plain = run([*VIRTUAL, "strategy=single", "hardware.workers=1"], root=tmp_path, quiet=True, name="plain")
    other = run([*VIRTUAL, *how], root=tmp_path, quiet=True, name="other")
    assert kept(plain.path)["curve"]["pgd"] == pytest.approx(kept(other.path)["curve"]["pgd"], abs=0.011)
    assert plain.summary["metrics"]["robust_accuracy"] < 0.9


@slow
@pytest.mark.parametrize(
    "sync", ["asp", "local_sgd", "gossip", "easgd", "fedavg", "parameter_server", "hogwild", "ssp"]
)
def test_every_kind_of_sync_mode_is_attacked_at_its_consensus(tmp_path: Path, sync: str) -> None:
    result = run([*VIRTUAL, f"sync={sync}", "hardware.workers=2"], root=tmp_path, quiet=True)
    model = MLP(Digits().spec, hidden=[24])
    load_state(model, load_file(result.weights))
    attack = attack_of(compose([*VIRTUAL]).evaluate, Digits().spec, seed=0)
    found = robustness(CrossEntropy(), model, Digits().load()[1], attack, most=100).accuracy
    assert result.summary["metrics"]["robust_accuracy"] == found


@slow
def test_real_workers_and_modelled_ones_are_attacked_alike_and_training_is_as_without(tmp_path: Path) -> None:
    how = ("hardware.workers=2", "hardware.threads=1")
    real = run([*SMALL, *how], root=tmp_path, quiet=True, name="real")
    virtual = run([*VIRTUAL, *how[:1]], root=tmp_path, quiet=True, name="virtual")
    plain = run([*SMALL[:-3], *how], root=tmp_path, quiet=True, name="plain")
    assert kept(real.path) == kept(virtual.path)
    assert real.weights.read_bytes() == virtual.weights.read_bytes() == plain.weights.read_bytes()
    assert not (plain.path / "adversarial.json").exists() and "robust_accuracy" not in plain.summary.get("metrics", {})


@slow
def test_callbacks_see_it_and_keep_the_most_robust_weights(tmp_path: Path) -> None:
    best = ("callbacks=[best]", "callbacks.best.metric=robust_accuracy", "callbacks.best.mode=max")
    result = run([*VIRTUAL, *best, "evaluate.every=1"], root=tmp_path, quiet=True)
    found = [each["robust_accuracy"] for each in result.data.records if each["kind"] == "evaluation"]
    assert len(found) == 6 and (result.path / "best.safetensors").exists()
    with pytest.raises(ConfigError, match=r"callbacks\.best\.metric=robust_accuracy: must be accuracy"):
        prepare([*VIRTUAL, *best, "evaluate.attack=none", "evaluate.steps=null", "evaluate.samples=null"]).plan()


@slow
def test_a_target_has_a_column(tmp_path: Path) -> None:
    result = run([*VIRTUAL, "evaluate.target=next", "evaluate.eps=0.3"], root=tmp_path, quiet=True)
    [row] = rows([result.summary])
    assert row["target_reached"] == result.summary["metrics"]["target_reached"] > 0.5
    assert kept(result.path)["target"] == "next"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluate.attack=cw"], "evaluate.attack='cw': must be 'none', 'fgsm' or 'pgd'"),
        (["evaluate.eps=0.1"], "evaluate.eps=0.1: is of an attack, and there is none; evaluate.attack=pgd is one"),
        (["evaluate.attack=fgsm", "evaluate.restarts=2"], "evaluate.restarts=2: fgsm is one step of length eps"),
        (["evaluate.attack=fgsm", "evaluate.eps=-1"], "evaluate.eps=-1: must be greater than or equal to 0"),
        (
            ["evaluate.attack=pgd", "evaluate.random_start=false", "evaluate.restarts=2"],
            "evaluate.restarts=2: begins in other places, and with evaluate.random_start=false there is one",
        ),
        (
            ["evaluate.attack=pgd", "evaluate.target=foo"],
            "evaluate.target='foo': must be next, least_likely, or a class by its number",
        ),
        (["evaluate.attack=pgd", "evaluate.target=-1"], "evaluate.target=-1: must be next, least_likely, or a class"),
        (["evaluate.attack=pgd", "evaluate.eps=0"], "evaluate.eps=0: changes nothing"),
        (["evaluate.attack=pgd", "evaluate.eps=5"], "evaluate.eps=5: is a share of the data's range"),
        (["evaluate.attack=fgsm", "evaluate.norm=l2", "evaluate.eps=9"], "evaluate.eps=9: is a share of the data's"),
        (["evaluate.attack=pgd", "evaluate.samples=361"], "evaluate.samples=361: data=digits has 360 test samples"),
        (["evaluate.attack=pgd", "evaluate.target=10"], "evaluate.target=10: data=digits has the classes 0 to 9"),
        (["evaluate.attack=pgd", "evaluate.curve=[0.1,5]"], "evaluate.curve=5: is a share of the data's range"),
        (["evaluate.attack=pgd", "evaluate.curve=[]"], "evaluate.curve=[]: must have one value of eps or more"),
        (
            ["evaluate.attack=pgd", "model=gpt", "data=text"],
            "evaluate.attack=pgd: changes numbers a little, and the inputs of data=text are torch.int64",
        ),
        (
            ["evaluate.attack=pgd", "model=linear", "data=diabetes", "task=squared"],
            "evaluate.attack=pgd: has models err in their classes, and the targets of data=diabetes are numbers. "
            "Choose evaluate.attack=none, or data with pixels, such as data=digits",
        ),
        (
            ["adversarial_training=pgd", "model=linear", "data=diabetes", "task=squared"],
            "adversarial_training=pgd: has models err in their classes, and the targets of data=diabetes are numbers. "
            "Choose adversarial_training=none, or data with pixels",
        ),
        (
            ["evaluate.attack=pgd", "model=sparse_logistic_regression", "data=sparse"],
            "evaluate.attack=pgd: changes dense samples, and those of data=sparse are sparse",
        ),
        (
            ["evaluate.attack=pgd", "model=unet", "data=disks"],
            "evaluate.attack=pgd: counts by the range of inputs, and data=disks states none",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_means_nothing_is_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(overrides).plan()
    assert str(refused.value).startswith(message)


def test_what_is_not_said_follows_from_what_is() -> None:
    spec = Digits().spec
    usual = attack_of(Evaluate(every=1, attack="pgd"), spec, 0)
    assert (usual.threat.eps, usual.steps, usual.step_size, usual.restarts) == (0.1, 20, 0.0125, 1)
    assert (usual.threat.low, usual.threat.high) == spec.range and usual.random_start and usual.target is None
    own = attack_of(Evaluate(every=1, attack="pgd", norm="l2", eps=2.0, steps=5, step_size=0.5), spec, 0)
    assert (own.threat.norm.name, own.threat.eps, own.step_size) == ("l2", 2.0, 0.5)
    assert own.at(1.0).step_size == 0.25 and own.at(0.0).threat.radius == 0
    assert replace(usual, seed=1) != usual


def test_a_configuration_from_before_there_were_attacks_is_read() -> None:
    now = compose([])
    text = to_yaml(now)
    before = text[: text.index("  attack: none", text.index("evaluate:"))] + text[text.index("checkpoint:") :]
    assert from_yaml(before) == now


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"eps": -1.0}, "eps"),
        ({"curve": {"eps": [0.1], "pgd": [0.5, 0.4]}}, "curve"),
        ({"doubts": ["x" * 500]}, "doubts.0"),
        ({"examples": {"shape": [1, 8, 8], "items": [{}]}}, "examples.items.0.label"),
        ({"more": 1}, "more"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_file_that_is_none_of_ours_is_damage_and_nothing_else(tmp_path: Path, change: dict, where: str) -> None:
    good = {"method": "pgd", "norm": "linf", "eps": 0.1, "steps": 5, "step_size": 0.05, "restarts": 1, "target": None}
    good |= {"samples": 9, "curve": {"eps": [0.1], "pgd": [0.5]}, "doubts": [], "examples": None}
    here = RunDirectory.create(tmp_path, "run")
    here.write_adversarial(good)
    assert from_directory(here).adversarial is not None
    here.write_adversarial(good | change)
    with pytest.raises(UnusableFileError, match=f"see {where}"):
        read_adversarial(here.adversarial)
    read = from_directory(here)
    assert read.adversarial is None and any("adversarial.json" in each for each in read.damage)


def test_images_of_another_size_are_no_examples(tmp_path: Path) -> None:
    here = RunDirectory.create(tmp_path, "run")
    item = {"label": 0, "before": 0, "after": 1, "clean": "AAAA", "changed": "AAAA", "perturbation": "AAAA"}
    good = {"method": "fgsm", "norm": "l2", "eps": 0.1, "steps": 1, "step_size": 0.1, "restarts": 1, "target": None}
    good |= {"samples": 9, "curve": {"eps": [0.1]}, "doubts": [], "examples": {"shape": [3, 1, 1], "items": [item]}}
    here.write_adversarial(good)
    assert read_adversarial(here.adversarial)["examples"]["items"] == [item]
    here.write_adversarial({**good, "examples": {"shape": [1, 1, 2], "items": [item]}})
    with pytest.raises(UnusableFileError, match="see examples"):
        read_adversarial(here.adversarial)


@slow
def test_attacks_on_asynchronous_snapshots_come_after_training(tmp_path: Path) -> None:
    result = run([*VIRTUAL, "sync=asp", "hardware.workers=2", "evaluate.every=2"], root=tmp_path, quiet=True)
    assert torch.isfinite(torch.tensor(result.summary["metrics"]["robust_accuracy"]))
    assert all("robust_accuracy" in each for each in result.data.records if each["kind"] == "evaluation")


@pytest.mark.parametrize("more", [["evaluate.eps=1"], ["evaluate.norm=l2", "evaluate.eps=8"], ["evaluate.samples=360"]])
def test_what_reaches_to_the_end_of_the_range_and_of_the_test_split_is_taken(more: list[str]) -> None:
    assert prepare(["evaluate.attack=pgd", *more]).plan().notes is not None


def test_more_samples_than_data_have_that_say_so_once_they_are_there_are_refused() -> None:
    experiment = compose(["evaluate.attack=pgd", "evaluate.samples=500"])
    with pytest.raises(ConfigError, match=r"^evaluate\.samples=500: data=digits has 360 test samples"):
        Robustness(experiment, Digits().spec, CrossEntropy(), Digits().load()[1], 64)
