"""The config groups whose choices name a class. To add one, see CONTRIBUTING.md.

Everything that composes, checks, builds, records or shows choices reads this table. It imports no other room, so that
every room may read it.
"""

from dataclasses import dataclass
from pathlib import Path

CONF = Path(__file__).parent  # the YAML files of the choices


@dataclass(frozen=True)
class ConfigGroup:
    """A folder `name` of YAML files, each of which names a class derived from `base` and its parameters."""

    name: str
    meaning: str  # one line, for the glossary
    modules: tuple[str, ...]  # where the classes of choices may be, beside the modules that the user allows
    base: str  # in full: paceline.strategies.core.sync.Sync
    injected: bool = False  # built for each worker and passed to the sync mode or strategy that has a parameter `name`
    shown: bool = True  # in records and comparisons
    usual: str | None = None  # the choice that is not worth a column, and what runs had before there was the group
    example: str = ""  # where a refusal says that a class of one's own is shown
    rank: int = 7  # of its column, as columns.Column.rank
    composed: str = ""  # the class that is made of several choices, A+B; its knob `parts` has them by name

    def __post_init__(self) -> None:
        assert self.usual or not self.injected, f"{self.name}: what nobody needs to have a use for is its usual choice"


GROUPS = (
    ConfigGroup(
        "model",
        "the choice of model",
        modules=("paceline.tasks", "torch.nn"),
        base="torch.nn.Module",
    ),
    ConfigGroup(
        "data",
        "the choice of data set",
        modules=("paceline.tasks",),
        base="paceline.tasks.base.Data",
        example="a torch Dataset becomes one in a few lines: docs/own_data.md",
    ),
    ConfigGroup(
        "task",
        "the loss that is trained, and the metric that is reported beside it",
        modules=("paceline.tasks",),
        base="paceline.tasks.losses.base.Task",
        usual="cross_entropy",
        example="CONTRIBUTING.md says how a loss is added",
    ),
    ConfigGroup(
        "adversarial_training",
        "what a batch is changed to, so that the model errs on it, before it is learnt",
        modules=("paceline.tasks",),
        base="paceline.tasks.adversarial.training.AdversarialTraining",
        usual="none",
    ),
    ConfigGroup(
        "distillation",
        "whose outputs are learnt beside the labels",
        modules=("paceline.tasks",),
        base="paceline.tasks.distillation.Distillation",
        usual="none",
    ),
    ConfigGroup(
        "adapt",
        "what is done to the model before it trains, or while it does",
        modules=("paceline.strategies",),
        base="paceline.strategies.adapt.base.Adapt",
        usual="none",
    ),
    ConfigGroup(
        "freeze",
        "which layers of the model keep their weights",
        modules=("paceline.engine",),
        base="paceline.engine.features.freezing.Freeze",
        usual="none",
        example="CONTRIBUTING.md says how a feature is added",
    ),
    ConfigGroup(
        "strategy",
        "how one replica of the model is laid over its workers",
        modules=("paceline.strategies",),
        base="paceline.strategies.core.strategy.Strategy",
        example="CONTRIBUTING.md shows one",
        rank=1,
    ),
    ConfigGroup(
        "sync",
        "how replicas agree",
        modules=("paceline.strategies",),
        base="paceline.strategies.core.sync.Sync",
        example="CONTRIBUTING.md shows one",
        rank=1,
        composed="paceline.strategies.sync.composed.Composed",
    ),
    ConfigGroup(
        "partition",
        "how samples are dealt to replicas",
        modules=("paceline.tasks",),
        base="paceline.tasks.partition.Partitioner",
        usual="shuffled",
    ),
    ConfigGroup(
        "optimizer",
        "what makes a step of a gradient",
        modules=("paceline.strategies", "torch.optim"),
        base="torch.optim.Optimizer",
        shown=False,
    ),
    ConfigGroup(
        "schedule",
        "how the learning rate goes over a run",
        modules=("paceline.strategies",),
        base="paceline.strategies.core.schedule.Schedule",
        usual="none",
        example="CONTRIBUTING.md says how a schedule is added",
    ),
    ConfigGroup(
        "precision",
        "in which numbers passes compute, while weights stay float32",
        modules=("paceline.strategies",),
        base="paceline.strategies.core.precision.Precision",
        usual="fp32",
    ),
    ConfigGroup(
        "average",
        "which weights are evaluated and saved: those that are trained, or an average of them over steps",
        modules=("paceline.strategies",),
        base="paceline.strategies.averages.base.Average",
        usual="none",
    ),
    ConfigGroup(
        "stragglers",
        "the delays that were added to workers",
        modules=("paceline.engine",),
        base="paceline.engine.fabrics.stragglers.Stragglers",
        usual="none",
    ),
    ConfigGroup(
        "failures",
        "which workers or links of a virtual cluster fail, and when",
        modules=("paceline.engine",),
        base="paceline.engine.fabrics.failures.Failures",
        usual="none",
    ),
    ConfigGroup(
        "clip",
        "what is done to a gradient that is too large",
        modules=("paceline.exchange",),
        base="paceline.exchange.clip.Clip",
        injected=True,
        usual="none",
    ),
    ConfigGroup(
        "compress",
        "what is sent in place of gradients, weights or their differences",
        modules=("paceline.exchange",),
        base="paceline.exchange.compress.Compressor",
        injected=True,
        usual="none",
    ),
    ConfigGroup(
        "collective",
        "how a sum over replicas is made",
        modules=("paceline.exchange",),
        base="paceline.exchange.collectives.Collective",
        injected=True,
        usual="fabric",
    ),
    ConfigGroup(
        "aggregate",
        "how the gradients, or weights, of several workers become one",
        modules=("paceline.exchange",),
        base="paceline.exchange.aggregate.Aggregator",
        injected=True,
        usual="mean",
    ),
    ConfigGroup(
        "server",
        "how a federated server steps with what clients bring",
        modules=("paceline.exchange",),
        base="paceline.exchange.server.ServerRule",
        injected=True,
        usual="plain",
    ),
    ConfigGroup(
        "client",
        "how a federated client trains in a round, and what it delivers beside its weights",
        modules=("paceline.exchange",),
        base="paceline.exchange.client.ClientRule",
        injected=True,
        usual="plain",
    ),
    ConfigGroup(
        "attack",
        "what workers that lie send",
        modules=("paceline.exchange",),
        base="paceline.exchange.attack.Attack",
        injected=True,
        usual="none",
    ),
    ConfigGroup(
        "privacy",
        "whose data a trained model may not give away, and what is done for it",
        modules=("paceline.exchange",),
        base="paceline.exchange.privacy.Privacy",
        injected=True,
        usual="none",
    ),
    ConfigGroup(
        "secure",
        "whether a federated server sees what each client brings, or the sum alone",
        modules=("paceline.exchange",),
        base="paceline.exchange.secure.Secure",
        injected=True,
        usual="none",
    ),
    ConfigGroup(
        "launcher",
        "where the processes of a run are started",
        modules=("paceline.engine",),
        base="paceline.engine.jobs.scheduler.Here",
        shown=False,
        usual="auto",
    ),
)
BY_NAME = {group.name: group for group in GROUPS}
SHOWN = tuple(group for group in GROUPS if group.shown)  # in the order of their columns
# Of callbacks there are any number in a run, each by a name of its own: `callbacks=[early_stop,best]`.
CALLBACKS = ConfigGroup(
    "callbacks",
    "what looks at training: records numbers, ends a run early, keeps the best weights",
    modules=("paceline.engine",),
    base="paceline.engine.callbacks.base.Callback",
    shown=False,
    example="docs/callbacks.md shows one",
)
NAMING = BY_NAME | {CALLBACKS.name: CALLBACKS}  # the groups whose choices name a class
