"""Each compressor passes the checks of paceline.testing. Numbers that a rule never sends are refused by one error."""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor

from paceline.exchange.compress import (
    DGC,
    QSGD,
    Atomo,
    Compressor,
    DeMo,
    Dense,
    EFSignSGD,
    Masked,
    OneBit,
    PowerSGD,
    RandomK,
    SignSGD,
    Slot,
    SparseLoCo,
    TernGrad,
    Threshold,
    TopK,
    UnreadableError,
    Vector,
    WireBFloat16,
    WireFloat16,
)
from paceline.testing import check_compressor
from paceline.testing.compressors import SHAPES

RULES: dict[str, Compressor] = {
    "atomo": Atomo(triples=2),
    "bf16": WireBFloat16(),
    "demo": DeMo(k=8),
    "dgc": DGC(0.1),
    "dgc, warming up": DGC(0.01, warmup=8),
    "ef_signsgd": EFSignSGD(),
    "fp16": WireFloat16(),
    "onebit": OneBit(),
    "powersgd": PowerSGD(rank=2),
    "qsgd": QSGD(),
    "qsgd of 2 bits": QSGD(bits=2, bucket=7),
    "randomk": RandomK(ratio=0.3),
    "signsgd": SignSGD(),
    "sparseloco": SparseLoCo(ratio=0.1, chunk=64),
    "sparseloco, values": SparseLoCo(ratio=0.1, chunk=64, quantize=False),
    "sparseloco, all": SparseLoCo(ratio=1, quantize=False),
    "terngrad": TernGrad(),
    "threshold": Threshold(),
    "topk": TopK(0.1),
}
CHECKED = {
    **RULES,
    "bf16, with feedback": WireBFloat16(error_feedback=True),
    "masked": Masked(),
    "none": Dense(),
    "powersgd, without feedback": PowerSGD(error_feedback=False),
    "randomk, unbiased": RandomK(error_feedback=False),
    "topk, all": TopK(1.0),
}
SEND_NANS = ("dgc", "dgc, warming up", "randomk", "threshold", "topk")  # as they are: no other entry sees them
OF_CODES = (
    "ef_signsgd",
    "onebit",
    "signsgd",
    "qsgd",
    "qsgd of 2 bits",
    "sparseloco",
    "terngrad",
)  # any byte may be one


def message_of(rule: Compressor, vector: Vector) -> Tensor:
    x = torch.randn(vector.n, generator=torch.Generator().manual_seed(1)).to(vector.dtype)
    return rule.encode(x, Slot("x", vector, 0, 2)).view(torch.uint8)


@pytest.mark.budget(3)
@pytest.mark.parametrize("name", CHECKED)
def test_a_rule_passes_the_checks_of_a_class_of_ones_own(name: str) -> None:
    """Among them: whatever bytes come, they are a vector or unreadable."""
    assert len(check_compressor(partial(copy.deepcopy, CHECKED[name]))) >= 7


@pytest.mark.parametrize("name", [name for name in RULES if name not in SEND_NANS])
def test_numbers_that_a_rule_never_sends_are_refused(name: str) -> None:
    rule, vector = RULES[name], Vector(SHAPES, torch.float32)
    message, read = message_of(rule, vector), 0
    for at in range(0 if name in OF_CODES else len(message) % 4, len(message) - 3, 4):
        wrong = message.clone()
        wrong[at : at + 4] = torch.tensor([torch.nan]).view(torch.uint8)
        try:
            told = f"{name}: a NaN at byte {at} of a message was decoded. Let decode raise UnreadableError"
            assert bool(rule.decode(wrong, vector).isfinite().all()), f"{told}, or add it to SEND_NANS."
            read += 1
        except UnreadableError:
            continue
    assert read == 0 or name in OF_CODES, (
        f"{name}: {read} messages with the bytes of a NaN were decoded. Add the rule to OF_CODES if any byte is a "
        "valid code. Otherwise let decode raise UnreadableError."
    )
