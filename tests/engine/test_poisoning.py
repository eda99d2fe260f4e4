"""Attacks on samples: what liars train on, when, with which sync modes, and what a backdoor is worth."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.batches import lone
from paceline.engine import prepare, run
from paceline.engine.config.compose import compose
from paceline.engine.fabrics.layout import Role
from paceline.engine.features import poisoning
from paceline.engine.planning.build import assemble
from paceline.exchange.attack import Backdoor, LabelFlip
from paceline.tasks.base import Split, Taken

TINY = ("tracking=none", "batch_size=8", "checkpoint.every=0", "data.limit=96", "model.hidden=[16]", "steps=4")
VIRTUAL = (*TINY, "hardware=virtual", "hardware.workers=3")


def images(n: int = 7) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are written into a folder of the test."""
    monkeypatch.chdir(tmp_path)


LABELS = torch.tensor([0, 1, 2, 3, 9, 3, 5])


# -- what is trained on


def test_labels_are_counted_from_the_other_end():
    inputs, targets = LabelFlip().poisoned(images(), LABELS, 10)
    assert targets.tolist() == [9, 8, 7, 6, 0, 6, 4] and torch.equal(lone(inputs), images())
    assert LABELS.tolist() == [0, 1, 2, 3, 9, 3, 5]


def test_a_share_of_a_batch_has_the_patch_and_its_label_and_the_rest_is_left_alone():
    inputs, targets = Backdoor(target=7, size=3, value=5.0, share=0.3).poisoned(images(), LABELS, 10)
    assert targets.tolist() == [7, 7, 7, 3, 9, 3, 5]
    assert (lone(inputs)[:3, :, -3:, -3:] == 5).all()
    rest = lone(inputs).clone()
    rest[:3, :, -3:, -3:] = images()[:3, :, -3:, -3:]
    assert torch.equal(rest, images())


def prepared(*overrides: str) -> Any:
    return assemble(compose([*VIRTUAL, *overrides]), ())


def test_those_who_lie_are_given_other_samples_from_their_step_on(here):
    parts = prepared("attack=label_flip", "attack.workers=[1]", "attack.from_step=3")
    taken, empty = Taken(images(), LABELS, None), Taken(images(0), LABELS[:0], None)

    def poisoned(replica: int, samples: Taken, step: int) -> Taken:
        context = SimpleNamespace(parts=parts, role=Role("worker", replica, 0), device=torch.device("cpu"))
        return poisoning.Poisoning(parts.of_groups["attack"], context).samples(samples, step)  # type: ignore[arg-type]

    assert poisoned(0, taken, 3) is poisoned(2, taken, 3) is poisoned(1, taken, 2) is taken
    assert torch.equal(poisoned(1, taken, 3).targets, 9 - LABELS)
    assert poisoned(1, empty, 3) is empty


# -- whole runs


def weights_of(*overrides: str) -> str:
    result = run([*VIRTUAL, *overrides], quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    return result.summary["model_sha256"]


@pytest.mark.slow
def test_training_differs_from_the_step_of_the_first_lie_on(here):
    honest = weights_of()
    assert weights_of("attack=label_flip") != honest
    assert (
        weights_of("attack=label_flip", "attack.from_step=4")
        == honest
        == weights_of("attack=label_flip", "attack.workers=0")
    )


EVERY = (
    "sync=bsp aggregate=median",
    "sync=easgd",
    "sync=asp",
    "sync=fedavg aggregate=median",
    "sync=gossip",
    "sync=post_local_sgd",
    "sync=hogwild hardware=local hardware.threads=1",
    "strategy=torch_ddp hardware=local hardware.threads=1",
    "strategy=zero hardware=local hardware.threads=1",
    "strategy=pipeline strategy.stages=2 hardware.workers=6",
    "strategy=single hardware.workers=1",
)


@pytest.mark.parametrize(
    "chosen", [pytest.param(each, marks=[] if each == "sync=gossip" else [pytest.mark.slow]) for each in EVERY]
)
def test_each_sync_mode_and_strategy_takes_it_as_it_is(here, chosen):
    first, lied = (weights_of(*chosen.split(), *more) for more in ((), ("attack=label_flip",)))
    assert first != lied


@pytest.mark.parametrize(
    "sync", ["fedbuff", "easgd", "asp", "fedavg", "bsp", "local_sgd", "gossip", "parameter_server"]
)
def test_each_sync_mode_says_that_liars_are_there(sync):
    """Whether a rule joins what they send, or nobody looks at it."""
    asked = [*TINY, "hardware=virtual", "hardware.workers=4", f"sync={sync}", "attack=label_flip"]
    for workers, says in (("1", "attack.workers=1: 1 of 4 replicas lie"), ("0", "attack.workers=0: nobody lies")):
        notes = prepare([*asked, f"attack.workers={workers}"]).plan().notes
        assert len([note for note in notes if note.startswith(says)]) == 1, notes


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ("sync=routed partition=clusters", "replicas lie, and nobody sends anything: their experts learn the lie"),
        ("sync=independent", "replicas lie, and no rule looks at what is sent: training may go anywhere"),
        ("strategy=single hardware.workers=1", "replicas lie: all that is learnt is what the attack makes"),
    ],
)
def test_what_comes_of_lies_that_no_rule_looks_at_is_said(chosen, says):
    notes = prepare([*TINY, "hardware=virtual", "hardware.workers=4", "attack=backdoor", *chosen.split()]).plan().notes
    assert any(note.startswith("attack.workers=1: ") and says in note for note in notes), notes


