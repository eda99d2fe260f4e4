"""Frozen matrices in 8 or 4 bits an entry, as adapt.base of LoRA has them. Passes widen one layer's at a time.

    int8    a row has a scale s = max |w| / 127, and q = round(w / s)                        8 + 32 / in bits
    nf4     blocks of 64 entries have their largest |w|, and q is the nearest of 16 quantiles of a normal distribution
            to w over it; these are held in 8 bits, in blocks of 256                         4 + 8/64 + 32/(64 256) bits

Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs" (arXiv 2305.14314), section 3: NormalFloat of 4
bits and double quantization, 4.127 bits an entry. bitsandbytes rounds to nf4 and widens it; int8 is plain torch. On the
meta device there are the shapes alone, so that a plan needs no package.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from math import ceil
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...conf.errors import ConfigError

BLOCK, BLOCK_OF_SCALES = 64, 256  # of nf4


class MissingBitsandbytesError(ConfigError):
    """bitsandbytes is not installed."""

    exit_code = 3


class NarrowBase(Protocol):
    """A way to hold a matrix. `names`: of the tensors that hold it."""

    names: ClassVar[tuple[str, ...]]

    def packed(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Returns the tensors of a matrix, in the order of `names`."""
        ...

    def widened(self, held: Sequence[Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Returns the matrix of these tensors."""
        ...


class Int8Base:
    names: ClassVar[tuple[str, ...]] = ("packed", "scales")

    def packed(self, weight: Tensor) -> tuple[Tensor, ...]:
        largest = weight.float().abs().amax(1, keepdim=True)
        scales = torch.where(largest > 0, largest / 127, 1.0)
        return (weight / scales).round().to(torch.int8), scales

    def widened(self, held: Sequence[Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        packed, scales = held
        return packed.to(dtype) * scales.to(dtype)


class NF4Base:
    names: ClassVar[tuple[str, ...]] = ("packed", "scales", "scales_of_scales", "offset")

    def packed(self, weight: Tensor) -> tuple[Tensor, ...]:
        if weight.is_meta:
            blocks = ceil(weight.numel() / BLOCK)
            bytes_of = (torch.empty(ceil(weight.numel() / 2), 1), torch.empty(blocks))
            return (
                *(each.to("meta", torch.uint8) for each in bytes_of),
                torch.empty(ceil(blocks / BLOCK_OF_SCALES), device="meta"),
                torch.empty((), device="meta"),
            )
        functional = _bitsandbytes()
        packed, state = functional.quantize_4bit(
            weight.float().contiguous(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
        )
        return packed, state.absmax, state.state2.absmax, state.offset

    def widened(self, held: Sequence[Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        packed, scales, scales_of_scales, offset = held
        if packed.is_meta:
            return torch.empty(shape, dtype=dtype, device="meta")
        functional, device = _bitsandbytes(), packed.device
        of_scales = functional.QuantState(
            absmax=scales_of_scales,
            code=functional.create_dynamic_map().to(device),
            blocksize=BLOCK_OF_SCALES,
            dtype=torch.float32,
        )
        state = functional.QuantState(
            absmax=scales,
            shape=torch.Size(shape),
            code=functional.get_4bit_type("nf4", device=device),
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=torch.float32,
            offset=offset,
            state2=of_scales,
        )
        return functional.dequantize_4bit(packed, state).to(dtype)


BASES: dict[str, NarrowBase] = {"int8": Int8Base(), "nf4": NF4Base()}


def check_there(base: str) -> None:
    """Raises `MissingBitsandbytesError` where a base needs bitsandbytes, and it is not installed."""
    if base == "nf4" and find_spec("bitsandbytes") is None:
        raise MissingBitsandbytesError(
            "adapt.base=nf4: bitsandbytes, which rounds to it, is not installed: pip install 'paceline[quantized]'. "
            "Choose adapt.base=int8 without it."
        )


def _bitsandbytes() -> Any:
    check_there("nf4")
    from bitsandbytes import functional  # pyright: ignore[reportMissingImports]

    return functional


class NarrowLinear(torch.autograd.Function):
    """x W^T + b, where W is held in few bits and widened in each pass. Only what holds it is kept for backward."""

    generate_vmap_rule = True  # privacy=dp_sgd takes each sample's gradient by torch.func

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        x: Tensor, bias: Tensor | None, base: NarrowBase, shape: tuple[int, int], *held: Tensor
    ) -> Tensor:
        return F.linear(x, base.widened(held, shape, x.dtype), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.base, ctx.shape, *held = inputs
        ctx.save_for_backward(*held)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        held = ctx.saved_tensors  # which a checkpointed layer gives once
        return gradient @ ctx.base.widened(held, ctx.shape, gradient.dtype), None, None, None, *[None] * len(held)
