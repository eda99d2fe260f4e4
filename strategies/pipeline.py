"""Layers split over stages, which work on micro-batches in the order of a schedule.

Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (arXiv 1811.06965),
and those named in pipelining/schedules.py, which says what each schedule does.

The model, an `nn.Sequential`, is cut into p contiguous stages, or p v of them where each worker has v chunks: stage s
is on worker s % p. A batch is cut into m micro-batches. Every schedule ends with a flush: all gradients are there
before the update. So each equals gradient accumulation over the same micro-batches bit for bit, and naive, whose m is
1, serial training. With `recompute` a stage keeps only its inputs, and computes its passes again for backward; zb_h1
does so twice, for the gradients of the inputs and for those of the weights.

Cost per step: where a stage and the next one are on different workers, the output goes forward, and its gradient comes
back: for each micro-batch |output| from the one, and as much from the other.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from ..comm import Comm
from .balance import balanced
from .base import (
    Batch,
    BeforeBackward,
    Loss,
    MessageTime,
    Pass,
    PassTime,
    Strategy,
    TimeOf,
    Traffic,
    layers_of,
    payload,
)
from .errors import LayoutError
from .pipelining.actions import Action, Schedule
from .pipelining.check import add_messages, check, placement
from .pipelining.chunks import Chunks, without_data
from .pipelining.execute import Held, Step, forward
from .pipelining.own import parsed, rows_of
from .pipelining.schedules import SCHEDULES
from .pipelining.simulate import Group, Simulation, Times, peak, simulate
from .placements import gather


class Pipeline(Strategy):
    """A replica is `stages` workers in a row."""

    def __init__(
        self,
        stages: Annotated[int, Ge(2)] = 2,
        schedule: Literal["naive", "gpipe", "1f1b", "interleaved", "zb_h1"] | str | list[str] = "gpipe",
        micro_batches: Annotated[int, Ge(1)] = 4,
        cuts: list[Annotated[int, Ge(1)]] | None = None,
        recompute: bool = False,
        chunks: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        """`cuts`: the indices of the layers at which stages 1, 2, ... begin; None balances the parameters.

        `micro_batches`: m; a batch of fewer samples is cut into single samples. `chunks`: of the model on each worker;
        None for 2 with schedule=interleaved, else 1. `schedule`: a name, or that of a user's own, or its lines, one for
        each worker (pipelining/own.py). Raises `LayoutError`.
        """
        self.axes = {"stage": stages}
        self.micro_batches = 1 if schedule == "naive" else micro_batches
        self.chunks = chunks or (2 if schedule == "interleaved" else 1)
        self.cuts, self.recompute = cuts, recompute
        if isinstance(schedule, str) and schedule in SCHEDULES:
            self.schedule = SCHEDULES[schedule](stages, self.micro_batches, self.chunks)
        else:
            rows = rows_of(schedule, stages, micro_batches, self.chunks, ()) if isinstance(schedule, str) else schedule
            self.schedule = _checked(parsed(rows), stages, micro_batches)
        self.holders = placement(self.schedule)  # the worker of each stage
        self.loss_part = self.holders[-1]
        self._restricted: dict[int, Schedule] = {}

    @classmethod
    def read_files(cls, knobs: dict[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
        named = knobs.get("schedule", "gpipe")
        if not isinstance(named, str) or named in SCHEDULES:
            return knobs
        sizes = knobs.get("stages", 2), knobs.get("micro_batches", 4), knobs.get("chunks") or 1
        return {**knobs, "schedule": rows_of(named, *sizes, allowed)}

    def stages_of(self, worker: int) -> list[int]:
        """In the order of its chunks."""
        return [stage for stage, holder in enumerate(self.holders) if holder == worker]

    def split(self, model: nn.Module) -> list[nn.Module]:
        if not isinstance(model, nn.Sequential):
            raise LayoutError(
                f"strategy=pipeline cuts a model between the layers of an nn.Sequential, and {type(model).__name__} "
                "is none; strategy=data_parallel takes any module"
            )
        layers, stages = list(layers_of(model).items()), len(self.holders)
        if len(layers) < stages:
            each = stages // self.parts
            of_each, most = f" of {each} chunks each" if each > 1 else "", len(layers) // each
            raise LayoutError(
                f"strategy.stages={self.parts}{of_each}: the model has {len(layers)} layers to cut between; "
                + (f"choose strategy.stages <= {most}" if most > 1 else "choose fewer strategy.chunks")
            )
        if self.cuts is not None and not _rises(self.cuts, stages, len(layers)):
            raise LayoutError(
                f"strategy.cuts={self.cuts}: needs {stages - 1} rising layer indices from 1 to {len(layers) - 1}"
            )
        cuts = self.cuts or balanced([payload(list(layer.parameters())) for _, layer in layers], stages)
        cut = [layers[a:b] for a, b in pairwise([0, *cuts, len(layers)])]
        empty = [i for i, stage in enumerate(cut) if not any(p.requires_grad for _, x in stage for p in x.parameters())]
        if empty:
            raise LayoutError(
                f"stage {empty[0]} of strategy=pipeline has no parameters to train (cuts {cuts}); choose fewer "
                "strategy.stages, or strategy.cuts that leave each stage some"
            )
        parts = [Chunks([cut[stage] for stage in self.stages_of(worker)]) for worker in range(self.parts)]
        if sum(len({id(p) for _, x in stage for p in x.parameters()}) for stage in cut) > len(list(model.parameters())):
            raise LayoutError(
                f"strategy.cuts={cuts}: two stages would share a parameter (tied weights) by a copy each; "
                "untie them, cut elsewhere, or choose strategy=data_parallel"
            )
        return list(parts)

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self._comm = comm
        # What the other workers hold, without the memory: for shapes between stages and the names of full_state.
        parts = self.split(model)
        self.module = parts[comm.rank]
        self._looks = [without_data(part if i == comm.rank else part.to("meta")) for i, part in enumerate(parts)]
        self._all = [*self._looks[: comm.rank], self.module, *self._looks[comm.rank + 1 :]]
        assert isinstance(self.module, Chunks)
        self._held = Held(
            module=self.module,
            chunks={stage: chunk for chunk, stage in enumerate(self.stages_of(comm.rank))},
            holders=self.holders,
            loss=loss,
            comm=comm,
            before_backward=before_backward,
            like=self._like,
            recompute=self.recompute,
        )
        self._shapes: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        sizes = self.micro_sizes(batch.size)
        total = torch.zeros((), device=batch.inputs.device)
        Step(self._held, batch.inputs.split(sizes), batch.targets.split(sizes), total).run(self._actions(len(sizes)))
        return total if self._comm.rank == self.loss_part else None

    def _actions(self, micro_batches: int) -> Sequence[Action]:
        """This worker's, with its sends and receives."""
        if micro_batches not in self._restricted:
            self._restricted[micro_batches] = add_messages(self._of_first(micro_batches))
        return self._restricted[micro_batches][self._comm.rank]

    def _of_first(self, micro_batches: int) -> Schedule:
        """What is left of a schedule without the other micro-batches is one."""
        return [[action for action in row if action.micro_batch < micro_batches] for row in self.schedule]

    def simulate(self, parts: Sequence[nn.Module], inputs: Tensor, time: TimeOf, message: MessageTime) -> Simulation:
        """Every micro-batch takes what the first one does, which is as large as any."""
        sizes = self.micro_sizes(len(inputs))
        outputs = self._activations(parts, inputs[: sizes[0]], len(self.holders) - 1)
        passes: list[PassTime] = []
        for stage, entered in enumerate([inputs[: sizes[0]], *outputs]):
            worker = self.holders[stage]
            entered = entered.detach().requires_grad_(stage > 0 and entered.is_floating_point())
            passes.append(time(worker, entered, self.stages_of(worker).index(stage)))
        again = [each.forward if self.recompute else 0.0 for each in passes]
        both = [each.backward + more for each, more in zip(passes, again, strict=True)]
        inner = [each.to_input + more * (i > 0) for i, (each, more) in enumerate(zip(passes, again, strict=True))]
        outer = both if self.recompute else [each.backward - each.to_input for each in passes]
        times: Times = {"F": [each.forward for each in passes], "B": both, "I": inner, "W": outer}
        messages = [
            message(payload([output]), *ends) for output, ends in zip(outputs, pairwise(self.holders), strict=True)
        ]
        return simulate(self._of_first(len(sizes)), times, messages)

    def rehearse(
        self, parts: Sequence[nn.Module], inputs: Tensor, targets: Tensor, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        """Of several micro-batches of one size two are taken: each after the first adds what the second does."""
        flowing = {
            size: [inputs[:size], *self._activations(parts, inputs[:size], len(self.holders) - 1)]
            for size in self._kinds(len(inputs))
        }
        for worker, part in enumerate(parts):
            assert isinstance(part, Chunks)
            yield [
                Pass(partial(self._take_pass, part, (chunk, stage), flowing[size][stage], targets[:size], loss))
                for chunk, stage in enumerate(self.stages_of(worker))
                for size in self._kinds(len(inputs))
                for _ in range(min(2, self.micro_sizes(len(inputs)).count(size)))
            ]

    def _kinds(self, batch_size: int) -> list[int]:
        """The sizes of its micro-batches."""
        return list(dict.fromkeys(self.micro_sizes(batch_size)))

    def _take_pass(self, part: Chunks, place: tuple[int, int], inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        """Returns where backward begins."""
        chunk, stage = place
        # what came from another stage is a tensor of its own for each micro-batch
        entered = inputs
        if stage > 0:
            entered = torch.empty_like(inputs, memory_format=torch.contiguous_format)
            entered.requires_grad_(inputs.is_floating_point())
        output = forward(part, chunk, entered, self.recompute)
        return loss(output, targets) if stage == len(self.holders) - 1 else output

    def at_once(self, part: int, kept: Sequence[int], batch_size: int) -> int:
        sizes, remaining = self.micro_sizes(batch_size), iter(kept)
        bytes_of = {
            (stage, size): [next(remaining) for _ in range(min(2, sizes.count(size)))]
            for stage in self.stages_of(part)
            for size in self._kinds(batch_size)
        }

        def held(now: set[Group]) -> int:
            counts = Counter((stage, sizes[j]) for stage, j in now)
            return sum(bytes_of[kind][0] + (count - 1) * bytes_of[kind][-1] for kind, count in counts.items())

        return peak(self._of_first(len(sizes))[part], held)

    def micro_sizes(self, batch_size: int) -> list[int]:
        each, more = divmod(batch_size, m := min(self.micro_batches, batch_size))
        return [each + (i < more) for i in range(m)]

    def _like(self, stage: int, x: Tensor) -> Tensor:
        """Room for what `stage` puts out for inputs of the shape of `x`."""
        key = stage, tuple(x.shape)
        if key not in self._shapes:
            self._shapes[key] = self._activations(self._looks, x.to("meta"), stage + 1)[-1]
        return torch.empty_like(self._shapes[key], device=x.device, memory_format=torch.contiguous_format)

    def _activations(self, parts: Sequence[nn.Module], x: Tensor, stages: int) -> list[Tensor]:
        """The output of each of the first stages on the meta device for a meta input `x`: shapes and dtypes only."""
        outputs: list[Tensor] = []
        chunks = {stage: (parts[w], c) for w in range(self.parts) for c, stage in enumerate(self.stages_of(w))}
        with torch.no_grad():
            for stage in range(stages):
                part, chunk = chunks[stage]
                x = part(x, chunk)
                outputs.append(x)
        return outputs

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return gather(self.part_state(parameters), self._all, self._comm, self.loss_part)

    def cost(self, parts: Sequence[nn.Module], inputs: Tensor) -> list[Traffic]:
        sent = [0] * len(parts)
        for size, times in Counter(self.micro_sizes(len(inputs))).items():
            for output, (one, other) in zip(
                self._activations(parts, inputs[:size], len(self.holders) - 1), pairwise(self.holders), strict=True
            ):
                if one != other:
                    sent[one] += times * payload([output])  # forward
                    sent[other] += times * payload([output])  # its gradient, backward
        return [{"send": bytes_sent} for bytes_sent in sent]


def _checked(schedule: Schedule, workers: int, micro_batches: int) -> Schedule:
    """A user's own. Raises `LayoutError`."""
    if len(schedule) != workers:
        raise LayoutError(
            f"strategy.stages={workers}: strategy.schedule has {len(schedule)} lines, one for each worker; choose "
            f"strategy.stages={len(schedule)}"
        )
    given = [action for row in schedule for action in row]
    most = 1 + max((action.micro_batch for action in given), default=-1)
    if most != micro_batches:
        raise LayoutError(
            f"strategy.micro_batches={micro_batches}: strategy.schedule has {most}; choose "
            f"strategy.micro_batches={most}"
        )
    try:
        check(schedule, 1 + max(action.stage for action in given), micro_batches)
    except LayoutError as error:
        raise LayoutError(f"strategy.schedule: {error}") from None
    return schedule


def _rises(cuts: Sequence[int], stages: int, layers: int) -> bool:
    return len(cuts) == stages - 1 and all(a < b for a, b in zip([0, *cuts], [*cuts, layers], strict=True))
