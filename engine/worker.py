"""What one worker does, from its place in the world to its report. The same under our launcher and under torchrun."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..comm.base import Comm
from ..comm.errors import PeerLostError
from ..conf.groups import SHOWN
from ..strategies.base import load_state, payload
from ..strategies.placements import dims_of
from ..tasks.evaluation import evaluate
from ..tracking.run_directory import RunDirectory
from . import checkpoint, memory, weights
from .build import Parts
from .checkpoint import Manifest
from .data_sums import check_data, sums_of
from .dates import Dates
from .experiment import Experiment
from .layout import Role
from .loop import Job, train
from .meters import Meter, Report, is_too_short, summarise, without_times
from .notes import effective_batch, untimed
from .pace import ModelledPace, RealPace
from .plan import make_plan, share_of_cores
from .stop import StopAgreement
from .trace import write_trace


@dataclass(frozen=True)
class Assignment:
    """What a worker is told. `run`: the run directory. `identity`: see stored.py; checkpoints have it.

    `resume`: the checkpoint to go on from. `trace`: the file to write a trace to.
    """

    experiment: Experiment
    run: Path
    allowed: tuple[str, ...]
    identity: str
    resume: Path | None = None
    trace: Path | None = None


def prepare_process(experiment: Experiment, parts: Parts, rank: int) -> torch.device:
    """Threads and device of this process; before any torch work."""
    torch.set_num_threads(experiment.hardware.threads or share_of_cores(parts.layout))
    memory.keep_freed()
    device = parts.launcher.device(experiment, parts.layout)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


_AT_ONCE = 2**20  # entries of all replicas that their distance is computed from at once


def pieces(tensors: Sequence[Tensor], entries: int) -> Iterator[Tensor]:
    """[n], float64 on the CPU: the tensors' entries one after the other, n = `entries` but for the last piece."""
    room, filled = torch.empty(entries, dtype=torch.float64), 0
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        while len(flat):
            taken = min(len(flat), entries - filled)
            room[filled : filled + taken] = flat[:taken]
            flat, filled = flat[taken:], filled + taken
            if filled == entries:
                yield room.clone()
                filled = 0
    if filled:
        yield room[:filled].clone()


@dataclass(frozen=True)
class Snapshot:
    """The consensus at some time; of an asynchronous run it is judged once training is over."""

    done: int  # steps
    seconds: float  # of training, when these weights existed: see dates.py
    state: dict[str, Tensor]


