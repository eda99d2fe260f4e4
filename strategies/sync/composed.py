"""Composed: a step of each replica's own, and then the exchanges of several sync modes, each at its own period.

Replica i has weights w_i. The parts are sync modes whose exchanges are maps E_1, ..., E_n of the weights of all
replicas, such as the mean every H steps. A step is

    w_i <- step(w_i, g_i(w_i)),      w <- E_1(w),   ...,   w <- E_n(w).

In a step in which several parts exchange, they do so in the order in which they are listed, each from the weights that
the part before it left. Each part counts its own rounds.

The last part is the outermost one. The consensus is the last part's, so it is this part that an average of weights goes
by, and that ends training. Rounds of the other parts that are not over then are dropped.

*SPARTA inside DiLoCo* (Beton et al. 2025, "Improving the Efficiency of Distributed Training using Sparse Parameter
Averaging", ICLR workshop on modularity for collaborative, decentralized and continual deep learning) is sparta, then
diloco: a random share of the weights is averaged after each step, which keeps replicas near each other, and every H
steps there is an outer step. The authors' code has the same order, with p = 0.005 and H = 100.

Deviations from the paper: the draws of sync=sparta and the weighted mean of sync=diloco are used as they are.

One part alone is that mode, bit for bit. sparta with share 1 inside any mode makes replicas equal before its exchange.

Cost per step: the sum of what the parts send. Buffers: the sum of theirs. The weights are held once.

Use it to keep replicas of a mode with long rounds near each other with a few bytes in each step, or to let neighbours
mix often, with a mean of all replicas now and then. `sync=A+B` composes any two modes, and more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.errors import ConfigError, of_part
from ...conf.notes import Note
from ...exchange.clip import Clip
from ...exchange.flat import flatten, vector_of_views
from ..core.batch import Batch
from ..core.cost import Transfers, World
from ..core.local_steps import LocalSteps
from ..core.protocols import (
    ChecksModel,
    HasRate,
    KeepsGradients,
    MeasuresMemory,
    Prunable,
    SharesSteps,
    StatesMemory,
)
from ..core.setting import Setting
from ..core.state import State
from ..core.sync import Measures, SyncTraits
from ..core.terms import SYNC_AVERAGED, Need, Term, lacks_of, needs_of

# What only a whole mode can be asked
OF_WHOLE_MODES = ChecksModel, HasRate, KeepsGradients, MeasuresMemory, Prunable, SharesSteps, StatesMemory
FIRST_TEXTS = "whole_replica", "over_parts", "one_rate", "one_scale"  # traits: the first part that has one says it


class Composed(LocalSteps):
    """Replicas step together. What else holds follows from the parts."""

    def __init__(self, parts: Mapping[str, LocalSteps], clip: Clip | None = None) -> None:
        """Composes the parts.

        Args:
            parts: by name, in the order of their exchanges.
            clip: of a replica's own gradient; None for none.

        Raises `ConfigError`.
        """
        self.modes, self.clip = dict(parts), clip
        for name, part in self.modes.items():
            if part.traits.steps_together:
                raise ConfigError(
                    f"sync.parts.{name}: its first steps exchange gradients, and a part exchanges weights. Choose "
                    f"sync.parts.{name}.switch_step=0, or another part."
                )
            if found := next((each for each in OF_WHOLE_MODES if isinstance(part, each)), None):
                raise ConfigError(
                    f"sync.parts.{name}: is {found.__name__}, which a part is not asked. Choose another part."
                )
        *_, self._last = self.modes.values()
        self.period = max(part.period for part in self.modes.values())  # of the longest rounds
        self.traits = self._traits()

    def _traits(self) -> SyncTraits:
        each = [part.traits for part in self.modes.values()]
        texts = {name: next(filter(None, (getattr(one, name) for one in each)), "") for name in FIRST_TEXTS}
        return replace(
            self._last.traits,
            survives=all(one.survives for one in each),
            exact=all(one.exact for one in each),
            serial_alone=all(one.serial_alone for one in each),
            state_agrees=all(one.state_agrees for one in each),
            entrywise=all(one.entrywise for one in each),
            may_begin_anew=all(one.may_begin_anew for one in each),
            hooked=all(one.hooked for one in each),
            drops_writes=any(one.drops_writes for one in each),
            sends_changes=any(one.sends_changes for one in each),
            requires=(),
            **texts,
        )

    @property
    def lacks(self) -> Mapping[Term, str]:
        lacking = {term: words for part in self.modes.values() for term, words in lacks_of(part).items()}
        lacking.pop(SYNC_AVERAGED, None)  # the last part says that
        return {**lacking, **super().lacks}

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(
            replace(need, key=_of_part(name, need.key), instead=_of_part(name, need.instead))
            for name, part in self.modes.items()
            for need in needs_of(part)
        )

    def configure(self, setting: Setting) -> None:
        super().configure(setting)
        for part in self.modes.values():
            part.configure(setting)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        for part in self.modes.values():
            part.check_optimizer(optimizer)

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        weights = flatten(parameters.values())  # the parts flatten them likewise, to the same memory
        for name, part in self.modes.items():
            part.prepare(parameters, optimizer, comm)
            held = vector_of_views([*parameters.values()])
            if held is None or held.data_ptr() != weights.data_ptr():
                raise ConfigError(
                    f"sync.parts.{name}: moves the weights to other memory, where the parts before it do not look. "
                    "Keep them in the vector of `flatten`, in the order of the parameters"
                )

    # -- steps

    def begin(self, batch: Batch) -> None:
        for part in self.modes.values():
            part.begin(batch)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        for part in self.modes.values():
            part.before_backward(roots, last)

    def exchange_weights(self) -> None:
        for part in self.modes.values():
            part.exchange_weights()

    def finish(self) -> None:
        self._last.finish()

    def consensus(self) -> dict[str, Tensor]:
        return self._last.consensus()

    # -- state and measures

    def state_dict(self) -> State:
        """The optimizer's state is kept once."""
        own = super().state_dict()
        of_parts = {name: part.state_dict() for name, part in self.modes.items()}
        return {**own, "parts": {name: _without(each, own) for name, each in of_parts.items()}}

    def load_state_dict(self, state: State) -> None:
        own = _without(state, {"parts"})
        super().load_state_dict(own)
        for name, part in self.modes.items():
            part.load_state_dict({**own, **state["parts"][name]})

    def buffers(self) -> list[Tensor]:
        return [buffer for part in self.modes.values() for buffer in part.buffers()]

    def report(self) -> Measures:
        found: Measures = {}
        for part in self.modes.values():
            found |= part.report()
        return found

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        told = ((name, each) for name, part in self.modes.items() for each in part.notes(parameters, world))
        return [*dict.fromkeys(_told(told))]

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        each = {name: part.transfers(parameters, world) for name, part in self.modes.items()}
        stragglers = (_of_part(name, one.unpredicted_stragglers) for name, one in each.items())
        return Transfers(
            [transfer for one in each.values() for transfer in one.sent],
            sum(one.buffers for one in each.values()),
            next(_told((name, one.varies) for name, one in each.items()), ""),
            next(_told((name, one.unpredicted) for name, one in each.items()), ""),
            next(filter(None, stragglers), ""),
        )


def _told(texts: Iterator[tuple[str, Note | str]]) -> Iterator[Note | str]:
    for name, said in texts:
        if said:
            yield _of_part(name, said) if isinstance(said, str) else replace(said, text=_of_part(name, said.text))


def _of_part(name: str, text: str) -> str:
    """Returns a part's own words with the full keys of its knobs."""
    return of_part(text, f"sync.parts.{name}")


def _without(state: State, keys: Mapping[str, object] | set[str]) -> State:
    return {key: value for key, value in state.items() if key not in keys}
