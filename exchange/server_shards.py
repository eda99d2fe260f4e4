"""Each server's shard of the parameters."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from ..conf.errors import ConfigError
from ..strategies.core.balance import balanced
from ..strategies.core.cost import Memory, kept_of, payload

T = TypeVar("T", bound=Tensor)


def shards_of(parameters: Sequence[T], servers: int) -> list[list[T]]:
    """Each server's shard, a contiguous run of whole parameters, the one of most bytes as light as can be.

    Raises `ConfigError` when there are fewer parameters than servers.
    """
    if servers > len(parameters):
        raise ConfigError(
            f"sync.servers={servers}: each server takes whole parameters, and there are {len(parameters)}. "
            f"Choose sync.servers <= {len(parameters)}."
        )
    cuts = balanced([payload([parameter]) for parameter in parameters], servers)
    return [list(parameters[a:b]) for a, b in pairwise([0, *cuts, len(parameters)])]


def held_by_servers(held: Memory, shards: Sequence[Sequence[Tensor]], vectors: int, more: int = 0) -> Memory:
    """Stated peak bytes of the server of the largest shard, where `held` is what one of a whole part takes: so many
    vectors of the shard's size in buffers, and `more` bytes.
    """
    entry, tensor = kept_of(held["optimizer"], [each for shard in shards for each in shard])
    states = [entry * sum(each.numel() for each in shard) + tensor * len(shard) for shard in shards]
    state = held["optimizer"] if len(shards) == 1 else max(states)
    return {**held, "optimizer": state, "buffers": vectors * max(map(payload, shards)) + more}
