"""Digests by which workers find out whether they have the same, and where they do not."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..comm import Comm

ROW = 1021
DIGITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_compared(number: int) -> bool:
    """Returns True for the steps, or the batches of a pass, counted from 1, at which workers compare digests."""
    return number & (number - 1) == 0


def agree(mine: int, comm: Comm, device: torch.device) -> bool:
    """Returns True if all workers have this number."""
    with comm.ledger.aside():
        every = comm.all_gather(torch.tensor([mine], dtype=torch.int64, device=device))
    return bool((every == mine).all())


def first_apart(digests: Mapping[str, int], comm: Comm, device: torch.device, parts: int = 1) -> tuple[str, int] | None:
    """Returns the first name whose digest another worker has otherwise, and that worker's rank; None if there is none.

    All workers call.

    Args:
        parts: Workers of a replica. Each worker is compared with the one of replica 0 that holds the same part.
    """
    part, all_of_mine = comm.rank % parts, digest(hashlib.blake2b(), [*map(str, digests.values())])
    with comm.ledger.aside():
        told = torch.tensor([all_of_mine, len(digests)], dtype=torch.int64, device=device)
        sums, counts = comm.all_gather(told).cpu().T
        if all((sums[first::parts] == sums[first]).all() for first in range(min(parts, len(sums)))):
            return None
        padded = [*digests.values(), *[0] * (int(counts.max()) - len(digests))]
        every = comm.all_gather(torch.tensor(padded, dtype=torch.int64, device=device)).cpu()[part::parts]
    for name, column in zip(digests, every.T.tolist(), strict=False):
        if other := first_other(column):
            return name, part + other * parts
    return None


def first_other(numbers: Sequence[int]) -> int:
    """Returns the first place whose number is not that of place 0; 0 if there is none."""
    return next((i for i, each in enumerate(numbers) if each != numbers[0]), 0)


def digest(state: "hashlib.blake2b", parts: Sequence[str]) -> int:
    """Adds `parts` to the state, and returns 63 bits of its digest."""
    state.update("\0".join([*parts, ""]).encode())
    return int.from_bytes(state.digest()[:8], "big") >> 1


def digest_of(tensor: Tensor | None) -> int:
    """Returns a sum of the bits as whole numbers, each weighted by its place in a row of `ROW`: the same for the same
    tensor, and another one for the same entries in another order.
    """
    if tensor is None:
        return 0
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    bits = dense.contiguous().view(-1).view(DIGITS[min(dense.element_size(), 8)])
    whole = len(bits) - len(bits) % ROW
    sums = bits[:whole].view(-1, ROW).sum(dim=0, dtype=torch.int64)
    sums[: len(bits) - whole] += bits[whole:]
    return int((sums * torch.arange(1, ROW + 1, device=sums.device)).sum())


def give_all(tensors: Iterable[Tensor], comm: Comm, device: torch.device) -> None:
    """Worker 0 broadcasts its tensors, which may be of any dtype and on the host. `device`: of the fabric."""
    with torch.no_grad():
        for each in tensors:
            if each.numel() > 0:
                flat = each.detach().contiguous().view(-1).view(torch.uint8).to(device)  # gloo knows not all dtypes
                comm.broadcast(flat, src=0).wait()
                if flat.data_ptr() != each.data_ptr():  # else the broadcast has written to `each`
                    each.copy_(flat.to(each.device).view(each.dtype).view(each.shape))
