"""What there is to choose from where no closed form is known."""

import pytest

from paceline.advise import modes, plans
from paceline.advise.answer import answer
from paceline.advise.modes import alternatives
from paceline.advise.question import ask
from paceline.engine.base.errors import InterruptedRunError
from paceline.engine.config.experiment import shipped


def test_every_sync_mode_is_there_and_what_learns_otherwise_must_be_raced() -> None:
    found = list(alternatives(ask(["hardware.workers=2"]), 2))
    raced = {way.group: way.raced for way in found if way.family == "sync"}
    assert len(raced) > 20 and "bsp" not in raced
    assert {mode for mode, why in raced.items() if not why} == {"bsp_naive", "parameter_server"}
    assert raced["asp"] == raced["ssp"] == "must be raced: asynchronous"
    assert all("lossy" in way.raced for way in found if way.family == "compress")
    assert all(not way.raced for way in found if way.family in ("collective", "zero", "tensor"))


def test_all_take_the_same_samples_and_what_is_typed_stays() -> None:
    question = ask(["hardware.workers=4", "strategy=pipeline", "batch_size=8"])
    found = list(alternatives(question, 4))
    assert {way.family for way in found} == {"pipeline", "sync"}
    assert {way.group for way in found if way.family == "sync"} >= {"asp", "local_sgd", "gossip"}
    for way in found:
        settings = dict(way.settings)
        assert settings["strategy"] == "pipeline"
        replicas = 4 // int(settings["strategy.stages"])
        assert int(settings["batch_size"]) * replicas == question.batch == 32


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
