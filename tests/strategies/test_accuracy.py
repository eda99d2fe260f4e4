"""Every sync mode learns digits as serial training does, but for the points that its class says it may lose.

On two processes and on 64 virtual workers. Choices are found in conf/: whoever adds one is held to this. All but two
are marked slow.
"""

from pathlib import Path

import pytest
from choices import SYNCS, overrides_for

from paceline import engine

SERIAL = ["strategy=single", "hardware.workers=1"]
TWO_PROCESSES = ["hardware.workers=2"]
OF_64 = ["experiment=digits_64"]

pytestmark = pytest.mark.drawn_alone  # all of 64 workers take a quarter of an hour


def trained_accuracy(root: Path, *overrides: str) -> float:
    everywhere = ["tracking=none", "checkpoint.every=0", "evaluate.every=1000"]
    result = engine.run([*overrides, *everywhere], root=root, quiet=True)
    assert result is not None and result.accuracy is not None
    return result.accuracy


@pytest.fixture(scope="module")
def serial_digits(fork_server, tmp_path_factory) -> float:
    accuracy = trained_accuracy(tmp_path_factory.mktemp("serial"), *SERIAL)
    assert accuracy > 0.94
    return accuracy


@pytest.fixture(scope="module")
def serial_of_64(tmp_path_factory) -> float:
    accuracy = trained_accuracy(tmp_path_factory.mktemp("serial"), *OF_64, *SERIAL)
    assert accuracy > 0.96
    return accuracy


def slow_but(fast: str) -> list[object]:
    return [sync if sync == fast else pytest.param(sync, marks=pytest.mark.slow) for sync in SYNCS]


@pytest.mark.slow
@pytest.mark.parametrize("sync", slow_but("local_sgd"))
def test_two_processes_learn_as_well_as_one(serial_digits, tmp_path, sync):
    enough = serial_digits - SYNCS[sync].trial.accuracy_lost
    assert trained_accuracy(tmp_path, f"sync={sync}", *overrides_for(sync), *TWO_PROCESSES) >= enough


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sync", SYNCS)
def test_64_virtual_workers_learn_as_well_as_one(serial_of_64, tmp_path, sync):
    trial = SYNCS[sync].trial
    wanted = [f"{key}={value}" for key, value in {**trial.beside, **trial.optimizer, **trial.of_64}.items()]
    assert trained_accuracy(tmp_path, *OF_64, f"sync={sync}", *wanted) >= serial_of_64 - trial.accuracy_lost
