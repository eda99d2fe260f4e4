"""Questions that people ask, and what they do."""

import pytest

from paceline.advise.accelerators import search
from paceline.advise.answer import answer, closed_form
from paceline.advise.question import ask

TOKENS = ["data=tokens", "data.context=4096"]


def test_70_billion_parameters_train_on_64_cards_of_80_gb_cut_up_over_all_or_in_stages() -> None:
    """People use ZeRO-3 or FSDP, or stages with tensor parallelism within a host."""
    found = search(closed_form(ask(["model=llama_70b", *TOKENS, "hardware=h100_8", "hardware.hosts=8"], batch=64)))
    fit = {(row.candidate.family, row.candidate.group) for row in found.fit if row.fits}
    assert {("zero", "stage 3"), ("torch_fsdp", "torch_fsdp")} <= fit
    families = {family for family, _ in fit}
    assert "hybrid" in families and not families & {"data_parallel", "torch_ddp", "single"}


@pytest.mark.slow
@pytest.mark.parametrize("card", ["rtx_3090", "rtx_4090"])
def test_lora_of_8_billion_parameters_fits_a_card_of_24_gb(card: str) -> None:
    """People need 16 to 22 GB: frozen matrices in half precision, a sample at a time, layers computed again."""
    large = ["model=llama_8b", "data=tokens", "data.context=1024", f"hardware={card}", "adapt=lora"]
    found = answer(ask(large, batch=16))
    assert found.rows and all("adapt.base" in dict(row.candidate.settings) for row in found.rows)
    for row in found.rows:
        assert 16e9 < row.device < 24e9 and row.seconds is not None


def test_bytes_that_a_plan_does_not_state_are_those_of_the_closed_form() -> None:
    """DeepSpeed's prefetcher decides what it fetches when. ZeRO's paper has 1.5 times the bytes of stage 2."""
    typed = ["model=gpt_1b", "data=tokens", "hardware=a100_8", "strategy=zero", "precision=bf16"]
    sent = {}
    for stage in (2, 3):
        found = answer(ask([*typed, f"strategy.stage={stage}", "strategy.offload=none"], batch=8), top=1)
        [row] = found.rows
        assert row.exact and row.sent is not None and row.unstated == (stage == 3)
        sent[stage] = row.sent
    assert sent[3] == pytest.approx(1.5 * sent[2], rel=0.35)
