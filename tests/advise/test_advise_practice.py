"""Questions that people ask, and what they do."""

import pytest

from paceline.advise.accelerators import search
from paceline.advise.answer import answer, closed_form
from paceline.advise.question import ask
from paceline.advise.ranking import ranked


def gpt(layers: int, width: int, heads: int, vocabulary: int, context: int) -> list[str]:
    shape = [f"model.n_layer={layers}", f"model.width={width}", f"model.n_head={heads}", f"model.context={context}"]
    data = ["data=tokens", f"data.vocabulary={vocabulary}", f"data.context={context}"]
    return ["model=gpt", *shape, f"model.vocabulary={vocabulary}", *data]


def test_70_billion_parameters_train_on_64_cards_of_80_gb_cut_up_over_all_or_in_stages() -> None:
    """People use ZeRO-3 or FSDP, or stages of 8 with tensor parallelism within a host."""
    model = gpt(80, 8192, 64, 128256, 4096)
    found = search(closed_form(ask([*model, "model.n_kv_head=8", "hardware=h100_8", "hardware.hosts=8"], batch=256)))
    fit = {(row.candidate.family, row.candidate.group) for row in found.fit if row.fits}
    assert {("zero", "stage 3"), ("torch_fsdp", "torch_fsdp")} <= fit
    assert {"hybrid"} <= {family for family, _ in fit} and "data_parallel" not in {family for family, _ in fit}


@pytest.mark.slow
def test_lora_of_7_billion_parameters_fits_a_card_of_24_gb() -> None:
    """People need 13 to 20 GB: frozen matrices in half precision, a sample or two at a time."""
    large = ["hardware=a10g", "hardware.machine.host_memory=64000000000", "adapt=lora"]
    found = answer(ask([*gpt(32, 4096, 32, 32000, 1024), *large], batch=16))
    assert found.rows and all("adapt.base" in dict(row.candidate.settings) for row in found.rows)
    for row in ranked(found.rows, "time"):
        assert 13e9 < row.device < 20e9 and row.seconds is not None
