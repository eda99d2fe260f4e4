"""Whole runs of a GPT over tensor-parallel workers: bytes and memory as planned, evaluated, resumed to the bit."""

import pytest
from oracles import distance, identical
from whole_runs import trained

from paceline.engine import prepare

pytestmark = [pytest.mark.dist, pytest.mark.slow]

TINY = (
    *("tracking=none", "model=gpt", "data=text", "data.context=8", "data.limit=64", "batch_size=8", "steps=6"),
    *("model.width=16", "model.n_layer=1", "model.n_head=2", "hardware.threads=1", "optimizer.lr=0.1"),
)
TENSOR = (*TINY, "strategy=tensor", "hardware.workers=2")
WAYS = {
    "plain": (),
    "vocabulary whole": ("strategy.vocabulary=false",),
    "sequence": ("strategy.sequence=true",),
    "sequence, dropout": ("strategy.sequence=true", "model.dropout=0.2"),
    "tied": ("model.tied=true", "strategy.sequence=true"),
    "recompute": ("model.recompute=true",),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_sends_and_holds_what_its_plan_says(here, way):
    weights, told = trained(*TENSOR, *WAYS[way])
    predicted = told["predicted"]
    assert told["wire"]["bytes_per_step"] == pytest.approx(predicted["bytes_per_step"])
    assert {kind: told["memory"][kind] for kind in predicted["memory"]} == predicted["memory"]
    if "dropout" not in way:
        dense = [each for each in WAYS[way] if each.startswith("model.")]
        alone, of_one = trained(*TINY, "strategy=single", *dense)
        assert distance(weights, alone) < 1e-6
        assert told["accuracy"] == pytest.approx(of_one["accuracy"], abs=0.02)


@pytest.mark.parametrize("way", ["plain", "sequence, dropout"])
def test_a_resumed_run_is_the_same_bits(here, way):
    whole, _ = trained(*TENSOR, *WAYS[way])
    trained(*TENSOR, *WAYS[way], "steps=3", "checkpoint.every_steps=3", name="half")
    assert identical(trained("steps=6", resume="half")[0], whole)


def test_slices_keep_fewer_activations():
    deep = (*TENSOR, "model.width=64", "model.n_layer=4")
    plain, sliced = (prepare([*deep, *more]).plan().peak_memory() for more in ((), WAYS["sequence"]))
    assert sliced["activations"] < 0.8 * plain["activations"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("strategy.sequence=true", "data.context=9"), "sequence of 9 cannot be cut into 2 .*. Choose 8 or 10 places"),
        (("strategy.vocabulary=true", "task=hinge"), "for the mean cross-entropy alone, task=cross_entropy"),
        (("strategy.plan={block9.mlp.expand: column}",), "no such layer; did you mean block1.mlp.expand"),
        (("strategy.plan={block1.norm1: row}",), "block1.norm1 is of class LayerNorm, and must be an nn.Linear"),
        (("strategy.plan={block1.mlp.expand: rows}",), r"strategy.plan.block1.mlp.expand.*'column', 'row'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_cut_is_refused_before_anything_starts(overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TENSOR, *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
