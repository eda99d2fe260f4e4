"""Zeno++ under asp: which pushes count, by its definition, and what a run makes of it."""

from typing import Any

import pytest
import torch
from oracles import Case, Plan, mlp64, momentum, train
from replicas import Replica, flat

from paceline.engine import prepare, run
from paceline.exchange.aggregate import ZenoPlusPlus
from paceline.exchange.attack import ConstantAttack, Seen, SignFlip
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.downpour import Downpour

pytestmark = pytest.mark.dist
V = torch.tensor([3.0, 4.0, 0.0])


def rule(**knobs: Any) -> ZenoPlusPlus:
    made = ZenoPlusPlus(**knobs)
    assert made.admitted(V, 0) is V
    return made


def admitted(rule: ZenoPlusPlus, push: torch.Tensor) -> torch.Tensor:
    taken = rule.admitted(push, 1)
    assert taken is not None
    return taken


def test_a_push_counts_at_the_trusted_length_if_it_points_far_enough_along():
    along, across, against = torch.tensor([30.0, 40.0, 0.0]), torch.tensor([0.0, 0.0, 2.0]), -V
    assert torch.allclose(admitted(rule(), along), V)
    assert torch.allclose(admitted(rule(), across), torch.tensor([0.0, 0.0, 5.0]))
    assert rule().admitted(against, 1) is None
    assert rule(rho=0.1).admitted(across, 1) is None
    assert rule(rho=0.1, eps=2.5).admitted(across, 1) is not None
    assert rule(rho=0.1, eps=2.4).admitted(across, 1) is None  # rho ||g||^2 is 2.5
    assert rule(eps=24.9).admitted(against, 1) is None and rule(eps=25.0).admitted(against, 1) is not None


def test_what_has_no_direction_or_comes_before_the_trusted_one_is_left_out():
    assert ZenoPlusPlus(trusted=1).admitted(V, 0) is None
    for row in (torch.zeros(3), torch.tensor([1.0, float("nan"), 0.0]), torch.tensor([float("inf"), 0.0, 0.0])):
        assert rule().admitted(row, 1) is None


def test_it_goes_on_from_what_was_saved():
    again = ZenoPlusPlus()
    again.load_state_dict(rule().state_dict())
    assert torch.allclose(admitted(again, 2 * V), V) and ZenoPlusPlus().state_dict() == {}


CASE = Case([[4, 4]] * 5, model=mlp64, optimizer=momentum)


@pytest.mark.parametrize("attack", [SignFlip([1], scale=3.0), ConstantAttack([1], value="nan"), ConstantAttack([1])])
def test_where_the_other_one_lies_only_the_trusted_one_trains(virtual_workers, attack):
    sync = Downpour(rate="full", aggregate=ZenoPlusPlus(rho=0.9), attack=attack)
    results = virtual_workers(3, train, Plan(DataParallel(), sync, CASE))
    alone = Replica(CASE, 0, 0)
    for t in range(5):
        alone.gradient(t)
        alone.step()
    assert torch.allclose(flat(results[0]["weights"]), alone.vector, rtol=0, atol=1e-12)


class Longer(SignFlip):
    """Sends a multiple of what it should."""

    def forge(self, own: torch.Tensor, seen: Seen) -> torch.Tensor:
        return own * self.scale


def test_no_push_counts_by_its_length(virtual_workers):
    runs = [
        virtual_workers(
            3,
            train,
            Plan(DataParallel(), Downpour(aggregate=ZenoPlusPlus(rho=-1.0), attack=Longer([1], scale=scale)), CASE),
        )
        for scale in (1.0, 7.0)
    ]
    first, second = (flat(results[0]["weights"]) for results in runs)
    assert torch.allclose(first, second, rtol=0, atol=1e-12)


TINY = ("tracking=none", "hardware=virtual", "model.hidden=[16]", "batch_size=8", "checkpoint.every=0", "data.limit=96")
ASKED = ("sync=asp", "aggregate=zeno", "attack=sign_flip", "hardware.workers=4")


def test_what_is_left_out_is_told_as_dropped_and_bytes_are_as_planned(here):
    result = run([*TINY, *ASKED, "steps=12"], quiet=True)
    assert result is not None and result.summary["dropped"] >= 6
    assert result.summary["wire"]["bytes_per_step"] == pytest.approx(result.summary["predicted"]["bytes_per_step"])
    assert result.summary["memory"]["buffers"] == result.summary["predicted"]["memory"]["buffers"]


@pytest.mark.slow
def test_it_repeats_bit_for_bit_and_runs_on_processes(here):
    first, second = (run([*TINY, *ASKED, "steps=12"], quiet=True) for _ in range(2))
    assert first is not None and second is not None
    assert first.summary["model_sha256"] == second.summary["model_sha256"]
    real = [each for each in TINY if "virtual" not in each]
    result = run([*real, *ASKED, "steps=12", "hardware.threads=1", "checkpoint.every_steps=6"], quiet=True)
    assert result is not None and result.summary["status"] == "completed"


@pytest.mark.slow
def test_digits_are_learnt_though_three_of_eight_lie_and_not_without_it(here):
    accuracies = []
    for aggregate in ("zeno", "mean"):
        asked = ("tracking=none", "hardware=virtual", "hardware.workers=8", "epochs=15", "sync=asp")
        lies = ("attack=sign_flip", "attack.workers=3", "attack.scale=10")
        try:
            result = run([*asked, *lies, f"aggregate={aggregate}"], quiet=True)
            assert result is not None
            accuracies.append(result.summary["accuracy"])
        except Exception as error:  # diverged
            assert getattr(error, "exit_code", None) == 6, error
            accuracies.append(0.0)
    assert accuracies[0] > 0.9 and accuracies[1] < 0.5


@pytest.mark.parametrize("rule", ["sync=asp aggregate=zeno", "sync=bsp aggregate=fltrust"])
def test_it_is_said_where_the_replica_that_is_trusted_lies(rule):
    for liar, said in ((1, False), (2, True)):
        asked = [*TINY, *rule.split(), "hardware.workers=4", "attack=sign_flip", f"attack.workers=[{liar}]"]
        notes = prepare([*asked, "aggregate.trusted=2"]).plan().notes
        assert any(note.startswith("aggregate.trusted=2: this replica lies") for note in notes) == said


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sync=bsp",), "aggregate=zeno: looks at each push as it comes, .*Choose sync=asp, or aggregate="),
        (("sync=ssp",), "aggregate=zeno: looks at each push as it comes"),
        (("aggregate.rho=2",), "aggregate.rho=2: must be less than or equal to 1"),
        (("aggregate.trusted=4",), "aggregate.trusted=4: there are 4 replicas"),
        (("attack=alie",), "attack=alie: has its workers know what the honest ones send, and"),
        (("sync.servers=2",), "aggregate=zeno: looks at each .* gives each server a piece"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused_by_name(here, overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, *ASKED, *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