def work(
    assignment: Assignment,
    parts: Parts,
    comm: Comm,
    device: torch.device,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Take part in the run until its end. `started` is called once this worker will train, or serve, next."""
    Worker(assignment, parts, comm, device).run(started)


class Worker:
    def __init__(self, assignment: Assignment, parts: Parts, comm: Comm, device: torch.device) -> None:
        self.assignment, self.experiment, self.parts = assignment, assignment.experiment, parts
        self.world, self.device = comm, device
        self.layout, self.strategy, self.sync = parts.layout, parts.strategy, parts.sync
        self.role: Role = self.layout.role(comm.rank)
        self.is_chief = comm.rank == self.layout.chief
        self.directory = RunDirectory(assignment.run)
        self.time_to_accuracy: float | None = None
        self.saved_at: int | None = None
        self.last_evaluation: dict[str, float] = {}
        self.dates = Dates(comm.board, comm.rank, parts.layout, parts.sync, self._read_of_living)
        self.evaluated_at = 0.0  # the last evaluation's date
        self.snapshots: list[Snapshot] = []
        self.exported: str | None = None  # the checksum of model.safetensors
        self.data_sums: dict[str, str] = {}  # see data_sums.py
        self.resident = memory.process_now()  # before anything of the run is there

    def run(self, started: Callable[[], None]) -> None:
        with self.world.ledger.aside():
            manifest = self._prepare()
        if self.role.kind == "server":
            started()
            self.sync.serve()
            self.dates.tell_end(self.sync.made_at)
            return self._report(Meter(self.world, 0, self.device, False), 0, "completed")
        job = self._job(manifest)
        if self.is_chief:
            self._announce(job, manifest)
        started()
        done = train(job)
        status = "completed" if done == job.steps else "interrupted"
        self.strategy.drain()
        with self.world.ledger.aside():
            if status == "interrupted" and self.saved_at != done and self.saves:
                self._save(done, job.meter)
            self.dates.tell_end(job.meter.ended)
            if status == "completed":
                self.sync.drain()
            # others may still be in a round that this one left early
            spread = self._consensus_distance() if status == "completed" else None
            self.sync.finish()
            self._judge_snapshots(job)
            if status == "completed":
                self._evaluate_end(done, job, spread)
                self._export()
        return self._report(job.meter, done, status, job.activations)

    # -- set-up

    def _prepare(self) -> Manifest | None:
        experiment, role = self.experiment, self.role
        in_replica = role.replica if role.kind == "worker" else None
        of_replica = self.world.split(in_replica)
        of_part = self.world.split(role.part)
        self.workers = self.world.split(0 if role.kind == "worker" else None)
        assert of_part is not None
        if self.parts.compute is not None:
            self.pace = ModelledPace(self.world, self.parts.compute, role.part, self.parts.stragglers)
        else:
            self.pace = RealPace(self.world, self.parts.stragglers)
        self.of_replica: Comm | None = of_replica
        torch.manual_seed(experiment.seed)
        model = self.parts.make_model()
        if experiment.weights is not None and self.assignment.resume is None:
            load_state(model, weights.load(experiment.weights, self.assignment.run))
        if self.is_chief:
            self.judged = self.parts.make_model()  # what is evaluated: the gathered state; on the host until then
        if of_replica is not None:
            model = model if self.strategy.places else model.to(self.device)
            self.strategy.prepare(model, self.parts.task.loss, of_replica, self._before_backward)
            module = self.strategy.module
            self.pace.attach(module)
        else:
            module = self.strategy.split(model)[role.part].to(self.device)
        module.train()
        self.module = module
        manifest = state = None
        if self.assignment.resume is not None:
            manifest = checkpoint.read_manifest(self.assignment.resume)
            replica = role.replica if role.kind == "worker" else 0
            state = checkpoint.read_part(self.assignment.resume, role.part, replica, manifest)
            load_state(module, state["parameters"])
        optimizer = self.parts.make_optimizer(module.parameters())
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.sync.steps_per_epoch = self.parts.deal().steps_per_epoch
        self.sync.prepare(trained, optimizer, of_part)
        if state is not None:
            if self.sync.synchronous and not (self.sync.weights_agree and self.sync.state_agrees):
                load_state(module, state["parameters"])  # `prepare` may have made all replicas alike
            self.sync.load_state_dict(state["sync"])
        return manifest

    def _before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        self.pace.backward_begins()
        self.sync.before_backward(roots, last)

    def _job(self, manifest: Manifest | None) -> Job:
        experiment, layout, role = self.experiment, self.layout, self.role
        # before they are loaded: what changes in between would be found to have changed
        self.data_sums = sums_of(self.parts.data) if self.is_chief and self.saves else {}
        if self.is_chief and manifest:
            check_data(self.directory, self.data_sums, manifest.data)
        train_split, self.test = self.parts.load()
        partition = self.parts.deal()
        steps = experiment.steps_in_all(partition.steps_per_epoch)
        assert steps is not None
        self.steps_per_epoch = partition.steps_per_epoch
        self.resumed_at = manifest.step if manifest else None
        start = manifest.step if manifest else 0
        self.untimed = untimed(experiment.measure.after, steps - start)
        self.time_to_accuracy = manifest.time_to_accuracy if manifest else None
        together = self.sync.synchronous
        job = Job(
            strategy=self.strategy,
            sync=self.sync,
            comm=self.world,
            replica=role.replica,
            train=train_split,
            partition=partition,
            device=self.device,
            seed=experiment.seed,
            draws_as=layout.mesh.drawing(self.world.rank),
            start=start,
            steps=steps,
            meter=Meter(
                self.world,
                self.untimed,
                self.device,
                not together,
                manifest.seconds if manifest else 0.0,
            ),
            stop=StopAgreement(
                self.world.board,
                self.world.rank,
                layout.chief if together else role.replica * layout.parts + layout.loss_part,
                "all" if together else f"replica {role.replica}",
                start,
            ),
            pace=self.pace,
            after_step=lambda before, done, loss: self._after_step(job, before, done, loss),
        )
        return job

    def _announce(self, job: Job, manifest: Manifest | None) -> None:
        if manifest:
            self.directory.append({"kind": "resume", "step": manifest.step})
        self.directory.append(
            {
                "kind": "start",
                "name": self.directory.name,
                "steps": job.steps,
                "epochs": job.steps / job.partition.steps_per_epoch,
                "samples": len(job.train),
                "workers": self.layout.workers,
                "servers": self.layout.servers * self.layout.parts,
                "modelled": self.parts.launcher.modelled,
                "target_accuracy": self.experiment.target_accuracy,
                **self._choices(),
            }
        )

    def _choices(self) -> dict[str, str]:
        return {group.name: self.experiment.choice(group.name).name for group in SHOWN}

    # -- after each step

    @property
    def saves(self) -> bool:
        """A virtual cluster saves nothing: it replays from its seed."""
        return self.parts.launcher.saves

    def _after_step(self, job: Job, before: int, done: int, loss: float | None) -> None:
        """`before`: the steps done when this one began; a worker may have left some out."""
        if self.is_chief and loss is not None:
            self._record_step(job, done, loss)
        experiment, per_epoch = self.experiment, job.partition.steps_per_epoch

        def is_due(every: int) -> bool:
            return every > 0 and done // every > before // every

        evaluates = is_due(per_epoch * experiment.evaluate.every) and done < job.steps
        saves = is_due(experiment.checkpoint.every_steps or per_epoch * experiment.checkpoint.every) and self.saves
        if not (evaluates or saves):
            return
        self.strategy.drain()
        with self.world.ledger.aside():
            if evaluates and self.sync.synchronous:
                self._evaluate(done, job, self._consensus_distance())
            elif evaluates:
                self._take_snapshot(done, job)
            if saves:
                self._save(done, job.meter)
            if self.sync.synchronous and not self.sync.survives:
                assert self.workers is not None
                self.workers.barrier()

    def _record_step(self, job: Job, done: int, loss: float) -> None:
        partition, step = job.partition, done - 1
        # asynchronously, others go at paces of their own
        samples = partition.total(step) if self.sync.synchronous else partition.size(step, self.role.replica)
        samples *= self.sync.took_step
        self.directory.append(
            {
                "kind": "step",
                "step": done,
                "epoch": done / job.partition.steps_per_epoch,
                "loss": loss,
                "samples_per_second": samples / job.meter.last,
                "step_time": job.meter.last,
                "time": job.meter.seconds,
            }
        )

    def _consensus(self) -> dict[str, torch.Tensor] | None:
        """The whole model's weights to evaluate, on the chief; everyone else helps and gets None."""
        if not (self.sync.synchronous or self.role.replica == 0):
            return None
        parameters = self.sync.consensus()
        if self.role.replica != 0:
            return None
        return self.strategy.full_state(parameters)

    def _evaluate(self, done: int, job: Job, spread: float | None) -> None:
        state, seconds = self._consensus(), self.dates.of_step(done, job.meter)
        if state is not None:
            self._judge(Snapshot(done, seconds, state), job, spread)

    def _evaluate_end(self, done: int, job: Job, spread: float | None) -> None:
        if self.sync.synchronous:
            self._evaluate(done, job, spread)
        elif (state := self._consensus()) is not None:
            self._judge(Snapshot(done, self.dates.of_end(job.meter), state), job, spread)

    def _take_snapshot(self, done: int, job: Job) -> None:
        """Others train on meanwhile: only a copy is made now, with its date."""
        if self.role.replica != 0:
            return
        state = self._consensus()
        copies = {name: tensor.detach().clone() for name, tensor in (state or {}).items()}
        seconds = self.dates.of_snapshot(done, job.meter, self.world.now())
        if state is not None:
            self.snapshots.append(Snapshot(done, seconds, copies))

    def _judge_snapshots(self, job: Job) -> None:
        for snapshot in self.snapshots:
            self._judge(snapshot, job, None)
        self.snapshots.clear()

    def _judge(self, snapshot: Snapshot, job: Job, spread: float | None) -> None:
        judged = self.judged.to(self.device)
        load_state(judged, snapshot.state)
        result = evaluate(self.parts.task, judged, self.test, self._evaluated_at_once(), self.device)
        self.judged = judged.to("cpu")  # its place on the device is training's
        if self.time_to_accuracy is None and result.score >= self.experiment.target_accuracy:
            self.time_to_accuracy = snapshot.seconds
        self.last_evaluation = {self.parts.task.metric.name: result.score, "loss": result.loss}
        self.evaluated_at = snapshot.seconds
        if spread is not None:
            self.last_evaluation["consensus_distance"] = spread
        self.directory.append(
            {
                "kind": "evaluation",
                "step": snapshot.done,
                "epoch": snapshot.done / job.partition.steps_per_epoch,
                **self.last_evaluation,
                "time": snapshot.seconds,
            }
        )

    def _evaluated_at_once(self) -> int:
        """Samples; where each is many predictions (text), no more than training takes, whose outputs fit."""
        return min(512, self.experiment.batch_size) if self.parts.data.spec.target_shape else 512

    def _consensus_distance(self) -> float | None:
        """How far replicas are from their mean: sqrt(mean_i |w_i - mean|^2), on the chief; None elsewhere.

        By messages to the chief, so that a worker that died leaves only a gap, and in the group of all workers, where
        no sync mode's messages are under way. Of a pipeline, the part with the loss.

        In pieces of a few MiB over all replicas, so that what is measured does not show in the peak of memory: the sum
        over pieces, in the order of parameters, of the mean over replicas.
        """
        if self.sync.weights_agree or self.layout.replicas == 1 or self.role.part != self.layout.loss_part:
            return None
        replicas = range(1, self.layout.replicas)
        total = 0.0
        for mine in pieces(list(self.sync.parameters.values()), max(_AT_ONCE // self.layout.replicas, 4096)):
            if self.role.replica != 0:
                with suppress(PeerLostError):
                    self.world.send(mine, self.layout.chief)
                continue
            rows = [mine]
            for replica in replicas:
                other = torch.empty_like(mine)
                with suppress(PeerLostError):
                    self.world.recv(other, replica * self.layout.parts + self.layout.loss_part)
                    rows.append(other)
            stacked = torch.stack(rows)
            total += float((stacked - stacked.mean(0)).square().sum(1).mean())
        return total**0.5 if self.role.replica == 0 else None

    def _save(self, done: int, meter: Meter) -> None:
        """Replica 0 writes: its parts their files, the chief the manifest once it has all their sums."""
        alike = self.sync.weights_agree and self.sync.state_agrees
        each = self.sync.synchronous and not alike  # replicas differ: each writes its own
        if not (self.sync.synchronous or self.role.replica == 0):
            return
        own = {name: parameter.detach() for name, parameter in self.sync.parameters.items()}
        parameters = own if each else self.sync.consensus()
        state = self.sync.state_dict()
        self.saved_at = done
        if self.role.replica != 0 and not each:
            return
        whole = {"parameters": self.strategy.part_state(parameters), "sync": state}
        if dims := dims_of([self.module]):
            whole["split"] = dims
        name, digest = checkpoint.write_part(self.directory.checkpoints, done, self.role.part, self.role.replica, whole)
        board, key = self.world.board, f"checkpoint/{done}"
        board.post(f"{key}/{self.world.rank}", json.dumps([name, digest]))
        if self.is_chief:
            writers = range(self.layout.workers if each else self.layout.parts)
            sums = self._read_of_living(key, writers)
            identity = self.assignment.identity
            manifest = Manifest(done, meter.seconds, self.time_to_accuracy, dict(sums), identity, self.data_sums)
            checkpoint.commit(self.directory.checkpoints, manifest, self.experiment.checkpoint.keep)
            self.directory.append({"kind": "checkpoint", "step": done})

    # -- the end

    def _export(self) -> None:
        """The trained model as one safetensors file that any of these models loads."""
        state = self._consensus()
        if state is not None:
            self.exported = checkpoint.export(self.directory.path / "model.safetensors", state)

    def _report(self, meter: Meter, done: int, status: str, activations: int = 0) -> None:
        report = meter.report(self.world.rank, self.role, self._memory(activations), self.sync.report())
        board = self.world.board
        board.post(f"report/{self.world.rank}", json.dumps(report.as_json()))
        if self.is_chief:
            reports = self._all_reports()
            self._summarise(reports, meter, done, status)
            if self.assignment.trace is not None:
                write_trace(self.assignment.trace, reports, self.directory.name, self.parts.launcher.modelled)
            board.post("over", "")
        board.read("over", self.layout.chief)  # nobody leaves before the others need it no more

    def _all_reports(self) -> list[Report]:
        """Of all who are alive."""
        return [Report.from_json(plain) for plain in self._read_of_living("report", range(self.layout.world_size))]

    def _read_of_living(self, key: str, ranks: Iterable[int]) -> list[Any]:
        """What each of `ranks` posted, without those who died; where a death is the end of the run, it is one here."""
        found: list[Any] = []
        for rank in ranks:
            try:
                found.append(json.loads(self.world.board.read(f"{key}/{rank}", rank)))
            except PeerLostError:
                if not self.sync.survives:
                    raise
        return found

    def _memory(self, activations: int) -> dict[str, int]:
        held = {
            "parameters": memory.held(self.module.parameters()),
            "gradients": payload(list(self.sync.parameters.values())),
            "optimizer": memory.held(memory.optimizer_state(self.sync.optimizer)),
            "activations": activations,
            "buffers": memory.held([*self.sync.buffers(), *self.module.buffers()]),
        }
        kinds = dict(self.strategy.measured(self.sync.measured(held)))
        if not self.parts.launcher.modelled:  # else workers share a process
            kinds["other"] = memory.other(kinds, self.device, self.resident)
        return {**kinds, "process_peak": memory.process_peak()}

    def _summarise(self, reports: list[Report], meter: Meter, done: int, status: str) -> None:
        experiment, layout = self.experiment, self.layout
        plan = make_plan(experiment, self.assignment.allowed, layout.world_size).as_dict()
        measured = summarise(reports, layout)
        short = not self.parts.launcher.modelled and is_too_short(reports)  # a modelled clock is exact
        reason = {} if status == "completed" else {"reason": f"was asked to stop, after step {done}"}
        self.directory.write_summary(
            {
                "name": self.directory.name,
                **self._choices(),
                "status": status,
                "workers": layout.workers,
                "servers": layout.servers * layout.parts,
                "replicas": layout.replicas,
                "stages": layout.mesh.axes.get("stage", 1),
                "mesh": dict(layout.mesh.axes),
                "device": self.device.type,
                "steps": done,
                "epochs": done / self.steps_per_epoch,
                "resumed_at": self.resumed_at,
                "batch_size": experiment.batch_size,
                "effective_batch": effective_batch(self.parts.deal(), layout.replicas),
                "measured_after": self.untimed,
                "seed": experiment.seed,
                "modelled": self.parts.launcher.modelled,
                "event_digest": self.world.digest(),
                **(without_times(measured) if short else measured),
                "accuracy": None,
                self.parts.task.metric.name: self.last_evaluation.get(self.parts.task.metric.name),
                "loss": self.last_evaluation.get("loss"),
                "consensus_distance": self.last_evaluation.get("consensus_distance"),
                "target_accuracy": experiment.target_accuracy,
                "time_to_accuracy": self.time_to_accuracy,
                "seconds": max(self.evaluated_at, *(report.seconds for report in reports)),
                "model_sha256": self.exported,
                **reason,
                "predicted": {"bytes_per_step": plan["bytes_per_step"], "memory": plan["memory"]},
            }
        )
        self.directory.append({"kind": "end", "status": status, **reason})
