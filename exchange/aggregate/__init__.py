"""Rules that aggregate the gradients or weights of several workers: one file a rule. See base.py."""

from .base import Aggregator
from .bulyan import Bulyan
from .centered_clipping import CenteredClipping
from .draco import Draco
from .fltrust import FLTrust
from .geometric_median import GeometricMedian
from .krum import Krum, MultiKrum
from .majority_vote import MajorityVote
from .mda import MinimumDiameter
from .mean import Mean
from .median import Median
from .self_centered_clipping import SelfCenteredClipping
from .trimmed_mean import TrimmedMean
from .zeno import ZenoPlusPlus

__all__ = [
    "Aggregator",
    "Bulyan",
    "CenteredClipping",
    "Draco",
    "FLTrust",
    "GeometricMedian",
    "Krum",
    "MajorityVote",
    "Mean",
    "Median",
    "MinimumDiameter",
    "MultiKrum",
    "SelfCenteredClipping",
    "TrimmedMean",
    "ZenoPlusPlus",
]
