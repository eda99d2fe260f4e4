"""Checks for strategies, sync modes, compressors and aggregation rules of your own. See docs/testing_your_own.md.

>>> import pytest
>>> from paceline.testing import sync_checks
>>> from mine.local_average import LocalAverage
>>> @pytest.mark.parametrize("check", sync_checks(LocalAverage))
... def test_local_average(check):
...     check()
"""

from .aggregators import aggregator_checks, check_aggregator
from .checks import InvariantCheck, InvariantError
from .compressors import check_compressor, compressor_checks
from .fabrics import FABRICS
from .pairs import check_strategy, check_sync, strategy_checks, sync_checks
from .training import TrainingCase, TrainingPlan, distance, identical, serial, train, workers_of

__all__ = [
    "FABRICS",
    "InvariantCheck",
    "InvariantError",
    "TrainingCase",
    "TrainingPlan",
    "aggregator_checks",
    "check_aggregator",
    "check_compressor",
    "check_strategy",
    "check_sync",
    "compressor_checks",
    "distance",
    "identical",
    "serial",
    "strategy_checks",
    "sync_checks",
    "train",
    "workers_of",
]
