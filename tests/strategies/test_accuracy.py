"""Every sync mode learns digits as serial training does, within two points: on two processes and on 64 virtual workers.

Choices are found in conf/: whoever adds one is held to this. All but two are marked slow.
"""

from pathlib import Path

import pytest

import paceline.conf
from paceline import engine

SYNCS = sorted(path.stem for path in (Path(next(iter(paceline.conf.__path__))) / "sync").glob("*.yaml"))
SERIAL = ["strategy=single", "hardware.workers=1"]
TWO_PROCESSES = ["hardware.workers=2"]
OF_64 = ["experiment=digits_64"]
TOLERANCE = 0.02
RATES_OF_64 = {
    "hogwild": 0.002,  # each of 64 writers steps in full
    "hogwild_locked": 0.002,
    "easgd_round_robin": 0.01,  # who meets the centre once in 64 steps goes far
    "independent": 0.01,  # the mean of models that went far apart is a poor one
}


def trained_accuracy(root: Path, *overrides: str) -> float:
    everywhere = ["tracking=none", "checkpoint.every=0", "evaluate.every=1000"]
    result = engine.run([*overrides, *everywhere], root=root, quiet=True)
    assert result is not None and result.accuracy is not None
    return result.accuracy


@pytest.fixture(scope="module")
def serial_digits(fork_server, tmp_path_factory) -> float:
    return trained_accuracy(tmp_path_factory.mktemp("serial"), *SERIAL)


@pytest.fixture(scope="module")
def serial_of_64(tmp_path_factory) -> float:
    return trained_accuracy(tmp_path_factory.mktemp("serial"), *OF_64, *SERIAL)


def slow_but(fast: str) -> list[object]:
    return [sync if sync == fast else pytest.param(sync, marks=pytest.mark.slow) for sync in SYNCS]


@pytest.mark.parametrize("sync", slow_but("local_sgd"))
def test_two_processes_learn_as_well_as_one(serial_digits, tmp_path, sync):
    assert trained_accuracy(tmp_path, f"sync={sync}", *TWO_PROCESSES) >= serial_digits - TOLERANCE > 0.92


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sync", SYNCS)
def test_64_virtual_workers_learn_as_well_as_one(serial_of_64, tmp_path, sync):
    rate = [f"optimizer.lr={RATES_OF_64[sync]}"] if sync in RATES_OF_64 else []
    assert trained_accuracy(tmp_path, *OF_64, f"sync={sync}", *rate) >= serial_of_64 - TOLERANCE > 0.94
