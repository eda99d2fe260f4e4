"""`advise --mtbf`: what failures cost a layout is what closed forms say of its checkpoint, its workers and its mode."""

from dataclasses import replace

import pytest

from paceline.advise.accelerators import Ground, Searched, search
from paceline.advise.answer import answer, closed_form
from paceline.advise.candidate import Candidate, Predicted
from paceline.advise.failures import ExpectedFailures
from paceline.advise.memory import checkpoint
from paceline.advise.plans import planned
from paceline.advise.question import Question, ask
from paceline.conf.errors import ConfigError
from paceline.cost.interruptions import goodput, goodput_alone

GPT = ["model=gpt", "model.width=256", "model.n_head=8", "model.n_layer=6", "model.vocabulary=4000"]
EIGHT = ["hardware=a100_8", *GPT, "data=text", "data.context=128", "optimizer=adam"]
OFTEN = ExpectedFailures(mtbf=8.0, restart=0.01, storage=1e7)


@pytest.fixture(scope="module")
def ground() -> Ground:
    return closed_form(ask(EIGHT))


@pytest.fixture(scope="module")
def failing(ground: Ground) -> Searched:
    return search(replace(ground, question=replace(ground.question, failures=OFTEN)))


def key(row: Predicted) -> object:
    return row.candidate.settings, row.candidate.workers


def test_defaults_are_those_of_failures_poisson() -> None:
    assert ExpectedFailures.of(5.0) == ExpectedFailures(5.0, restart=60 / 3600, storage=1e9)


def test_time_and_price_of_every_layout_are_longer_by_its_goodput(ground: Ground, failing: Searched) -> None:
    quiet = {key(row): row for row in search(ground).fit}
    assert len(failing.fit) == len(quiet) > 1000
    for row in failing.fit:
        before, workers = quiet[key(row)], row.candidate.workers
        assert before.seconds and before.dollars and row.seconds and row.dollars and row.goodput
        write = checkpoint(ground.shape, row.candidate) / 1e7 / 3600
        assert row.goodput == goodput(write, 0.01 + write, 8.0 / workers, before.seconds / 3600)
        assert row.seconds == before.seconds / row.goodput and row.dollars == before.dollars / row.goodput
        assert row.undisturbed == pytest.approx(before.seconds)
    of = {row.candidate.workers: row.goodput for row in failing.fit if row.goodput}
    assert of[8] < of[1]


@pytest.mark.parametrize(
    ("family", "group"),
    [
        ("data_parallel", "whole copies"),
        ("data_parallel", "sync.shard=gradients"),
        ("pipeline", "2 stages 1f1b"),
        ("zero", "stage 3"),
        ("torch_fsdp", "torch_fsdp"),
    ],
)
def test_the_checkpoint_of_a_closed_form_is_the_plan_s(failing: Searched, family: str, group: str) -> None:
    """Both goodputs follow from it."""
    row = next(row for row in failing.fit if row.candidate.kind == (family, group, 8))
    exact = planned(replace(ask(EIGHT), failures=OFTEN), row.candidate)
    assert exact.exact and exact.goodput is not None and row.goodput is not None
    assert 1 - exact.goodput == pytest.approx(1 - row.goodput, rel=0.01)


def of_mode(sync: str) -> tuple[Question, Candidate]:
    settings = (("strategy", "data_parallel"), ("sync", sync), ("batch_size", "32"))
    question = ask(["hardware.workers=4"], failures=ExpectedFailures(mtbf=1.0, restart=0.01, storage=1e9))
    return question, Candidate("sync", sync, settings, 4, 1)


@pytest.mark.parametrize("sync", ["asp", "hogwild", "gossip", "bsp"])
def test_a_mode_that_goes_on_loses_the_failed_worker_s_time_alone(sync: str) -> None:
    question, candidate = of_mode(sync)
    row, quiet = planned(question, candidate), planned(replace(question, failures=None), candidate)
    assert row.goodput is not None and quiet.seconds is not None
    if sync in ("asp", "hogwild"):
        assert row.goodput == goodput_alone(0.01, 1.0, quiet.seconds / 3600) == pytest.approx(0.99, abs=0.001)
    else:
        assert row.goodput == pytest.approx(goodput(1e-9, 0.01, 0.25, quiet.seconds / 3600), rel=1e-5)
        assert row.goodput < 0.96


def test_a_mode_that_takes_no_worker_back_is_refused() -> None:
    assert "never takes it back" in planned(*of_mode("fedavg")).why


def test_failures_so_frequent_that_nothing_is_reached_are_refused(ground: Ground) -> None:
    with pytest.raises(ConfigError, match=r"--mtbf of 0\.001 h: one of 1 workers fails every 3\.6 s, too often"):
        answer(replace(ground.question, failures=replace(OFTEN, mtbf=0.001)))
