"""Layers split over stages, which work on micro-batches in the order of a schedule.

Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (arXiv 1811.06965),
and those named in pipelining/schedules.py, which says what each schedule does.

The model is cut between its blocks (pipelining/blocks.py) into p contiguous stages, or p v of them where each worker
has v chunks: stage s is on worker s % p, and with zb_v on worker min(s, 2 p - 1 - s). A batch is cut into m
micro-batches. A schedule with a flush has all gradients before the update. So each equals gradient accumulation over
the same micro-batches bit for bit, and naive, whose m is 1, serial training. pipedream and pipedream_2bw have none
(pipelining/without_flush.py): batches follow one another without a pause, and are trained on with older weights. With
`recompute` a stage keeps only its inputs, and computes its passes again for backward. Of stages that compute something
again zb_h1 and zb_v have the backward pass in one piece (pipelining/again.py).

Cost per step: where a stage and the next one are on different workers, the output goes forward, and its gradient comes
back: for each micro-batch |output| from the one, and as much from the other. Weights that stages on several workers
share are summed over them (pipelining/ties.py).

Use it where a model does not fit on one device and links between devices are slow: it sends outputs of stages alone.
Many micro-batches make its bubble small; few layers, or very uneven ones, leave stages idle.

Equation: with a flush the gradient is that of accumulation, sum_j m_j g_j / sum_j m_j over micro-batches of m_j
samples; with p stages and m micro-batches of equal times the bubble is (p-1)/(m+p-1) of a step.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batches import Samples, lone
from ..comm import Comm
from ..conf.errors import ConfigError
from ..cost.layout import ReplicaLayout
from ..cost.predicted import NotPredicted
from ..exchange.collectives.base import added
from ..exchange.elementwise import check_uncoupled
from .core.batch import Batch, BeforeBackward, MessageTime, Pass, PassTime, TimeOf
from .core.copies import let_go, without_data
from .core.cost import Memory, Traffic, payload
from .core.loss import Loss
from .core.mesh import Mesh
from .core.placements import gather
from .core.precision import META
from .core.staged import StagedStrategy
from .core.state import state_with
from .core.strategy import StrategyTraits
from .core.sync import Sync
from .pipelining.actions import Action, Schedule
from .pipelining.again import joined, recomputes
from .pipelining.blocks import blocks_of
from .pipelining.check import add_messages, placement
from .pipelining.chunks import Chunks, check_own, check_traced, chunks_of, first_names, worker_of
from .pipelining.cut import LayerProfile, by_memory, by_parameters, by_time, check_buffers, check_gradients, look
from .pipelining.execute import PipelineStep, PipelineWorker, forward
from .pipelining.own import checked, parsed, rows_of
from .pipelining.schedules import BUBBLES, SCHEDULES, check_length
from .pipelining.simulate import Group, Simulation, Times, in_flight, live_versions, peak, simulate, steady
from .pipelining.stream import Stream
from .pipelining.ties import Ties, tied, traffic
from .pipelining.updates import Updates
from .pipelining.without_flush import READS, Reads, period, reads_of, stream

ScheduleKnob = (
    Literal["naive", "gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "pipedream", "pipedream_2bw"] | str | list[str]
)
CutKnob = Literal["time", "memory", "parameters"] | list[Annotated[int, Ge(1)]]


class Pipeline(StagedStrategy):
    """A replica is `stages` workers in a row."""

    traits = StrategyTraits(
        one_input="cuts a model into layers, of which each is given the one tensor that the layer before it made",
        own_micro_batches="micro_batches",
        cuts_on_host=True,
    )

    def __init__(
        self,
        stages: Annotated[int, Ge(2)] = 2,
        schedule: ScheduleKnob = "gpipe",
        micro_batches: Annotated[int, Ge(1)] = 4,
        cut: CutKnob = "parameters",
        recompute: bool = False,
        chunks: Annotated[int, Ge(1)] | None = None,
        vertical_sync: bool = False,
    ) -> None:
        """`cut`: what the heaviest stage has as little of as can be (pipelining/cut.py), or a list of the layers, by
        index, at which stages 1, 2, ... begin.

        `micro_batches`: m; an epoch's last batch, if of fewer samples, is cut into single samples. `chunks`: of the
        model on each worker; None for 2 with schedule=interleaved or zb_v, else 1. `schedule`: a name, or that of a
        user's own, or its lines, one for each worker (pipelining/own.py). `vertical_sync`: of schedule=pipedream.
        Raises `ConfigError`.
        """
        self.mesh, self.schedule_name = Mesh({"stage": stages}), schedule
        self.micro_batches = 1 if schedule in ("naive", "pipedream") else micro_batches
        self.chunks = chunks or (2 if schedule in ("interleaved", "zb_v") else 1)
        check_length(stages, self.micro_batches, self.chunks)
        self.cut, self.recompute = cut, recompute
        self.reads: Reads | None = reads_of(schedule, self.chunks, vertical_sync)  # None: with a flush
        self.updates = Updates() if self.reads else None
        if isinstance(schedule, str) and self.reads is not None:
            self.schedule, _ = stream(stages, self.micro_batches, self.reads)
            self.traits = replace(
                self.traits,
                owns_update=f"with strategy.schedule={schedule} updates each stage when its schedule says so",
            )
            self.traits = replace(self.traits, bitwise=False, fills=stages)
        elif isinstance(schedule, str) and schedule in SCHEDULES:
            self.schedule = SCHEDULES[schedule](stages, self.micro_batches, self.chunks)
        else:
            rows = rows_of(schedule, stages, micro_batches, self.chunks, ()) if isinstance(schedule, str) else schedule
            self.schedule = checked(parsed(rows), stages, micro_batches)
        self.holders = placement(self.schedule)  # the worker of each stage
        if recompute:
            self.schedule = [joined(row, range(len(self.holders))) for row in self.schedule]
        if any(action.kind == "I" for row in self.schedule for action in row):
            self.traits = replace(
                self.traits,
                uncompiled=f"with strategy.schedule={schedule} takes a backward pass in two pieces, and compiled "
                "code takes it in one",
            )
        self.loss_part = self.holders[-1]
        self._restricted: dict[int, Sequence[Action]] = {}
        self._recomputing: set[int] = set()

    @classmethod
    def read_files(cls, knobs: dict[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
        named = knobs.get("schedule", "gpipe")
        if not isinstance(named, str) or named in SCHEDULES or named in READS:
            return knobs
        sizes = knobs.get("stages", 2), knobs.get("micro_batches", 4), knobs.get("chunks") or 1
        return {**knobs, "schedule": rows_of(named, *sizes, allowed)}

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        if self.schedule_name not in BUBBLES:
            raise NotPredicted(f"strategy.schedule={self.schedule_name}: no closed form gives its bubble")
        return ReplicaLayout(self.micro_batches, chunks=self.chunks, recompute=self.recompute)

    def own_sync(self) -> Sync | None:
        return self.updates

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if self.parts > 1:
            check_uncoupled(optimizer, f"strategy.stages={self.parts}", "strategy=data_parallel")

    def stages_of(self, worker: int) -> list[int]:
        """Returns the stages of a worker, in the order of its chunks."""
        return [stage for stage, holder in enumerate(self.holders) if holder == worker]

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        layers = self.layers_alone(model)
        check_traced(model, layers, lone(inputs))
        return self.cut_for(layers, lone(inputs), targets, loss)

    def cut_for(self, layers: Sequence[nn.Module], inputs: Tensor, targets: Samples, loss: Loss) -> dict[str, Any]:
        """`cut` as a list, where it is chosen by what a micro-batch takes in these layers. Raises `ConfigError`."""
        if self.micro_batches > len(inputs):
            raise ConfigError(
                f"strategy.micro_batches={self.micro_batches}: a replica's batch has batch_size={len(inputs)} samples, "
                f"and cannot be cut into more pieces. Choose strategy.micro_batches <= {len(inputs)}."
            )
        sizes = self.micro_sizes(len(inputs))
        looks = look(layers, inputs[: sizes[0]], targets[: sizes[0]], loss)
        cuts = self._cuts(layers, looks, len(sizes))
        check_gradients(cuts, looks)
        check_buffers(cuts, looks)
        return {"cut": cuts} if self.cut in ("time", "memory") else {}

    def _cuts(self, layers: Sequence[nn.Module], looks: Sequence[LayerProfile], micro_batches: int) -> list[int]:
        if self.cut == "time":
            return by_time(layers, looks, len(self.holders), self.recompute)
        if self.cut == "memory":
            of_each = in_flight(self.of_first(micro_batches))
            return by_memory(layers, looks, of_each, self.recompute, self._versions(micro_batches))
        return self._cuts_alone(layers)

    def _cuts_alone(self, layers: Sequence[nn.Module]) -> list[int]:
        """Returns the cuts that need no look at a batch. Raises `ConfigError`."""
        if self.cut == "parameters":
            return by_parameters(layers, len(self.holders))
        if isinstance(self.cut, str):
            raise ConfigError(f"strategy.cut={self.cut}: needs a batch to look at (Strategy.settled)")
        return self.cut

    def layers_alone(self, model: nn.Module) -> list[Chunks]:
        """Each block alone. Raises `ConfigError`."""
        blocks, stages, firsts = blocks_of(model), len(self.holders), first_names(model)
        for block in blocks:
            check_own(model, block)
        layers = [Chunks(model, [[block]], firsts=firsts) for block in blocks]
        trained = sum(any(each.requires_grad for each in layer.parameters()) for layer in layers)
        if trained < stages:
            each = stages // self.parts
            of_each, most = f" of {each} chunks each" if each > 1 else "", trained // each
            less = "fewer strategy.chunks" if each > 1 else "strategy=data_parallel, which takes any model"
            have = "has" if trained == 1 else "have"
            its = f", of which {trained} {have} parameters to train" if trained < len(blocks) else ""
            knob = getattr(model, "depth_knob", None)  # of the models that come with paceline
            deeper = f", or more layers by model.{knob}" if isinstance(knob, str) else ""
            raise ConfigError(
                f"strategy.stages={self.parts}{of_each}: the model has {len(blocks)} layers to cut between{its}. "
                f"Choose {f'strategy.stages <= {most}' if most > 1 else less}{deeper}."
            )
        return layers

    def split(self, model: nn.Module) -> list[nn.Module]:
        layers, stages = self.layers_alone(model), len(self.holders)
        cuts = self._cuts_alone(layers)
        if not _rises(cuts, stages, len(layers)):
            raise ConfigError(
                f"strategy.cut={cuts}: needs {stages - 1} rising layer indices from 1 to {len(layers) - 1}"
            )
        cut = [
            [block for layer in layers[a:b] for block in chunks_of(layer)[0]]
            for a, b in pairwise([0, *cuts, len(layers)])
        ]
        held = [list(Chunks(model, [stage]).parameters()) for stage in cut]
        empty = [i for i, parameters in enumerate(held) if not any(each.requires_grad for each in parameters)]
        if empty:
            fewer = ["fewer strategy.chunks, "] * (stages > self.parts) + ["fewer strategy.stages, "] * (self.parts > 2)
            raise ConfigError(
                f"stage {empty[0]} has no parameters to train (strategy.cut={cuts}). Choose {''.join(fewer)}"
                "a strategy.cut that leaves each stage some, or strategy=data_parallel."
            )
        if self.reads is not None and sum(map(len, held)) > len(list(model.parameters())):
            raise ConfigError(
                f"strategy.cut={cuts}: two stages share a parameter (tied weights), whose gradients are summed before "
                "the update; without a flush one of them has its own up to p - 1 batches before the other. Untie "
                "them, cut elsewhere, or choose a schedule with a flush, such as 1f1b."
            )
        parts = [
            Chunks(model, [cut[stage] for stage in self.stages_of(worker)], worker) for worker in range(self.parts)
        ]
        self.shares = bool(tied(parts))
        return list(parts)

    def layers(self, part: nn.Module) -> list[list[str]]:
        assert isinstance(part, Chunks)
        return [[block.name for block in chunk] for chunk in chunks_of(part)]

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        parts = self.split(model)
        own = parts[comm.rank]
        held = [part if part is own else without_data(part) for part in parts]
        let_go(model, own)
        self.take(held, loss, comm, before_backward)

    def take(self, parts: Sequence[nn.Module], loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        """Keep this worker's of the parts, of which `comm` spans the workers. The others, which are on the meta device,
        are for shapes between stages and the names of full_state.
        """
        self._comm, self._all, self.module = comm, parts, parts[comm.rank]
        assert isinstance(self.module, Chunks)
        self._looks = [*parts[: comm.rank], without_data(self.module), *parts[comm.rank + 1 :]]  # before any hooks
        self._ties = Ties(tied(parts), self.module, comm)
        self._held = PipelineWorker(
            module=self.module,
            chunks={stage: chunk for chunk, stage in enumerate(self.stages_of(comm.rank))},
            holders=self.holders,
            loss=loss,
            comm=comm,
            # what is summed over stages first is not yet whole when the last backward pass is over
            before_backward=lambda roots, last: before_backward(roots, last and not self._ties),
            like=self._like,
            recompute=self.recompute,
            updates=self.updates,
        )
        self._stream = None if self.reads is None else Stream(self._held, self.reads)
        self._shapes: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if self._stream is not None:
            return self._stream_on(self._stream, batch)
        if batch.size == 0:
            return None
        sizes = self.micro_sizes(batch.size)
        total = torch.zeros((), dtype=torch.float64, device=batch.inputs.device)
        inputs = lone(batch.inputs).split(sizes)
        PipelineStep(self._held, inputs, batch.targets.split(sizes), total).run(self._actions(len(sizes), inputs[0]))
        self._ties.sum()
        return total if self._comm.rank == self.loss_part else None

    def passes(self, inputs: Samples) -> Iterator[Tensor]:
        for size in dict.fromkeys(self.micro_sizes(len(inputs))):
            micro_batch = lone(inputs)[:size]
            for stage in self.stages_of(self._comm.rank):
                entered = micro_batch if stage == 0 else self._like(stage - 1, micro_batch).zero_()
                if stage > 0:
                    entered.requires_grad_(entered.is_floating_point())
                yield self._held.forward(stage, entered)

    def _stream_on(self, stream: Stream, batch: Batch) -> Tensor | None:
        sizes = self.micro_sizes(batch.size) if batch.size else []
        inputs = list(lone(batch.inputs).split(sizes)) if sizes else []
        targets = list(batch.targets.split(sizes)) if sizes else []
        total = stream.take(inputs, targets, batch.inputs.device)
        return total if sizes and self._comm.rank == self.loss_part else None

    def drain(self) -> None:
        if self._stream is not None:
            self._stream.drain()

    def _actions(self, micro_batches: int, inputs: Tensor) -> Sequence[Action]:
        """Returns this worker's actions, with its sends and receives. `inputs`: a micro-batch."""
        if micro_batches not in self._restricted:
            own = self.recomputing(self._looks, inputs.to("meta"), self.stages_of(self._comm.rank))
            row = add_messages(self.of_first(micro_batches))[self._comm.rank]
            self._restricted[micro_batches] = joined(row, own)  # others may wait for what B makes as for what I makes
        return self._restricted[micro_batches]

    def recomputing(
        self, parts: Sequence[nn.Module], inputs: Tensor, stages: Collection[int] | None = None
    ) -> set[int]:
        """Returns the stages with I in the schedule in which layers recompute something.

        `inputs`: a micro-batch; it and `parts` are on the meta device. `stages`: the stages to look at; None for all.
        """
        apart = sorted({each.stage for row in self.schedule for each in row if each.kind == "I"})
        asked = apart if stages is None else [stage for stage in apart if stage in stages]
        if not asked:
            return set()
        flowing = [inputs, *self.activations(parts, inputs, asked[-1])]
        places = {stage: (self.holders[stage], self.stages_of(self.holders[stage]).index(stage)) for stage in asked}
        found: set[int] = set()
        for stage, (worker, chunk) in places.items():
            part = parts[worker]
            assert isinstance(part, Chunks)
            if recomputes(part, chunk, flowing[stage]):
                found.add(stage)
        return found

    def of_first(self, micro_batches: int) -> Schedule:
        """Returns the schedule of the first `micro_batches` alone; without a flush, that of batches of so many.

        A schedule without its other micro-batches is a schedule too.
        """
        if self.reads is not None:
            return stream(self.parts, micro_batches, self.reads)[0]
        return [[action for action in row if action.micro_batch < micro_batches] for row in self.schedule]

    def _versions(self, micro_batches: int) -> list[int]:
        """Returns the largest number of versions of the weights of each stage."""
        if self.reads is None:
            return [1] * len(self.holders)
        return live_versions(*stream(self.parts, micro_batches, self.reads))

    def simulate(self, parts: Sequence[nn.Module], inputs: Samples, time: TimeOf, message: MessageTime) -> Simulation:
        """Every micro-batch takes what the first one does, which is as large as any."""
        inputs = lone(inputs)
        sizes = self.micro_sizes(len(inputs))
        outputs = self.activations(parts, inputs[: sizes[0]], len(self.holders) - 1)
        passes: list[PassTime] = []
        for stage, entered in enumerate([inputs[: sizes[0]], *outputs]):
            worker = self.holders[stage]
            entered = entered.detach().requires_grad_(stage > 0 and entered.is_floating_point())
            passes.append(time(worker, entered, self.stages_of(worker).index(stage)))
        times: Times = {
            "F": [each.forward for each in passes],
            "B": [each.backward + (each.forward if self.recompute else 0.0) for each in passes],
            "I": [each.to_input for each in passes],
            "W": [each.backward - each.to_input for each in passes],
        }
        messages = [
            message(payload([output]), *ends) for output, ends in zip(outputs, pairwise(self.holders), strict=True)
        ]
        m, last = len(sizes), len(self.holders) - 1
        if self.reads is None:
            again = self.recomputing(parts, inputs[: sizes[0]])
            return simulate([joined(row, again) for row in self.of_first(m)], times, messages)
        schedule, versions = stream(self.parts, m, self.reads)
        steps = period(self.parts, m)
        begins, ends = (Action(last, "F", m * batch) for batch in (2 * steps, 3 * steps))
        return steady(simulate(schedule, times, messages, versions), begins, ends, steps)

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        """Yields at most two passes of a micro-batch size; what the first keeps beyond the second is the batch's."""
        inputs = lone(inputs)
        flowing = {
            size: [inputs[:size], *self.activations(parts, inputs[:size], len(self.holders) - 1)]
            for size in self._kinds(len(inputs))
        }
        self._recomputing = self.recomputing(parts, inputs[: max(flowing)])
        for worker, part in enumerate(parts):
            assert isinstance(part, Chunks)
            yield [
                Pass(partial(self._take_pass, part, (chunk, stage), flowing[size][stage], targets[:size], loss))
                for chunk, stage in enumerate(self.stages_of(worker))
                for size in self._kinds(len(inputs))
                for _ in range(self._rehearsed(size, len(inputs)))
            ]

    def _kinds(self, batch_size: int) -> list[int]:
        """The sizes of its micro-batches."""
        return list(dict.fromkeys(self.micro_sizes(batch_size)))

    def _rehearsed(self, size: int, batch_size: int) -> int:
        """Returns the number of passes of a size: 2 without a flush, which holds several batches at once."""
        return 2 if self.reads is not None else min(2, self.micro_sizes(batch_size).count(size))

    def _take_pass(self, part: Chunks, place: tuple[int, int], inputs: Tensor, targets: Samples, loss: Loss) -> Tensor:
        """Returns where backward begins."""
        chunk, stage = place
        # what came from another stage is a tensor of its own for each micro-batch
        entered = inputs
        if stage > 0:
            entered = torch.empty_like(inputs, memory_format=torch.contiguous_format)
            entered.requires_grad_(inputs.is_floating_point())
        output = forward(part, chunk, entered, self.recompute)
        return loss(output, targets) if stage == len(self.holders) - 1 else output

    def at_once(self, part: int, kept: Sequence[int], again: Sequence[int], batch_size: int) -> int:
        sizes, remaining = self.micro_sizes(batch_size), zip(kept, again, strict=True)
        own: dict[Group, int] = {}  # of a micro-batch, by stage and size
        more: dict[tuple[int, int, bool], int] = {}  # in its backward pass; whether others of its batch wait
        common: dict[int, int] = {}  # of a batch
        for stage in self.stages_of(part):
            for size in self._kinds(batch_size):
                taken = [next(remaining) for _ in range(self._rehearsed(size, batch_size))]
                own[stage, size], more[stage, size, False] = taken[-1]
                _, more[stage, size, True] = taken[0]
                common.setdefault(stage, taken[0][0] - taken[-1][0])
        m = len(sizes)

        return peak(
            joined(self.of_first(m)[part], self._recomputing),
            lambda group: own[group[0], sizes[group[1] % m]],
            lambda group: (group[0], group[1] // m),
            common.__getitem__,
            lambda group, others: more[group[0], sizes[group[1] % m], others],
        )

    def micro_sizes(self, batch_size: int) -> list[int]:
        each, more = divmod(batch_size, m := min(self.micro_batches, batch_size))
        return [each + (i < more) for i in range(m)]

    def _like(self, stage: int, x: Tensor) -> Tensor:
        """Room for what `stage` puts out for inputs of the shape of `x`."""
        key = stage, tuple(x.shape)
        if key not in self._shapes:
            with self.setting.precision.casting(META), self.setting.precision.estimated(x.device):
                self._shapes[key] = self.activations(self._looks, x.to("meta"), stage + 1)[-1]
        return torch.empty_like(self._shapes[key], device=x.device, memory_format=torch.contiguous_format)

    def activations(self, parts: Sequence[nn.Module], x: Tensor, stages: int) -> list[Tensor]:
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
        return gather(state_with(self.module, parameters), self._all, self.mesh, self._comm, self.loss_part)

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        if self.reads is None:
            return held
        assert isinstance(part, Chunks)
        [stage] = self.stages_of(worker_of(part))
        trained = payload([each for each in part.parameters() if each.requires_grad])
        older = (self._versions(self.micro_batches)[stage] - 1) * trained
        return {**held, "parameters": held["parameters"] + older}

    def measured(self, held: Memory) -> Memory:
        older = 0 if self.updates is None else self.updates.most_older
        return {**held, "parameters": held["parameters"] + older}

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        return [added(*each) for each in zip(self.messages(parts, inputs), traffic(parts), strict=True)]

    def messages(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        """Returns the part of `cost` that goes from stage to stage."""
        sent = [0] * len(parts)
        for size, times in Counter(self.micro_sizes(len(inputs))).items():
            for output, (one, other) in zip(
                self.activations(parts, lone(inputs)[:size], len(self.holders) - 1), pairwise(self.holders), strict=True
            ):
                if one != other:
                    sent[one] += times * payload([output])  # forward
                    sent[other] += times * payload([output])  # its gradient, backward
        return [{"send": own} for own in sent]

    def sends_to(self, parts: Sequence[nn.Module]) -> Mapping[str, list[list[int]]]:
        """Outputs to the next stage, their gradients to the one before, those of tied weights to all who have them."""
        found: list[set[int]] = [set() for _ in parts]
        for one, other in pairwise(self.holders):
            found[one].add(other)
            found[other].add(one)
        for together in tied(parts).values():
            for each in together:
                found[each].update(together)
        return {"stage": [sorted(others - {place}) for place, others in enumerate(found)]}


def _rises(cuts: Sequence[int], stages: int, layers: int) -> bool:
    return len(cuts) == stages - 1 and all(a < b for a, b in zip([0, *cuts], [*cuts, layers], strict=True))
