"""The update of a stage whose schedule has no flush: it comes when the schedule says so, not at the end of a step.

With several replicas a stage's gradients are averaged over them before each update, as sync=bsp does it. Other sync
modes have a say in every step, and would meet here a stage whose last batch is still under way.

Between a forward pass and its backward pass come updates. So the newest weights move to other memory before they are
updated, if their version is still read; a pass finds in the parameters the version that it reads.

Cost per update: that of sync=bsp. Memory: each version but the newest is a copy of the weights that are trained.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...compat.storages import unseen_writes
from ..core.batch import Batch
from ..core.cost import Transfers, World, payload
from ..core.state import State
from ..core.sync import Measures, Sync, SyncTraits
from ..schedules import scaled
from ..sync.bsp import BSP


class Updates(Sync):
    """BSP, once for each batch, at a time of the schedule's."""

    traits = SyncTraits(
        exact=False,  # gradients are of older weights
        serial_alone=False,
        one_scale="with a schedule without a flush steps while other batches are under way, whose gradients have the "
        "scale of before",
        unaveraged="has stages of different steps after each step",
        shows_gradients=False,
    )

    def __init__(self) -> None:
        self._bsp = BSP()

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._bsp.prepare(parameters, optimizer, comm)
        self._trained = list(parameters.values())
        self._batches: deque[tuple[Batch, float]] = deque()  # without their update, and the factors of their rates
        self._factor = 1.0  # of the batch that begins next
        self._has_begun = False  # the first of these is in its backward passes
        self.newest = 0  # the version of the parameters
        self._older: dict[int, list[Tensor]] = {}
        self.most_older = 0  # bytes of older versions, at most

    # -- what the loop calls

    @contextmanager
    def at_rate(self, factor: float) -> Iterator[None]:
        """The update of the batch that begins within it, which comes later."""
        self._factor = factor
        yield

    def begin(self, batch: Batch) -> None:
        """Notes the batch, whose gradients come later."""
        self._batches.append((Batch(batch.targets, batch.targets, batch.total), self._factor))

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        self._begin_first()
        self._bsp.before_backward(roots, last)

    def _begin_first(self) -> None:
        if not self._has_begun:
            self._bsp.begin(self._batches[0][0])
            self._has_begun = True

    def update(self) -> None:
        """The schedule has done so."""

    # -- what the schedule calls

    @contextmanager
    def reading(self, version: int) -> Iterator[None]:
        """Puts the parameters of this version in place, within the context."""
        if version == self.newest:
            yield
            return
        newest = self._exchange(self._older[version])
        try:
            yield
        finally:
            self._exchange(newest)

    def _exchange(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        before = [weight.data for weight in self._trained]
        for weight, tensor in zip(self._trained, tensors, strict=True):
            weight.data = tensor
        return before

    def apply(self, oldest: int) -> None:
        """W(t+1) = W(t) - eta g, of the first batch; versions before `oldest` are no longer read."""
        self._begin_first()
        self._older = {version: kept for version, kept in self._older.items() if version >= oldest}
        if oldest <= self.newest:
            self._older[self.newest] = self._exchange([weight.data.clone() for weight in self._trained])
        self.most_older = max(self.most_older, len(self._older) * payload(self._trained))
        _, factor = self._batches.popleft()
        with unseen_writes(self._trained), scaled([self.optimizer], factor):
            self._bsp.update()
        self.newest += 1
        self._has_begun = False

    def restart(self) -> None:
        """Counts versions from 0 again, while nothing is under way."""
        assert not self._batches, "a batch is without its update"
        self._older.clear()
        self.newest = 0

    # -- the rest is BSP's

    def state_dict(self) -> State:
        return self._bsp.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._bsp.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return self._bsp.buffers()

    def report(self) -> Measures:
        return self._bsp.report()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return replace(
            self._bsp.transfers(parameters, world), unpredicted="how long updates in mid-schedule take was not measured"
        )
