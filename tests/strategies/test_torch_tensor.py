"""torch's own tensor parallelism under our meters: against serial training and against strategy=tensor."""

import pytest
from oracles import distance, identical
from whole_runs import trained

from paceline.engine import prepare

pytestmark = [pytest.mark.dist, pytest.mark.slow]

TINY = (
    *("tracking=none", "model.hidden=[16,12]", "batch_size=8", "data.limit=96", "steps=8", "hardware.threads=1"),
    "optimizer.lr=0.05",
)
GPT = (
    *("tracking=none", "model=gpt", "data=text", "data.context=8", "data.limit=64", "batch_size=8", "steps=6"),
    *("model.width=16", "model.n_layer=1", "model.n_head=2", "hardware.threads=1", "optimizer.lr=0.1"),
)
LLAMA = ("model.gated=true", "model.ffn_width=24", "model.rms_norm=true", "model.rotary=100", "model.bias=false")
CASES = {"mlp": TINY, "adam": (*TINY, "optimizer=adam"), "gpt": GPT, "llama": (*GPT, *LLAMA)}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_one_worker_and_sends_and_holds_what_its_plan_says(here, case):
    weights, told = trained(*CASES[case], "strategy=torch_tensor", "hardware.workers=2")
    predicted = told["predicted"]
    assert told["wire"]["bytes_per_step"] == pytest.approx(predicted["bytes_per_step"])
    kinds = ("parameters", "gradients", "optimizer", "buffers")
    assert [told["memory"][kind] for kind in kinds] == [predicted["memory"][kind] for kind in kinds]
    assert told["memory"]["activations"] == predicted["memory"]["activations"]
    alone, _ = trained(*CASES[case], "strategy=single")
    assert distance(weights, alone) < 1e-5


def test_a_resumed_run_is_the_same_bits(here):
    overrides = (*CASES["adam"], "strategy=torch_tensor", "hardware.workers=2")
    whole, _ = trained(*overrides)
    trained(*overrides, "steps=4", "checkpoint.every_steps=4", name="half")
    assert identical(trained("steps=8", resume="half")[0], whole)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("hardware.workers=4",), "strategy=torch_tensor takes at most 2"),
        (("hardware=virtual",), "strategy=torch_tensor talks to torch's own process groups"),
        (("sync=local_sgd",), "sync=bsp"),
        (("model.hidden=[15,12]",), "15 outputs of the layer .* cannot be cut into 2"),
    ],
)
def test_what_it_does_not_do_is_refused(overrides, says):
    given = [each for each in TINY if "threads" not in each]
    with pytest.raises(ValueError, match=says):
        prepare([*given, "strategy=torch_tensor", *overrides]).plan()
