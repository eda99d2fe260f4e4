"""Random numbers of a sample: they follow from what they are for and its number, whoever holds it, in whichever batch.

So a serial run and one of several workers begin their attacks on a sample from the same place, as does a resumed run,
and no other random number of a run is another one for it.

A counter through the finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number
Generators", OOPSLA), twice: by sample, then by entry. torch's int64 wraps around as the uint64 of the paper does.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as int64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def uniform(samples: Tensor, shape: Sequence[int], *told: object) -> Tensor:
    """Returns draws from [0, 1), float32 [n, *shape], for the samples of these numbers, int64 [n]. `told`: their
    purpose.
    """
    text = "/".join(map(str, told))
    key = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)
    entries = torch.arange(math.prod(shape), device=samples.device)
    of_sample = _mixed(samples * _GOLDEN + key)
    bits = _mixed(of_sample.unsqueeze(1) + (entries + 1) * _GOLDEN)
    return (_shifted(bits, 40).float() / 2**24).view(len(samples), *shape)


def normal(samples: Tensor, shape: Sequence[int], *told: object) -> Tensor:
    """Returns draws of mean 0 and variance 1, float32 [n, *shape]: Box and Muller 1958."""
    u, v = (uniform(samples, shape, *told, which).double() for which in ("radius", "angle"))
    return ((-2 * torch.log1p(-u)).sqrt() * (2 * math.pi * v).cos()).float()


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits, with zeros on the left."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
