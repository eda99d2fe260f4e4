"""The features of a run, in the order in which they act."""

from .accumulating import Accumulated
from .adapting import Adapted, SendsKept
from .adversary import TrainsOnAttacks
from .averaging import Averaged
from .calling import Called
from .clipping import Clips
from .compiling import Compiled
from .distilling import Distilled
from .experts import ExpertReplicas
from .failing import Failing
from .feature import Chosen, Feature
from .freezing import Freeze
from .iterating import Iterates
from .pegasos import SolvesSVM
from .poisoning import Attacked
from .precisions import InPrecision
from .private import Private
from .robustness import EvaluatedOnAttacks

FEATURES: tuple[type[Feature], ...] = (
    Iterates,
    Failing,
    SolvesSVM,
    ExpertReplicas,
    EvaluatedOnAttacks,
    Called,  # sees what an attack of evaluated weights measured, and the loss as it is
    Adapted,
    Freeze,
    SendsKept,
    Averaged,  # after what changes weights
    Clips,
    Attacked,
    TrainsOnAttacks,
    Distilled,  # asks the teacher about changed samples
    Accumulated,
    InPrecision,  # casts and scales the loss that all before it have made
    Private,
    Compiled,
)


def features_of(chosen: Chosen) -> tuple[Feature, ...]:
    """Raises `ConfigError` and its like."""
    made = (feature.of(chosen) for feature in FEATURES)
    return tuple(each for each in made if each is not None)
