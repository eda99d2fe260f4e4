"""Messages that a peer should not have sent: what a rule could have made is read, all else refused by one error."""

import pytest
import torch
from torch import Tensor

from paceline.exchange.compress import (
    DGC,
    QSGD,
    Atomo,
    Compressor,
    DeMo,
    EFSignSGD,
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
SHAPES = ((13, 17), (13,), (3, 4, 2), (5,))


def message_of(rule: Compressor, vector: Vector) -> Tensor:
    x = torch.randn(vector.n, generator=torch.Generator().manual_seed(1)).to(vector.dtype)
    return rule.encode(x, Slot("x", vector, 0, 2)).view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", RULES)
def test_whatever_bytes_come_they_are_a_vector_or_unreadable(name: str, dtype: torch.dtype) -> None:
    rule, vector, draws = RULES[name], Vector(SHAPES, dtype), torch.Generator().manual_seed(2)
    right = message_of(rule, vector)
    for attempt in range(25):
        length = len(right) + (0, 0, 0, -7, 5)[attempt % 5]
        wrong = torch.randint(0, 256, (length,), dtype=torch.uint8, generator=draws)
        if attempt % 5 == 1:  # but for one byte it is right
            at = int(torch.randint(0, length, (), generator=draws))
            wrong = torch.cat([right[:at], wrong[at : at + 1], right[at + 1 :]])
        try:
            read = rule.decode(wrong, vector)
        except UnreadableError:
            continue
        assert read.shape == (vector.n,) and read.dtype == dtype


@pytest.mark.parametrize("name", [name for name in RULES if name not in SEND_NANS])
def test_numbers_that_a_rule_never_sends_are_refused(name: str) -> None:
    rule, vector = RULES[name], Vector(SHAPES, torch.float32)
    message, read = message_of(rule, vector), 0
    for at in range(0 if name in OF_CODES else len(message) % 4, len(message) - 3, 4):
        wrong = message.clone()
        wrong[at : at + 4] = torch.tensor([torch.nan]).view(torch.uint8)
        try:
            assert bool(rule.decode(wrong, vector).isfinite().all()), f"a NaN at byte {at} was read"
            read += 1
        except UnreadableError:
            continue
    assert read == 0 or name in OF_CODES
