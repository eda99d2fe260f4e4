"""What there is to choose from where no closed form is known."""

from dataclasses import replace

import pytest

from paceline.advise import answer as answers
from paceline.advise import modes, plans
from paceline.advise import recommend as recommending
from paceline.advise.answer import answer
from paceline.advise.candidate import Candidate, Predicted
from paceline.advise.modes import alternatives
from paceline.advise.none import why_none
from paceline.advise.question import Question, ask
from paceline.cli import advise_recommended as recommended
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import InterruptedRunError
from paceline.engine.config.experiment import shipped


@pytest.fixture(scope="module")
def two() -> list[Candidate]:
    return alternatives(ask(["hardware.workers=2"]), 2)


@pytest.fixture
def with_two(two: list[Candidate], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists them once for all answers."""
    monkeypatch.setattr(answers, "alternatives", lambda *_: two)


def test_every_sync_mode_is_there_and_what_learns_otherwise_must_be_raced(two: list[Candidate]) -> None:
    raced = {way.group: way.raced for way in two if way.family == "sync"}
    assert len(raced) > 20 and "bsp" not in raced
    assert {mode for mode, why in raced.items() if not why} == {"bsp_naive", "parameter_server"}
    assert raced["asp"] == raced["ssp"] == "must be raced: asynchronous"
    assert all("lossy" in way.raced for way in two if way.family == "compress")
    assert all(not way.raced for way in two if way.family in ("collective", "zero", "tensor"))


def test_all_take_the_same_samples_and_what_is_typed_stays() -> None:
    question = ask(["hardware.workers=4", "strategy=pipeline", "batch_size=8"])
    found = alternatives(question, 4)
    assert {way.family for way in found} == {"pipeline", "sync"}
    assert {way.group for way in found if way.family == "sync"} >= {"asp", "local_sgd", "gossip"}
    for way in found:
        settings = dict(way.settings)
        assert settings["strategy"] == "pipeline"
        replicas = 4 // int(settings["strategy.stages"])
        assert int(settings["batch_size"]) * replicas == question.batch == 32


def test_one_of_each_family_comes_before_a_second_of_any_and_strategies_before_what_must_be_raced(
    two: list[Candidate],
) -> None:
    families = [way.family for way in two]
    turn = families[: len(set(families))]
    assert len(set(turn)) == len(turn) and turn[0] == "data_parallel"
    assert {"single", "tensor", "pipeline", "zero"} < set(turn) and turn[-3:] == ["collective", "sync", "compress"]
    for family in turn:
        raced = [bool(way.raced) for way in two if way.family == family]
        assert raced == sorted(raced), family


def test_what_holds_least_has_turns_of_its_own_as_it_may_be_all_that_fits() -> None:
    words = ["model=gpt", "data=text", "hardware=rtx_3090", "adapt=lora", "strategy=data_parallel", "sync=bsp"]
    found = [way.group for way in alternatives(ask(words), 1)]
    assert found[:3] == ["data_parallel", "a sample at a time", "a sample at a time, recomputed"]


class Untimed:
    """Plans that have no time for a reason, and which of them were made."""

    def __init__(self, why: str) -> None:
        self.why, self.made = why, list[Candidate]()

    def __call__(self, _: Question, way: Candidate) -> Predicted:
        self.made.append(way)
        named = self.why.format(strategy=dict(way.settings)["strategy"])
        return Predicted(way, None, 10, 10, 0, 0, 0.0, exact=True, untimed=named)


def test_tokens_are_refused_as_soon_as_two_strategies_lack_a_time_for_one_reason(with_two, monkeypatch) -> None:
    question = ask(["model=gpt", "data=text", "hardware.workers=2"], tokens=1e9)
    of_all = Untimed("values are looked at")
    monkeypatch.setattr(answers, "planned", of_all)
    with pytest.raises(ConfigError, match="--tokens: a step's time is not predicted: values are looked at"):
        answer(question)
    assert len(of_all.made) == 2
    of_each = Untimed("{strategy} has none")
    monkeypatch.setattr(answers, "planned", of_each)
    with pytest.raises(ConfigError, match="data_parallel has none"):
        answer(question)
    assert len(of_each.made) > 50


def test_lines_without_a_time_come_after_those_with_one(with_two, monkeypatch) -> None:
    def plan(_: Question, way: Candidate) -> Predicted:
        exact = Predicted(way, 2.0, 10, 10, 0, 0, 1.0, exact=True)
        if way.family == "single":
            return replace(exact, seconds=None)
        return replace(exact, seconds=1.0) if way.raced else exact

    monkeypatch.setattr(answers, "planned", plan)
    rows = answer(ask(["hardware.workers=2"]), top=99).rows
    assert rows[-1].candidate.family == "single" and not rows[0].candidate.raced and rows[-2].candidate.raced
    by_memory = answer(ask(["hardware.workers=2"]), "memory", top=99).rows
    assert not by_memory[0].candidate.raced and by_memory[-1].candidate.raced
    late = answer(ask(["model=gpt", "data=text", "hardware.workers=2"], tokens=1e9, deadline=1e12), top=99)
    assert all(row.seconds for row in late.rows)
    assert "what has no time may miss the limits, and is left out: 1 of the configurations" in late.notes


def test_what_was_not_planned_is_said_beside_the_recommendation(with_two, two: list[Candidate], monkeypatch) -> None:
    monkeypatch.setattr(answers, "planned", lambda _, way: Predicted(way, 2.0, 10, 10, 0, 0, 1.0, exact=True))
    monkeypatch.setattr(recommending, "_parts", lambda found, row: {})
    question = ask(["hardware.workers=2"])
    found = answer(question, patience=-1.0)
    assert found.points == 1
    lines = recommended.recommended(found)
    assert lines[1] == f"  best of the first 1 of {len(two)} configurations: the others were not planned"
    assert lines[-1] == "  next best: no other of these fits"
    assert not any("--race 2" in line for line in lines), "there is one line"
    none = why_none(replace(found, rows=[]))
    assert none.startswith(f"none of 1 configuration can be ({len(two) - 1} others were not planned); the reasons:")
    whole = "\n".join(recommended.recommended(answer(question, patience=1e9)))
    assert "best of" not in whole and "to try: --race 2 trains the first two here" in whole


@pytest.mark.slow
def test_a_collective_is_listed_once_whatever_its_names() -> None:
    def collectives(*overrides: str) -> set[str]:
        found = alternatives(ask(["hardware.workers=2", *overrides]), 2)
        return {way.group for way in found if way.family == "collective"}

    assert not collectives() & {"fabric", "shared_memory", "auto"} and "ring" in collectives()
    modelled = collectives("hardware=virtual")
    assert "shared_memory" in modelled and "auto" not in modelled
    assert collectives("collective=shared_memory") == {"shared_memory"}


def test_a_candidate_that_fails_is_refused_with_its_reason_and_the_others_are_planned(monkeypatch) -> None:
    names = {"strategy": ["data_parallel", "single"], "sync": ["bsp"]}
    monkeypatch.setattr(modes, "_choices", lambda group, _: [shipped(group, name) for name in names[group]])
    monkeypatch.setattr(modes, "BESIDE", ())
    prepared = plans.prepared

    def failing(question, candidate):
        if candidate.family == "single":
            raise KeyError("blocks")
        return prepared(question, candidate)

    monkeypatch.setattr(plans, "prepared", failing)
    found = answer(ask(["hardware.workers=2", "hardware=virtual", "model=linear"]))
    assert {row.candidate.family for row in found.rows} == {"data_parallel"}
    [single] = [family for family in found.families if family.name == "single"]
    assert single.best is None and len(single.others) == 1
    assert "refused: KeyError: 'blocks', in " in single.others[0]


def test_an_interrupt_ends_all_of_it(monkeypatch) -> None:
    def stopped(question, candidate):
        raise InterruptedRunError("asked to stop", 143)

    monkeypatch.setattr(plans, "prepared", stopped)
    with pytest.raises(InterruptedRunError):
        answer(ask(["hardware.workers=2", "hardware=virtual", "model=linear", "strategy=single"]))
