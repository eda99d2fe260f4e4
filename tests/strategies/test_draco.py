"""Coded gradients: groups of replicas on the same samples, of which the majority counts, to the bit."""

from typing import Any

import pytest
import torch

from paceline.engine import prepare, run
from paceline.engine.config.compose import compose
from paceline.engine.planning.build import assemble
from paceline.exchange.aggregate import Draco, Mean
from paceline.exchange.aggregation import Aggregation
from paceline.exchange.attack import SignFlip
from paceline.strategies.core.errors import NotFiniteError
from paceline.tasks.partition import Dirichlet, Repeated, Shuffled

pytestmark = pytest.mark.dist
ROWS = torch.randn(2, 7, generator=torch.Generator().manual_seed(0))


def joined(rows: list[torch.Tensor], f: int = 1, attack: SignFlip | None = None) -> torch.Tensor:
    """Two groups of one share each."""
    rule = Aggregation(Draco(f), attack)
    return rule.join(dict(enumerate(rows)), dict.fromkeys(range(len(rows)), 0.5), len(rows), 3)


@pytest.mark.parametrize("lie", [float("nan"), float("inf"), -1.0, 0.0, 1e30])
@pytest.mark.parametrize("liar", range(6))
def test_whatever_one_of_six_sends_the_result_is_that_of_two_to_the_bit(liar, lie):
    rows = [ROWS[i // 3].clone() for i in range(6)]
    true = ROWS[0] * 0.5 + ROWS[1] * 0.5
    assert torch.equal(joined(rows), true)
    rows[liar] = torch.full((7,), lie)
    assert torch.equal(joined(rows), true)


def test_groups_count_by_their_shares_of_the_samples():
    rows, shares = {i: ROWS[i // 3] for i in range(6)}, {i: 0.25 if i < 3 else 0.75 for i in range(6)}
    assert torch.equal(Aggregation(Draco(), None).join(rows, shares, 6, 3), ROWS[0] * 0.25 + ROWS[1] * 0.75)


@pytest.mark.parametrize("told", [0.0, 1e-9, 0.9])
@pytest.mark.parametrize("liar", range(6))
def test_a_group_counts_by_what_most_of_it_say_that_its_share_is(liar, told):
    rows, shares = {i: ROWS[i // 3] for i in range(6)}, {i: 0.25 if i < 3 else 0.75 for i in range(6)}
    shares[liar] = told
    assert torch.equal(Aggregation(Draco(), None).join(rows, shares, 6, 3), ROWS[0] * 0.25 + ROWS[1] * 0.75)


def test_a_bit_is_enough_to_be_another_row_and_nan_is_the_same_as_nan():
    rows = [ROWS[0].clone() for _ in range(3)]
    rows[0][2] = torch.nextafter(rows[0][2], torch.tensor(9.0))
    assert Draco().decoded(torch.stack(rows), [0, 1, 2], 0) == [1]
    rows[1] = rows[2] = torch.full((7,), torch.nan)
    assert Draco().decoded(torch.stack(rows), [0, 1, 2], 0) == [1]


def test_two_liars_of_five_are_outvoted_and_three_are_not_withstood():
    rows = [ROWS[0].clone() for _ in range(5)]
    rows[0], rows[4] = -rows[0], 2 * rows[0]
    assert Draco(2).decoded(torch.stack(rows), range(5), 0) == [1]
    rows[1] = 3 * rows[1]
    with pytest.raises(NotFiniteError, match=r"no 3 of replicas 0 to 4 sent the same in step 7, .* withstands 2"):
        Draco(2).decoded(torch.stack(rows), range(5), 7)


def test_a_rule_without_copies_is_given_all_rows():
    assert Mean().decoded(ROWS, [0, 1], 0) == [0, 1]


# -- who takes which samples


@pytest.mark.parametrize("each", [Shuffled(), Dirichlet()], ids=["shuffled", "dirichlet"])
def test_a_group_takes_what_one_replica_of_fewer_takes(each):
    labels = torch.arange(50) % 5
    repeated, plain = Repeated(each, 3).deal(labels, 6, 4, seed=1), each.deal(labels, 2, 4, seed=1)
    assert repeated.steps_per_epoch == plain.steps_per_epoch and repeated.replicas == 6
    for step in range(2 * plain.steps_per_epoch):
        assert repeated.total(step) == plain.total(step)
        for replica in range(6):
            assert repeated.size(step, replica) == plain.size(step, replica // 3)
            assert torch.equal(repeated.indices(step, replica), plain.indices(step, replica // 3))


# -- whole runs

TINY = ("tracking=none", "model.hidden=[16]", "batch_size=8", "checkpoint.every=0", "data.limit=90", "steps=9")


def summary(*overrides: str) -> dict[str, Any]:
    result = run([*TINY, *overrides], quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    return result.summary


CODED = ("aggregate=draco", "attack=sign_flip", "attack.scale=9")


def check_equal(*overrides: str) -> None:
    """An epoch's last batch is uneven, and a schedule follows the batch of the distinct samples."""
    plain = summary("hardware.workers=2", *overrides)
    coded = summary("hardware.workers=6", *CODED, *overrides)
    assert coded["model_sha256"] == plain["model_sha256"] and coded["steps"] == plain["steps"]
    assert coded["wire"]["bytes_per_step"] == pytest.approx(coded["predicted"]["bytes_per_step"])
    assert coded["memory"]["buffers"] == coded["predicted"]["memory"]["buffers"]


SCALED = ("schedule=cosine", "schedule.warmup=2", "schedule.scale=linear", "schedule.base_batch=8")


@pytest.mark.slow
def test_with_a_liar_it_is_plain_training_of_as_many_workers_as_there_are_groups_bit_for_bit(here):
    check_equal("hardware=virtual", "sync=bsp", *SCALED)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "dropout"])
def test_so_it_is_on_processes_and_where_layers_draw(here, model):
    text = ("model=gpt", "data=text", "model.dropout=0.2", "data.limit=64", "batch_size=2")
    drawn = text if model == "dropout" else ()
    plain = [each for each in TINY if not (drawn and each.startswith("model."))]
    sums = []
    for more in (("hardware.workers=2",), ("hardware.workers=6", *CODED)):
        result = run([*plain, "hardware.threads=1", "steps=3", *drawn, *more], quiet=True)
        assert result is not None
        sums.append(result.summary["model_sha256"])
    assert sums[0] == sums[1]


@pytest.mark.slow
def test_a_parameter_server_does_the_same_with_and_without_a_liar(here):
    asked = ("hardware=virtual", "hardware.workers=6", "sync=parameter_server", *SCALED, "aggregate=draco")
    honest, lied = summary(*asked), summary(*asked, *CODED[1:])
    assert honest["model_sha256"] == lied["model_sha256"]
    plain = summary(*asked[:1], "hardware.workers=2", *asked[2:-1])
    assert honest["loss"] == pytest.approx(plain["loss"], rel=1e-5)  # the schedule goes as far with each batch
    assert lied["wire"]["bytes_per_step"] == pytest.approx(lied["predicted"]["bytes_per_step"])


def test_members_of_a_group_are_dealt_the_same(here):
    parts = assemble(compose([*TINY, "hardware=virtual", "hardware.workers=6", "aggregate=draco"]), ())
    dealt = parts.deal()
    assert dealt.total(0) == 16 and [dealt.size(0, replica) for replica in range(6)] == [8] * 6
    assert torch.equal(dealt.indices(0, 0), dealt.indices(0, 2))
    assert not set(dealt.indices(0, 2).tolist()) & set(dealt.indices(0, 3).tolist())


def test_more_liars_than_it_withstands_end_the_run_and_are_told_of_before(here):
    asked = [*TINY, "hardware=virtual", "hardware.workers=3", "aggregate=draco", "attack=gaussian", "attack.workers=2"]
    assert any("is made for 1 at most" in note for note in prepare(asked).plan().notes)
    with pytest.raises(Exception, match="no 2 of replicas 0 to 2 sent the same in step 0") as ended:
        run(asked, quiet=True)
    assert getattr(ended.value, "exit_code", None) == 6


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("hardware.workers=4",), "aggregate.f=1: groups of .* 3 replicas .* there are 4, .* for 3 or 6 of them"),
        (("hardware.workers=2",), "aggregate.f=1: groups .* for 3 of them"),
        (("aggregate.f=0", "hardware.workers=3"), "aggregate.f=0: must be greater than or equal to 1"),
        (("sync=fedavg", "hardware.workers=3"), "aggregate=draco: compares gradients of the same samples"),
        (("sync=local_sgd", "hardware.workers=3"), "aggregate=draco: compares gradients"),
        (
            ("compress=bf16", "hardware.workers=3"),
            "aggregate=draco: compares gradients of the same samples and weights,",
        ),
        (
            ("sync=parameter_server", "compress=bf16", "hardware.workers=3"),
            "aggregate=draco: compares gradients of the same samples and weights,",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused_by_name(here, overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, "aggregate=draco", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