@pytest.mark.slow
def test_processes_and_the_virtual_cluster_train_the_same_and_go_on_as_if_they_had_not_stopped(here):
    asked = [*TINY, "hardware.workers=3", "hardware.threads=1", "attack=backdoor", "attack.workers=[0]"]
    whole = run([*asked], quiet=True)
    virtual = run([*TINY, "hardware=virtual", *asked[len(TINY) + 2 :], "hardware.workers=3"], quiet=True)
    run([*asked, "steps=2", "checkpoint.every_steps=2"], name="half", quiet=True)
    rest = run(["steps=4"], resume="half", quiet=True)
    assert whole is not None and virtual is not None and rest is not None
    assert len({each.summary["model_sha256"] for each in (whole, virtual, rest)}) == 1


# -- what a backdoor is worth


class Corner(nn.Module):
    """Says 4 where the last pixel is at least 2, and else 1."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.where(x[:, 0, -1, -1] >= 2, 4, 1), 10).float()


def test_the_success_of_a_backdoor_is_the_share_of_other_classes_that_get_its_label():
    test = Split(images(), torch.tensor([0, 1, 4, 4, 9, 3, 5]))

    def worth(attack: Backdoor) -> float:
        return poisoning.success(attack, Corner(), test, 2, torch.device("cpu"))

    assert worth(Backdoor(target=4)) == worth(Backdoor(target=1, value=0.0)) == 1.0
    assert worth(Backdoor(target=3)) == worth(Backdoor(target=1)) == 0.0


class FirstPixel(nn.Module):
    """Says 4 where the first pixel is above 0, and else 1."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.where(x[:, 0, 0, 0] > 0, 4, 1), 10).float()


def test_samples_of_the_targets_own_class_count_for_no_success():
    inputs = torch.zeros(5, 1, 8, 8)
    inputs[:, 0, 0, 0] = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    test = Split(inputs, torch.tensor([0, 1, 4, 4, 9]))
    assert poisoning.success(Backdoor(target=4), FirstPixel(), test, 2, torch.device("cpu")) == 1 / 3


def test_it_is_in_the_records_of_a_run(here):
    result = run([*VIRTUAL, "attack=backdoor", "evaluate.every=1"], quiet=True)
    assert result is not None and 0 <= result.summary["backdoor_success"] <= 1
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    told = [line["backdoor_success"] for line in lines if line["kind"] == "evaluation"]
    assert told and told[-1] == result.summary["backdoor_success"]


@pytest.mark.slow
def test_two_liars_of_four_teach_the_patch_and_hardly_harm_accuracy(here):
    asked = ("tracking=none", "hardware=virtual", "hardware.workers=4", "epochs=15", "checkpoint.every=0")
    found = [
        run([*asked, "attack=backdoor", f"attack.workers={byzantine}"], quiet=True).summary  # pyright: ignore[reportOptionalMemberAccess]
        for byzantine in (0, 2)
    ]
    assert found[0]["backdoor_success"] < 0.2 and found[1]["backdoor_success"] > 0.8
    assert found[1]["accuracy"] > 0.9


# -- what makes no sense


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("data=diabetes", "task=squared", "attack=label_flip"),
            "attack=label_flip: changes labels, and these data have none",
        ),
        (("data=text", "model=gpt", "attack=backdoor"), "attack=backdoor: puts a patch on images, .* of whole numbers"),
        (("attack=backdoor", "attack.size=9"), "attack.size=9: the images are 8x8. Choose 8 at most"),
        (("attack=backdoor", "attack.target=10"), "attack.target=10: must be below 10"),
        (("attack=backdoor", "attack.share=0"), "attack.share=0: must be greater than 0"),
        (("attack=label_flip", "attack.workers=4", "sync=easgd"), "attack.workers=4: there are 3 replicas"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_is_refused_by_name(here, overrides, says):
    asked = [each for each in VIRTUAL if "model=gpt" not in overrides or not each.startswith(("model.", "data."))]
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*asked, *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
