"""Factors of uneven workers: repeatable, of the distribution that they name, refused where they cannot be."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.fabrics.stragglers import (
    Exponential,
    LogNormal,
    NoStragglers,
    OneSlow,
    Pareto,
    Stragglers,
    Trace,
    UnevenDevices,
)
from paceline.engine.planning.build import assemble

RANDOM = {"exponential": Exponential, "lognormal": LogNormal, "pareto": Pareto}
each_random = pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
SAMPLES = 4000


def factors(stragglers: Stragglers, workers: int = 40, steps: int = 100) -> list[float]:
    return [stragglers.factor(worker, step) for worker in range(workers) for step in range(steps)]


@each_random
@given(seed=st.integers(0, 2**63 - 1), worker=st.integers(0, 4095), step=st.integers(0, 10**9))
def test_a_factor_depends_on_seed_worker_and_step_alone(
    make: Callable[[int], Stragglers], seed: int, worker: int, step: int
) -> None:
    stragglers = make(seed)
    first = stragglers.factor(worker, step)
    factors(stragglers, 2, 2)
    assert stragglers.factor(worker, step) == make(seed).factor(worker, step) == first > 0


@each_random
def test_another_seed_worker_or_step_has_another_factor(make: Callable[[int], Stragglers]) -> None:
    all_of_them = [f for seed in (0, 1) for f in factors(make(seed), 20, 20)]
    assert len(set(all_of_them)) == len(all_of_them)


def test_the_distributions_are_those_that_they_are_called_after() -> None:
    """Within five standard errors of their closed forms."""
    error = 5 / SAMPLES**0.5
    exponential = [(f - 2.0) / 0.5 for f in factors(Exponential(0, base=2.0, scale=0.5))]
    assert min(exponential) > 0
    assert mean(exponential) == pytest.approx(1.0, abs=error)
    assert mean(e > 1.0 for e in exponential) == pytest.approx(2.718281828**-1, abs=error / 2)
    lognormal = factors(LogNormal(0, sigma=0.5))
    assert median(lognormal) == pytest.approx(1.0, abs=error)
    assert mean(lognormal) == pytest.approx(2.718281828 ** (0.5**2 / 2), abs=error)
    pareto = factors(Pareto(0, alpha=2.5))
    assert min(pareto) >= 1.0
    for bound in (1.2, 2.0, 4.0):  # P(factor > x) = x^-alpha
        assert mean(f > bound for f in pareto) == pytest.approx(bound**-2.5, abs=error / 2)


def test_devices_of_several_kinds_are_as_fast_in_every_step() -> None:
    devices = UnevenDevices([6.0, 3.0, 12.0])
    assert [devices.factor(worker, 7) for worker in range(5)] == [2.0, 1.0, 4.0, 2.0, 1.0]
    assert factors(devices, 3, 2) == [2.0, 2.0, 1.0, 1.0, 4.0, 4.0]


def test_phones_are_as_slow_as_they_were_measured() -> None:
    phones = assemble(prepare(["stragglers=phones", "tracking=none"]).experiment, ()).stragglers
    assert phones.factor(5, 0) == 1.0 and phones.factor(3, 0) == pytest.approx(1313.0 / 134.9)


@pytest.mark.parametrize("times", ["[]", "[1.0,0.0]"])
def test_a_device_that_takes_no_time_is_refused(times: str) -> None:
    with pytest.raises(ConfigError, match=r"stragglers\.times"):
        prepare(["stragglers=phones", f"stragglers.times={times}", "tracking=none"]).plan()


def test_the_slowest_of_n_exponential_workers_takes_base_and_the_harmonic_number_times_scale() -> None:
    stragglers, n, steps = Exponential(3, base=1.0, scale=0.5), 16, 1000
    slowest = mean(max(stragglers.factor(worker, step) for worker in range(n)) for step in range(steps))
    harmonic = sum(1 / k for k in range(1, n + 1))
    deviation = 0.5 * sum(1 / k**2 for k in range(1, n + 1)) ** 0.5
    assert slowest == pytest.approx(1.0 + 0.5 * harmonic, abs=4 * deviation / steps**0.5)


def test_one_is_slow_and_none_are() -> None:
    one = OneSlow(worker=2, factor=3.0)
    assert [one.factor(worker, 7) for worker in range(4)] == [1.0, 1.0, 3.0, 1.0]
    assert set(factors(NoStragglers())) == {1.0}


def test_a_trace_is_read_by_step_and_worker_and_begins_again(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    file.write_text("1.0, 2.0,3\n\n4 5.5\t6e0\n")
    trace = Trace(str(file))
    assert [[trace.factor(worker, step) for worker in range(4)] for step in range(3)] == [
        [1.0, 2.0, 3.0, 1.0],
        [4.0, 5.5, 6.0, 4.0],
        [1.0, 2.0, 3.0, 1.0],
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "must have lines"),
        (b"1 2\n3\n", "as many numbers each"),
        (b"1 two\n", "'two'"),
        (b"1 0\n", "numbers > 0"),
        (b"1 -2\n", "numbers > 0"),
        (b"1 nan\n", "numbers > 0"),
        (b"1 inf\n", "numbers > 0"),
        (b"\xff\xfe\n", "UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_trace_that_is_none_is_refused_before_anything_runs(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "trace"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        assemble(prepare(["stragglers=trace", f"stragglers.path={file}", "tracking=none"]).experiment, ())
    message = str(caught.value)
    assert message.startswith(f"stragglers.path={file}: ") and says in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "setting",
    [
        "stragglers=one_slow stragglers.factor=0.5",
        "stragglers=one_slow stragglers.worker=-1",
        "stragglers=exponential stragglers.base=-1",
        "stragglers=exponential stragglers.scale=0",
        "stragglers=lognormal stragglers.sigma=0",
        "stragglers=lognormal stragglers.sigma=1000",
        "stragglers=pareto stragglers.alpha=0",
        "stragglers=pareto stragglers.alpha=1e-9",
    ],
)
def test_a_knob_out_of_bounds_is_refused_by_its_name(setting: str) -> None:
    overrides = setting.split()
    with pytest.raises(ConfigError) as caught:
        assemble(prepare([*overrides, "tracking=none"]).experiment, ())
    key = overrides[1].partition("=")[0]
    assert str(caught.value).startswith(f"{key}=") and caught.value.exit_code == 2


@pytest.mark.parametrize("choice", ["none", "one_slow", *RANDOM])
def test_every_choice_is_built_with_the_runs_seed(choice: str) -> None:
    def built(seed: int) -> list[float]:
        experiment = prepare([f"stragglers={choice}", f"seed={seed}", "tracking=none"]).experiment
        return factors(assemble(experiment, ()).stragglers, 3, 3)

    assert built(1) == built(1)
    assert (built(1) != built(2)) == (choice in RANDOM)


@each_random
def test_factors_at_the_bounds_of_the_knobs_are_finite(make: Callable[..., Stragglers]) -> None:
    widest = {Exponential: {"base": 0.0, "scale": 1e6}, LogNormal: {"sigma": 10.0}, Pareto: {"alpha": 0.1}}
    found = factors(make(0, **widest[make]))
    assert all(0 < factor < float("inf") for factor in found)
