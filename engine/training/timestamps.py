"""The times at which evaluated weights existed, in seconds of training.

An evaluation has a score and a timestamp. The timestamp is the time when the last of the workers whose updates are in
the weights had finished these updates.

- Replicas that step together: when all whose weights enter the consensus were through the step. That is replica 0 alone
  where replicas agree, and all of them where the consensus is their mean.
- Replicas at their own paces, while training goes on: the consensus is what replica 0 had of it, and nothing can have
  come to replica 0 that did not exist yet. So it is the moment at which replica 0 copied it. What it was sent outside
  training's time carries its own timestamp (`SyncWithServers.made_at`).
- Replicas at their own paces, at the end: when the last server changed the weights; without servers, when the last
  worker's last step was over.

Workers tell each other over the board, outside training.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from ...comm.key_values import KeyValues
from ...strategies.core.sync import Sync
from ...strategies.core.with_servers import SyncWithServers
from ..fabrics.layout import RunLayout
from .meters import Meter

ReadOfLiving = Callable[[str, Iterable[int]], list[Any]]  # (key, ranks): what those of them who live posted


class Timestamps:
    """One worker's or server's part in dating what is evaluated. The chief's answers count, the others' do not."""

    def __init__(self, key_values: KeyValues, rank: int, layout: RunLayout, sync: Sync, read: ReadOfLiving) -> None:
        self._key_values, self._rank, self._layout, self._sync, self._read = key_values, rank, layout, sync, read

    def of_step(self, done: int, meter: Meter) -> float:
        """Returns the time of the consensus after step `done`, of replicas that step together; all workers call
        this.
        """
        layout = self._layout
        ranks = range(layout.parts if self._sync.traits.weights_agree else layout.workers)
        return self._latest(f"evaluated/{done}", ranks, meter.seconds)

    def of_snapshot(self, done: int, meter: Meter, moment: float) -> float:
        """Returns the time of the weights that replica 0 copied at `moment`, on the fabric's clock; its parts call
        this.
        """
        known = max(moment, self._sync.made_at) if isinstance(self._sync, SyncWithServers) else moment
        return meter.at(self._latest(f"copied/{done}", range(self._layout.parts), known))

    def tell_end(self, moment: float) -> None:
        """Posts, on every worker and server once it trains no more, when its last step was over or its weights last
        changed.
        """
        self._post("trained_until", moment)

    def of_end(self, meter: Meter) -> float:
        """Returns the time of the consensus with which asynchronous training ended; on the chief."""
        layout = self._layout
        ranks = range(layout.workers, layout.world_size) if layout.servers else range(layout.workers)
        return meter.at(max(self._read("trained_until", ranks)))

    def _latest(self, key: str, ranks: range, own: float) -> float:
        if len(ranks) == 1:
            return own
        if self._rank in ranks:
            self._post(key, own)
        return max(self._read(key, ranks)) if self._rank == self._layout.chief else own

    def _post(self, key: str, value: float) -> None:
        self._key_values.post(f"{key}/{self._rank}", json.dumps(value))
