"""A configuration planned exactly: what is shown, and all where no closed form is known."""

from dataclasses import replace
from pathlib import Path

from ..cost.predicted import NotPredicted, PredictedStep
from ..engine.api.preparing import Prepared, prepare
from ..engine.base.errors import InterruptedRunError
from ..engine.base.failures import named
from ..engine.config.experiment import Experiment
from ..engine.config.targets import build
from ..engine.fabrics import fabric_of
from ..engine.features import injected
from ..engine.features.failing import goes_on
from ..engine.planning.planned import Plan
from ..engine.predict.device_use import device_use
from ..engine.predict.fit import capacity_of, need_of
from ..strategies import Sync
from ..strategies.core.terms import BACK, lacks_of
from ..tracking.files import read_yaml
from .candidate import Candidate, Predicted
from .commands import overrides_of
from .limits import dollars
from .question import Question

SAVED = ("parameters", "optimizer", "host_parameters", "host_optimizer")  # in a checkpoint, of a worker's memory
PROFILE = Path(__file__).with_name("two_cores.yaml")


def prepared(question: Question, candidate: Candidate) -> Prepared:
    return prepare(overrides_of(question, candidate), question.config_dir, question.allowed)


def planned(question: Question, candidate: Candidate) -> Predicted:
    """Memory, bytes and time as `paceline plan` states them. A refusal is an answer, and so is any failure: `why`."""
    return with_step(question, candidate)[0]


def with_step(question: Question, candidate: Candidate) -> tuple[Predicted, PredictedStep | None]:
    try:
        return _planned(question, candidate)
    except InterruptedRunError:
        raise
    except Exception as error:  # one candidate's failure says nothing about the others
        return Predicted(candidate, None, 0, 0, 0, 0, None, exact=True, why=named(error)), None


def _planned(question: Question, candidate: Candidate) -> tuple[Predicted, PredictedStep | None]:
    ready = prepared(question, candidate)
    plan = ready.plan()
    capacity = None if _holds_whatever_it_needs(ready) else capacity_of(plan)
    if capacity is None:
        held = plan.largest()
        found = Predicted(candidate, None, held, held, 0, 0, plan.bytes_per_step(), exact=True)
        return _timed(question, ready, plan, found)
    need = need_of(plan, capacity)
    on_device = capacity.device is not None
    memory, software = capacity.machine.device_memory, plan.strategy.traits.software
    found = Predicted(
        candidate,
        None,
        need.device if on_device else need.host,
        need.host,
        need.device - (capacity.device or 0) if on_device else 0,
        need.host - capacity.host,
        plan.bytes_per_step(),
        exact=True,
        beyond_margin=device_use(need.device, memory, software).beyond_margin if on_device else 0,
    )
    return _timed(question, ready, plan, found)


def _holds_whatever_it_needs(ready: Prepared) -> bool:
    """A virtual cluster whose hosts are not described."""
    return fabric_of(ready.experiment).modelled and ready.experiment.hardware.machine is None


def takes_profile(experiment: Experiment) -> bool:
    """Returns whether times are by the shipped profile: workers are processes here, and nobody has measured this
    machine.
    """
    hardware, fabric = experiment.hardware, fabric_of(experiment)
    return not fabric.modelled and hardware.machine is None and hardware.calibration is None


def _with_times(ready: Prepared, plan: Plan) -> Prepared:
    experiment = ready.experiment
    if plan.device.type != "cpu" or not takes_profile(experiment):
        return ready
    hardware = experiment.hardware.model_copy(update={"calibration": read_yaml(PROFILE)})
    return replace(ready, experiment=experiment.model_copy(update={"hardware": hardware}))


def _timed(question: Question, ready: Prepared, plan: Plan, found: Predicted) -> tuple[Predicted, PredictedStep | None]:
    try:
        step = _with_times(ready, plan).step_time(plan)
    except NotPredicted as why:
        return replace(found, untimed=str(why)), None
    price = dollars(question, step.seconds, found.candidate.hosts)
    return _with_failures(question, ready, plan, replace(found, seconds=step.seconds, dollars=price)), step


def _with_failures(question: Question, ready: Prepared, plan: Plan, found: Predicted) -> Predicted:
    if question.failures is None:
        return found
    sync = build("sync", ready.experiment.choice("sync"), Sync, question.allowed, injected.usual())
    if BACK in lacks_of(sync):
        return replace(found, why=f"{BACK.lacking}, which --mtbf needs")
    checkpoint = max(sum(part.memory.get(kind, 0) for kind in SAVED) for part in plan.parts)
    return question.failures.lower(found, checkpoint, goes_on(sync) and plan.layout.parts == 1)
