"""`failures`: workers and links of the virtual cluster fail (engine/fabrics/failures.py).

Failures of links act on the network by themselves. A failure of a worker costs time (engine/fabrics/interruptions.py):

- The sync mode `survives` and takes a worker back (`Rejoins`): only the worker that failed loses the step under way. It
  is away for the restart, and begins again with what the servers or the others have.
- Any other mode: all workers go back to the last checkpoint.

Servers do not fail.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Self

from torch import nn

from ...comm import Comm
from ...comm.network import ModelledNetwork
from ...conf.counted import counted
from ...conf.errors import ConfigError
from ...strategies import Sync
from ...strategies.core.cost import World, payload
from ...strategies.core.rejoining import Rejoins
from ...strategies.core.terms import BACK, SKIPS, WHOLE_REPLICA, Need
from ..config.experiment import Experiment
from ..config.fits import batch_of
from ..config.looking import Tried, tried
from ..fabrics.compute import ModelledCompute
from ..fabrics.failures import Failures
from ..fabrics.interruptions import Absence, Agreement, CheckpointTimes, LostTime, Moments, Rollbacks
from ..fabrics.worker_failures import WorkerFailures
from .feature import Chosen, Context, Feature, Hooks, Known, Parts
from .optimizer_state import optimizer_state


class Failing(Feature):
    """Workers or links fail in the course of a run."""

    key = "failures"
    unpredicted = "lets workers or links fail in the course of a run, and a prediction is of one step"

    def __init__(self, failures: Failures, network: ModelledNetwork) -> None:
        self.failures, self.network = failures, network
        self._times: dict[nn.Module, CheckpointTimes] = {}  # known already, by model
        self._steps: dict[nn.Module, float] = {}  # likewise

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        if type(chosen.failures) is Failures:
            return None
        if not chosen.fabric.modelled:
            raise ConfigError(
                f"failures={chosen.experiment.choice('failures').name}: needs a modelled clock and network. Choose "
                "hardware=virtual, or failures=none."
            )
        network = chosen.fabric.network(chosen.experiment.hardware)
        assert network is not None, "a virtual cluster has a network"
        layout, of_workers = chosen.layout, isinstance(chosen.failures, WorkerFailures)
        return cls(chosen.failures, ModelledNetwork(network, layout.workers if of_workers else layout.world_size))

    @classmethod
    def unmodelled(cls, experiment: Experiment, allowed: tuple[str, ...]) -> str:
        return "" if experiment.choice("failures").name == "none" else "lets workers or links fail"

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        if not isinstance(self.failures, WorkerFailures):
            return ()
        back = Need(BACK, "has workers fail and come back", instead="failures=none")
        if not goes_on(chosen.sync):
            return (back,)
        lost = "has one worker lose its step while the others go on"
        return (back, Need(WHOLE_REPLICA, lost), Need(SKIPS, lost))

    def check(self, chosen: Chosen) -> None:
        self.failures.check(self.network)

    def check_parts(self, parts: Parts) -> None:
        if isinstance(self.failures, WorkerFailures) and goes_on(parts.sync):
            self._check_left(parts, self.failures)

    def _check_left(self, parts: Parts, failures: WorkerFailures) -> None:
        """Refuses more failures at once than the sync mode survives."""
        sync, replicas = parts.sync, parts.layout.replicas
        trained = [each for each in parts.modules[0].parameters() if each.requires_grad]
        waits_for = sync.transfers(trained, World(replicas)).waits_for
        most = replicas - waits_for if waits_for is not None else replicas if sync.servers else replicas - 1
        taken, key = failures.at_once(self.network)
        if min(taken, replicas) > most:
            raise ConfigError(
                f"{key}: takes {counted(taken, 'worker')} at once, and sync={parts.experiment.sync.name} goes on "
                f"without {most} at most. Choose fewer at once, or another sync mode, such as asp, or bsp, which goes "
                "back to a checkpoint."
            )

    def check_steps(self, known: Known) -> None:
        if not isinstance(self.failures, WorkerFailures):
            return
        step = self._step(known.parts)
        if not goes_on(known.parts.sync):
            self.times(known.parts).check(step, self.failures.longest())
            return
        between, restart = self.failures.between_of_worker(self.network), self.failures.restart
        if between < step + restart / 5 or self.failures.longest_of_worker(self.network) <= step + restart:
            raise ConfigError(
                f"failures: a worker fails every {between:.4g} s on average, which is too often for steps of "
                f"{step:.4g} s and restarts of {restart:.4g} s. Choose rarer failures, or a shorter failures.restart."
            )

    def times(self, parts: Parts) -> CheckpointTimes:
        """Returns the times of checkpoints where a failure stops all. Each worker writes its part of a replica."""
        own = self.failures
        assert isinstance(own, WorkerFailures)
        if parts.model not in self._times:
            nbytes = max(_checkpoint_bytes(parts, module) for module in parts.modules)
            between = own.between(self.network)
            self._times[parts.model] = CheckpointTimes.of(between, nbytes, own.storage, own.restart, own.interval)
        return self._times[parts.model]

    def _step(self, parts: Parts) -> float:
        if parts.model not in self._steps:
            self._steps[parts.model] = _step_seconds(parts)
        return self._steps[parts.model]

    @cached_property
    def _agreement(self) -> Agreement:
        assert isinstance(self.failures, WorkerFailures)
        return Agreement(Moments(self.failures.of_run(self.network)))

    def hooks(self, context: Context) -> Hooks | None:
        if not isinstance(self.failures, WorkerFailures):
            return None
        if goes_on(context.parts.sync):
            moments = Moments(self.failures.moments(context.comm.rank, self.network))
            return LosesStep(context, Absence(moments, self.failures.restart, context.comm.now()))
        rollbacks = Rollbacks(self._agreement, self.times(context.parts), context.comm.now())
        return GoesBack(context.comm, rollbacks)

    def notes(self, known: Known) -> list[str]:
        if not isinstance(self.failures, WorkerFailures):
            return []
        name = known.parts.experiment.choice("failures").name
        if goes_on(known.parts.sync):
            return [
                f"failures={name}: a worker that fails loses its step and comes back after {self.failures.restart:g} "
                "s; the others go on, and servers do not fail (modelled)"
            ]
        times = self.times(known.parts)
        return [
            f"failures={name}: somebody fails every {times.between:.4g} s on average, and all go back to the last "
            f"checkpoint; one is written every {times.interval:.4g} s and takes {times.write:.4g} s (modelled)"
        ]


def goes_on(sync: Sync) -> bool:
    """Returns whether the other workers go on while one that failed is away."""
    return sync.traits.survives and isinstance(sync, Rejoins)


def _checkpoint_bytes(parts: Parts, module: nn.Module) -> int:
    """Returns the bytes of a part's weights and of its optimizer's state."""
    parameters = list(module.parameters())
    trained = [each for each in parameters if each.requires_grad]
    return payload([*parameters, *module.buffers()]) + optimizer_state(parts, parameters, trained)


def _step_seconds(parts: Parts) -> float:
    """Returns the modelled seconds of the passes of a step on an undisturbed worker: at least so many if the model is
    cut into parts, and 0 where nobody knows yet.
    """
    compute = parts.compute
    assert compute is not None, "failures are those of a virtual cluster"
    if compute.is_measured or tried(parts.experiment) is Tried.REAL:
        return 0.0
    inputs, _ = batch_of(parts.data.spec, parts.experiment.batch_size)
    if parts.layout.parts > 1:
        return compute.least(parts.model, inputs, parts.layout.parts)
    compute.keep(0, parts.modules[0])
    cost = compute.of(0, inputs)
    return cost.forward + cost.backward


class _CountsLostTime(Hooks):
    """Tells what failures cost a worker."""

    all_notice: ClassVar[bool]  # each failure stops all, so that each worker counts it

    def __init__(self, lost: LostTime) -> None:
        self.lost = lost

    def told(self) -> Mapping[str, float]:
        return self.lost.told()

    def overall(self, told: Sequence[Mapping[str, float]], seconds: float) -> Mapping[str, float]:
        failures, *lost = LostTime.KEYS
        noticed = [each[failures] for each in told]
        total = {key: sum(each[key] for each in told) for key in lost}
        return {
            failures: max(noticed) if self.all_notice else sum(noticed),
            **total,
            "goodput": 1 - sum(total.values()) / seconds if seconds else 1.0,
        }


class GoesBack(_CountsLostTime):
    """A worker that goes back to the last checkpoint together with all others."""

    all_notice = True

    def __init__(self, comm: Comm, rollbacks: Rollbacks) -> None:
        super().__init__(rollbacks.lost)
        self._comm, self.rollbacks = comm, rollbacks

    def follow(self, before: Hooks) -> None:
        assert isinstance(before, GoesBack)
        self.rollbacks, self.lost = before.rollbacks, before.lost

    def after_update(self, step: int, took: bool) -> None:
        self._comm.catch_up()
        _away(self._comm, self.rollbacks.at_end_of(step, self._comm.now()))


class LosesStep(_CountsLostTime):
    """A worker that fails by itself, and comes back."""

    all_notice = False

    def __init__(self, context: Context, absence: Absence) -> None:
        super().__init__(absence.lost)
        assert isinstance(context.compute, ModelledCompute) and isinstance(context.parts.sync, Rejoins)
        self._comm, self._compute, self._sync = context.comm, context.compute, context.parts.sync
        self.absence, self._has_failed = absence, False

    def follow(self, before: Hooks) -> None:
        assert isinstance(before, LosesStep)
        self.absence, self.lost = before.absence, before.lost

    def begin_step(self, step: int) -> None:
        self._compute.fails_at(self.absence.fails_at)

    def after_backward(self, step: int) -> None:
        back = self.absence.back(self._comm.now())
        self._has_failed = back is not None
        if back is not None:
            _away(self._comm, back)
            self._sync.rejoin()

    def takes_step(self) -> bool:
        return not self._has_failed

    def after_update(self, step: int, took: bool) -> None:
        self.absence.is_over(self._comm.now())


def _away(comm: Comm, until: float) -> None:
    """Lets time pass in which the worker waits."""
    begin = comm.now()
    if until <= begin:
        return
    comm.elapse(until - begin)
    end = comm.now()
    waiting = comm.timeline.launched(f"{comm.name}:{comm.rank} away", "away", end)
    comm.timeline.add(waiting, begin, end)
