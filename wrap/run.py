"""A script's own loop as a run: what the sync mode must be told, and when."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from operator import index
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from ..comm.rendezvous import job_of_torchrun
from ..conf.errors import check_options
from ..engine import ROOT
from ..engine.base import machine, memory
from ..engine.base.errors import DivergedError
from ..engine.base.started import RESUMES
from ..engine.base.stop import StopAgreement
from ..engine.base.trained import TrainedSet, Vectors, keep_memory
from ..engine.config.experiment import Experiment
from ..engine.training.meters import Meter
from ..exchange.alike import agree, is_compared
from ..strategies import Batch
from ..strategies.core.views import HeldViews
from .alike import BufferComparison, share_state
from .causes import name_cause
from .dry_run import dry_run, show
from .errors import ScriptError
from .gradients import Gradients
from .meetings import Meetings
from .order import ParameterOrder
from .record import WrapRecord, agreed
from .refusals import leave_at_once, say_no_traceback
from .saving import Checkpoints, Resumed, newest, newest_of_job, read
from .scores import score_of
from .setting import WrappedScript, check_model, experiment_of, sync_of
from .shares import Own, ShardedLoader, on_device
from .steps import WrappedOptimizer
from .stopping import CtrlC, Sigterm, Stopped, Unended, is_interactive
from .workers import Joined, join

Count = Callable[[Any], int]
_current: ContextVar[int] = ContextVar("current", default=0)  # the run of this thread, by its id


class _Unused(Exception):
    """Ends a step that was not begun."""


class Run:
    """The object that `wrap` returns. Used in a `with` statement, it ends with it; `close` ends it otherwise.

    `model` and `optimizer` are the script's own, on the device; `optimizer.step` is the sync mode's step, too. `loader`
    gives this worker's share of each batch. `rank`, `workers`: who this is, of how many; `is_chief`: who prints.
    `saved`: what the checkpoint that the run goes on from has of the script; {} at its beginning.
    """

    def __init__(
        self,
        script: WrappedScript,
        count: Count | None,
        resume: bool | None = False,
        meet: Callable[[Experiment], Joined] = join,
    ) -> None:
        """`meet`: how it comes to the others; see `wrap` for the rest."""
        model, optimizer = script.model, script.optimizer
        experiment = experiment_of(script)
        self.sync = sync_of(experiment, optimizer)
        self._resident = memory.process_now()
        machine.begin()
        joined = meet(experiment)
        try:
            check_model(script, self.sync, joined.layout.workers)
            self._comm, layout, self.device, self._leave = joined.comm, joined.layout, joined.device, joined.leave
            self.rank, self.workers = self._comm.rank, layout.workers
            views = HeldViews(model)
            self.model, self._inner, self._count = model.to(self.device), optimizer, count
            shared = ShardedLoader(script.loader, self.rank, self.workers, experiment.seed)
            self.loader = _Batches(self, shared, script.loader)
            resumed = self._resumed(experiment, script.root, resume)
            if resumed is not None:
                shared.check(resumed.own["place"])
            with self._comm.ledger.aside():
                group = self._comm.split(0, "replica")
                assert group is not None
                self._group = group
                trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
                self.sync.configure(replace(self.sync.setting, steps_per_epoch=len(shared)))
                share_state(model, group)
                if resumed is not None:
                    resumed.load_model(model)
                self._vectors = Vectors(trained.values())
                self._trained = TrainedSet(model, optimizer, self._vectors)
                order = ParameterOrder(model, optimizer)
                self.sync.prepare(trained, optimizer, group)
                keep_memory(optimizer)
                self._trained.accept(optimizer)
                self._vectors.accept()
                views.check(model, f"sync={experiment.sync.name}")
            self._checkpoints = Checkpoints(model, self.sync, order, shared, group, self.device)
            self._keep, self._activations = experiment.checkpoint.keep, memory.ActivationPeak()
            elapsed = resumed.manifest.seconds if resumed else 0.0
            self._meter = Meter(self._comm, 10, counts_pauses=False, elapsed=elapsed)
            place = shared.samples, script, resumed and resumed.manifest
            self._record = WrapRecord(experiment, self._comm, layout, self.device, self.sync, len(shared), *place)
            if resumed is not None:
                self._checkpoints.go_on(resumed)
        except Exception:
            joined.leave()
            raise
        self._hook = optimizer.register_step_pre_hook(self._check_step)
        self.gradients = Gradients(self.sync, order.stepped, optimizer, group, experiment.sync.knobs.get("shard"))
        self.optimizer = WrappedOptimizer(self, optimizer)
        self._updates = False  # the sync mode may step
        self._others = register_optimizer_step_post_hook(self._other_step)
        _current.set(id(self))
        self._held: dict[str, Tensor] | None = None  # the replica's own weights, inside of `consensus`
        self._buffers = BufferComparison(model, group, self.device)
        self.saved: dict[str, Any] = resumed.own["script"] if resumed else {}
        self.steps, self._skipped = resumed.manifest.step if resumed else 0, 0
        self._stop = StopAgreement(self._comm.key_values, self.rank, 0, "all", self.steps, time.monotonic)
        self._ctrl_c, self._sigterm = CtrlC(self._comm.key_values.request_stop, self.is_chief), Sigterm()
        atexit.register(self.end_if_open)
        self._process = os.getpid()  # a forked child has a copy of the run, and must not end it
        self._open: ExitStack | None = None  # a step that has begun
        self._loss: float | None = None
        self._passes = self._samples = 0  # in the step: calls of `backward`, and samples of all workers
        self.meetings = Meetings(self._comm.key_values, self.workers, lambda: self.steps + (self._passes > 0))
        self._batches = resumed.batches if resumed else 0  # that training was on, of all steps
        self._further: Own | None = None  # of a batch that came after the step's first pass
        self._own: Own = (0, 1)
        self._fetched: ref[Tensor] | None = None  # a tensor of the last batch
        self._unused: ref[Tensor] | None = None  # of a batch that no pass was on
        self._armed = self._left = False  # the step's last pass has been; the last step was left out by a fetch
        self._fetcher = 0  # the thread that fetched the last batch

    def _resumed(self, experiment: Experiment, root: Path, resume: bool | None) -> Resumed | None:
        """Reads the checkpoint to go on from. `resume`: None, if an earlier generation of torchrun's job left it."""
        if not resume and (resume is False or job_of_torchrun() is None):
            return None
        find = newest if resume else newest_of_job
        path = agreed(self._comm, self.workers, "resumed", lambda: find(experiment, root))
        return None if path is None else read(path, self.rank, self.workers, self.model)

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    @property
    def has_passes(self) -> bool:
        """Returns whether the step under way has had a backward pass."""
        return self._passes > 0

    @property
    def path(self) -> Path:
        """The run directory; `paceline compare` shows it."""
        return self._record.directory.path

    # -- a step

    def begin(self, batch: Any, own: Own) -> Any:
        """A batch comes: the first since the last step opens one, and the first pass on it begins it.

        A step whose passes are over is skipped: the script has not made it. A batch that no pass was on is no step.
        Raises `ScriptError`; on all workers `Stopped`, where one of them was asked to stop.
        """
        if self._open is not None and self._armed:
            self._skip()
            self._left = True
        elif self._open is None:
            self.gradients.clear(looks=True)
        self._fetcher = get_ident()
        if self._stop.before(self.steps, self._meter.last):
            reason = f"was asked to stop, after step {self.steps}"
            self._end(reason)
            if self.is_chief:
                print(f"the run {reason}; its summary and weights so far: {self.path}", file=sys.stderr, flush=True)
            raise Stopped(reason)
        batch = on_device(batch, self.device)
        if self._count is not None:
            own = self._counted(batch, own)
        if self._passes == 0:
            self._unused = self._fetched if self._open is not None else None
            self._leave_out()
        self._further = own if self._passes > 0 else None
        self._fetched = ref(first) if (first := _first_tensor(batch)) is not None else None
        if self._open is None:
            self._armed, self._own = False, own
            self._open = ExitStack()
            if self.steps == 0:
                self._open.enter_context(memory.activations(self._activations))
            self._open.enter_context(self._meter.step(own[0]))
        elif own[0] * self._own[1] != self._own[0] * own[1]:
            raise ScriptError(
                f"this worker has {own[0]} of {own[1]} in one batch of a step and {self._own[0]} of {self._own[1]} in "
                "another, so that the step has no one weight; use drop_last=True, and a batch_size that workers divide"
            )
        return batch

    def _counted(self, batch: Any, own: Own) -> Own:
        assert self._count is not None
        mine = _items(self._count(batch)) if own[0] else 0
        with self._comm.ledger.aside():
            every = self._group.all_gather(torch.tensor([mine], dtype=torch.int64, device=self.device))
        return mine, max(1, int(every.sum()))

    def backward(self, loss: Tensor, last: bool = True) -> None:
        """Replaces `loss.backward()`. `loss`: the mean over this worker's share of the batch.

        `last`: False where another batch's backward pass follows before the step (gradient accumulation). Raises
        `ScriptError`, or `DivergedError` where the loss is not finite.
        """
        self.check_here()
        if self._open is not None and self._fetcher != get_ident():
            raise ScriptError(
                "backward: another thread fetched the batch, and workers compare their batches while they are fetched. "
                "Fetch it in the thread that trains; num_workers of the DataLoader loads ahead"
            )
        if self._open is None or self._armed:
            raise ScriptError(
                "backward: after the step's last backward pass comes optimizer.step(), and before it a batch that "
                "run.loader has just given (itertools.cycle keeps those of its first round); for gradient accumulation "
                "give last=False to all but the last"
            )
        if self._passes == 0:
            self._left = False
            self._check_fetch()
            self._begin()
            self._samples = self._own[1]
            self._batches += 1
        elif self._further is not None:
            self._meter.add(self._further[0])
            self._samples += self._further[1]
            self._batches += 1
        self._further = None
        if self.workers > 1 and is_compared(self.steps + 1):
            self.gradients.look(loss, self._passes == 0)
        self._passes += 1
        if self._own[0] > 0:  # else the batch had fewer samples than there are workers
            value = loss.item()
            if not torch.isfinite(loss.detach()):
                raise DivergedError(f"worker {self.rank} diverged at step {self.steps}: the loss is {value}")
            self._loss = value
            self.sync.before_backward([loss], last)
            self.gradients.backward(loss)
        self._armed = last
        if last:
            self._trained.check(f"since step {self.steps}")
            self.gradients.finish(self.meetings.taken)
        else:
            self.gradients.pause()

    def _check_fetch(self) -> None:
        """Raises `ScriptError` where the pass may be of an earlier batch than the last: another share of samples, and
        no step of a checkpoint.

        A script that fetches ahead still holds a batch that no pass was on; one that left it out does not.
        """
        if self._unused is not None and self._unused() is not None:
            raise ScriptError(
                "backward: a batch was fetched before the step with the one before. Fetch each batch after "
                "run.optimizer.step(), and hold none that you leave out; num_workers of the DataLoader loads ahead"
            )

    def pass_begins(self) -> None:
        """The script may hold a batch of an earlier pass."""
        self._fetched = None

    def _begin(self) -> None:
        """Gradients of passes that the script made by itself, before it called `backward`, count."""
        if self.is_chief:
            self._checkpoints.tell_of_rates(self.optimizer)
        nothing = torch.empty(self._own[0], 0)
        held = self.gradients.begin(is_compared(self.steps + 1))
        self.sync.begin(Batch(nothing, nothing, self._own[1], self.steps))
        for parameter, gradient in held:
            parameter.grad = gradient

    def step(self) -> None:
        """Makes the step of `optimizer.step()`. Raises `ScriptError`."""
        if self._open is None or not self._armed:
            if self._left:
                raise ScriptError(
                    "optimizer.step: a batch was fetched after run.backward(loss), which left out the step. Fetch it "
                    "after run.optimizer.step()"
                )
            raise ScriptError("optimizer.step: needs run.backward(loss) before it, on a batch of run.loader")
        self._vectors.restore()
        self.gradients.settle(self.steps + 1)
        with self._updating():
            self.sync.update()
        self.gradients.hide_others()
        self._made()

    def _skip(self) -> None:
        """The script makes no step with these gradients."""
        self._skipped += 1
        self._meter.discount()
        with self._updating():
            self.gradients.skip(self.steps + 1)
        self._made()

    def _made(self) -> None:
        assert self._open is not None
        self._open.close()
        self._open, self._passes, self._armed = None, 0, False
        self.steps += 1
        self._record.step(self.steps, self._batches, self._loss, self._samples, self._meter)
        if self.sync.traits.weights_agree:
            self._buffers.after(self.steps)

    @contextmanager
    def _updating(self) -> Iterator[None]:
        self._updates = True
        try:
            yield
        finally:
            self._updates = False

    def _check_step(self, *_: Any) -> None:
        if not self._updates and self._is_here():
            raise ScriptError("optimizer.step: workers would step apart. Instead, call run.optimizer.step()")

    def _other_step(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer has stepped, whichever it is."""
        if self.workers > 1 and not self._updates and _current.get() == id(self):
            self.gradients.meet(optimizer)

    def _leave_out(self) -> None:
        """An open step in which no pass was made is none."""
        if self._open is not None:
            with suppress(_Unused), self._open:
                raise _Unused
            self._open = None

    # -- what training made

    def save(self, **state: Any) -> None:
        """Write a checkpoint that the run can go on from. All workers call it, between two steps.

        `state`: what the script keeps of its own (`epoch=epoch, schedule=schedule.state_dict()`): dicts, lists,
        tensors, numbers and texts. A run that goes on has it in `saved`. Raises `ScriptError`, or `StorageError`.
        """
        self.check_here()
        if self._record.is_over or self._passes > 0:
            raise ScriptError("save: a step has begun, or the run is over. Call it after run.optimizer.step()")
        self.meetings.meet("saves")
        self._vectors.restore()
        record = self._record
        reached, seconds, done = record.reached, self._meter.seconds, self.steps
        with self._lent({} if self._held is None else self._held):
            self._checkpoints.write(record.directory, done, self._batches, seconds, reached, self._keep, state)

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Gives the model the weights that all replicas agree on, for an evaluation. All workers enter it."""
        self._vectors.restore()
        if not self.sync.traits.weights_agree:
            self.meetings.meet("enters run.consensus()")
        with self._comm.ledger.aside():
            agreed = self.sync.consensus()
        with self._lent(agreed) as own:
            outer, self._held = self._held, own if self._held is None else self._held
            try:
                yield
            finally:
                self._held = outer

    @contextmanager
    def _lent(self, weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Gives the model these weights for a while. Yields those that it had."""
        trained = {name: self.sync.parameters[name] for name in weights}
        had = {name: parameter.detach().clone() for name, parameter in trained.items()}
        _put(trained, weights)
        try:
            yield had
        finally:
            _put(trained, had)

    def evaluated(self, value: float | Tensor, metric: str = "accuracy", loss: float | Tensor | None = None) -> None:
        """Record what an evaluation gave: on the chief, or on all.

        Raises `DivergedError` where it is not finite, and `ScriptError` for what is no accuracy from 0 to 1.
        """
        score = score_of(metric, value, loss, f"worker {self.rank}", self.steps)
        if self._is_here():
            self._record.evaluated(self.steps, self._batches, score, self._meter.seconds)

    def close(self) -> None:
        """The run is over: all workers leave the consensus in the model; the chief writes it, and the summary."""
        if self._record.is_over or not self._is_here():
            return
        if self._passes > 0 and self.is_chief and not (self._armed and self.gradients.are_dropped()):
            print(
                f"note: the last step, {self.steps + 1}, has gradients and was not made: no run.optimizer.step() "
                "followed run.backward(loss). It is left out.",
                file=sys.stderr,
                flush=True,
            )
        if self._armed:
            self._skip()
        self._leave_out()
        if 0 < self._skipped == self.steps:
            raise ScriptError(
                f"close: none of the {self.steps} steps was made. Call run.optimizer.step() after run.backward(loss)"
            )
        self._vectors.restore()
        self.meetings.meet("ends its run")
        self.gradients.compare_weights(self.steps)  # the script may have left its loop since the last comparison
        self._end(None)

    def _end(self, stopped: str | None) -> None:
        """`stopped`: why it ends before its end."""
        self._let_go()
        with self._comm.ledger.aside():
            agreed = self.sync.consensus()
            self.sync.finish()
            _put(self.sync.parameters, agreed)
        self._record.over(self.model, self._meter, self._batches, self._activations.peak, self._resident, stopped)
        self._leave()

    def _let_go(self) -> None:
        """The script's process, model and optimizer are its own again."""
        atexit.unregister(self.end_if_open)
        self._ctrl_c.let_go()
        self._sigterm.let_go()
        self._hook.remove()
        self._others.remove()
        self.gradients.close()

    def agrees(self, number: int) -> bool:
        """Returns True if all workers have this number."""
        return agree(number, self._group, self.device)

    def check_here(self) -> None:
        """Raises `ScriptError` in a forked child: it would take part in what the workers say to one another."""
        if not self._is_here():
            raise ScriptError("run: a forked child cannot train. End it with os._exit(0), or train in its parent.")

    def _is_here(self) -> bool:
        return os.getpid() == self._process

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_here():
            return
        if error is None:
            try:
                self.close()
            except BaseException as failure:  # Ctrl-C and SIGTERM, too
                self._fail(failure)
                raise
        else:
            self._fail(error)

    def end_if_open(self) -> None:
        """Ends a run that the script left open, with the error that ended the script. Without one the user is told.

        Python does not say by which status `sys.exit` ended the script.
        """
        if self._record.is_over or not self._is_here() or is_interactive():
            return
        error: BaseException | None = getattr(sys, "last_value", None) or self._sigterm.raised
        with suppress(Exception):
            self._fail(error or Unended())
            if error is None and self.is_chief:
                print(
                    f"wrap: the run {self.path.name} was not ended, and has no summary and no weights. Use wrap in a "
                    "with statement, or call run.close().",
                    file=sys.stderr,
                )

    def _fail(self, error: BaseException) -> None:
        name_cause(error, self.rank, self.workers, self._own)
        self._leave_out()  # the step is not to go on
        if self.workers > 1:
            leave_at_once()
        self._let_go()
        if not self._record.is_over:
            self._record.failed(error)
            if self.workers == 1:  # others find out by themselves; to say goodbye would be to wait for them
                self._leave()


class _Batches:
    """The script's loader: this worker's share of each of its batches."""

    def __init__(self, run: Run, loader: ShardedLoader, script: "DataLoader[Any]") -> None:
        """`script`: the script's own, which has the attributes of a loader."""
        self._run, self._loader, self._script = run, loader, script

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"the loader of a run has no attribute {name!r}")
        return getattr(self._script, name)

    def __iter__(self) -> Iterator[Any]:
        self._run.pass_begins()
        for batch, own in self.fetched():
            yield self._run.begin(batch, own)

    def fetched(self) -> Iterator[tuple[Any, Own]]:
        """The batches, for a loop that fetches several ahead and calls `Run.begin` with each before its pass."""
        self._run.check_here()
        self._run.meetings.meet("begins a pass")
        number = drawn = 0
        for number, (batch, own, drawn) in enumerate(self._loader.passes(), 1):
            self._run.meetings.take()
            if is_compared(number):
                self._compare(drawn)
            yield batch, own
        if number > 0 and not is_compared(number):
            self._compare(drawn)
        self._run.gradients.compare_weights(self._run.steps)

    def _compare(self, drawn: int) -> None:
        """All workers must have drawn the same order. Raises `ScriptError`."""
        self._run.meetings.meet("compares its order of samples")
        if not self._run.agrees(drawn):
            raise ScriptError(
                "workers draw different orders from the loader's sampler, so that they would train on samples twice; "
                "give the sampler a generator with the same seed on all of them, or shuffle=True"
            )


def _items(value: Any) -> int:
    """Returns the number that `count` gave, which may be a tensor or of NumPy's. Raises `ScriptError`."""
    with suppress(TypeError):
        if (found := index(value)) >= 0:
            return found
    raise ScriptError(f"count: gave {value} of a batch; must be a whole number, 0 or more: the items in its loss")


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    inside = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((found for each in inside if (found := _first_tensor(each)) is not None), None)


def _put(parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    loader: "DataLoader[Any]",
    *overrides: str,
    name: str | None = None,
    root: Path | str = ROOT,
    epochs: int = 1,
    steps: int | None = None,
    count: Count | None = None,
    resume: bool | None = None,
) -> Run:
    """Put a loop of one's own on paceline's replicas and under its meters.

    `overrides`: of the sync mode and what it is given, `tracking`, `seed`, `hardware.timeout`, as on the command line.
    `loader`: its batches are the steps' batches, however many workers share them out, so that a run on K workers is
    that on one. `epochs`: passes that the script will make, for the record. `steps`: its steps in all, for the record;
    None: one for each batch. `count`: of how many items the loss of a batch is the mean, where these are not its
    samples: unmasked tokens, say. `resume`: go on with the run called `name` from what `Run.save` wrote last; None: as
    `paceline launch --resume` says, and where one job of torchrun starts the script again. Raises `ConfigError`; a
    script that does not catch it ends with its message and its exit status.
    """
    say_no_traceback()
    check_options("a text or None", name=name)
    check_options("a text or a Path", root=root)
    script = WrappedScript(model, optimizer, loader, overrides, name, Path(root), epochs, steps)
    if workers := dry_run():
        show(script, workers)
    return Run(script, count, True if resume is None and RESUMES in os.environ else resume)
