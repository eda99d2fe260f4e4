"""Callbacks look at a run as it trains: they record numbers, end it early, keep the best weights. One file each."""

from .base import Callback, EvaluationView, Norms, StepView
from .best import Best
from .by_client import ByClient
from .dynamic_int8 import DynamicInt8
from .early_stop import EarlyStop
from .gradient_norm import GradientNorm
from .noise_scale import NoiseScale
from .purity import Purity

__all__ = [
    "Best",
    "ByClient",
    "Callback",
    "DynamicInt8",
    "EarlyStop",
    "EvaluationView",
    "GradientNorm",
    "NoiseScale",
    "Norms",
    "Purity",
    "StepView",
]
