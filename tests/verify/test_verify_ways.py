"""Which ways there are: read off the choices and the constructors, so that new ones are tried without being named."""

from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt

from paceline.engine.config.choice_files import choices_of
from paceline.engine.config.experiment import Choice
from paceline.verify.knobs import variants
from paceline.verify.ways import ways


class Knobs:
    def __init__(
        self,
        word: Literal["a", "b", "c"] = "a",
        on: bool = False,
        count: Annotated[int, Ge(2)] | None = None,
        rate: Annotated[float, Gt(0)] = 1.0,
        seed: Annotated[int, Ge(0)] = 0,
        path: str | None = None,
    ) -> None: ...


DEFAULTS = {"word": "a", "on": False, "count": None, "rate": 1.0, "seed": 0, "path": None}


def test_each_knob_with_values_that_can_be_listed_is_changed_by_itself() -> None:
    assert list(variants(Knobs, DEFAULTS, every=False)) == [
        {},
        {"word": "b"},
        {"word": "c"},
        {"on": True},
        {"count": 2},
        {"count": 4},
    ]


def test_every_combination_is_each_word_with_each_switch_and_each_count() -> None:
    made = list(variants(Knobs, DEFAULTS, every=True))
    assert len(made) == 3 * 2 * 3 == len({tuple(sorted(each.items())) for each in made})
    assert {"word": "c", "on": True, "count": 4} in made and {} in made


def test_true_is_not_one() -> None:
    class Number:
        def __init__(self, count: Annotated[int, Ge(1)] = 1, on: bool = True) -> None: ...

    assert list(variants(Number, {"count": 1, "on": True}, every=False)) == [
        {},
        {"count": 2},
        {"count": 4},
        {"on": False},
    ]


@pytest.fixture(scope="module")
def everything() -> list[tuple[str, ...]]:
    return [way.overrides for way in ways(choices_of("strategy", None), choices_of("sync", None), (), 2, [], False)]


def test_all_strategies_modes_collectives_and_compressors_are_tried(everything: list[tuple[str, ...]]) -> None:
    tried = {text for way in everything for text in way}
    assert {f"strategy={choice.name}" for choice in choices_of("strategy", None)} <= tried
    assert {f"sync={choice.name}" for choice in choices_of("sync", None)} <= tried
    assert {f"strategy.stage={stage}" for stage in range(4)} <= tried
    assert {"precision=bf16", "strategy.micro_batches=1", "strategy.degree=4", "sync.shard=gradients"} <= tried
    assert {"collective=ring", "compress=powersgd", "aggregate=median"} <= tried
    assert not any(text.startswith("attack") for text in tried)


def test_every_tries_each_mode_with_each_strategy() -> None:
    two = [choice for choice in choices_of("strategy", None) if choice.name in ("single", "data_parallel")]
    modes = [choice for choice in choices_of("sync", None) if choice.name in ("bsp", "local_sgd")]
    tried = {way.overrides[:2] for way in ways(two, modes, (), 2, [], True)}
    assert {(f"strategy={s.name}", f"sync={m.name}") for s in two for m in modes} <= tried


def test_a_choice_that_cannot_be_loaded_is_still_a_way_whose_composing_says_why() -> None:
    lost = Choice(name="lost", target="paceline.strategies.lost.Lost", knobs={})
    modes = [choice for choice in choices_of("sync", None) if choice.name == "bsp"]
    plain = [choice for choice in choices_of("strategy", None) if choice.name == "data_parallel"]
    assert ("strategy=lost", "sync=bsp") in {
        way.overrides for way in ways([lost, *plain], modes, (), 2, ["lost"], False)
    }


@pytest.mark.parametrize("word", ["strategy.schedule=1f1b", "strategy.schedule='1f1b'", "1f1b"])
def test_a_text_that_begins_with_a_digit_is_named_as_it_is_typed(word: str) -> None:
    pipeline = [choice for choice in choices_of("strategy", None) if choice.name == "pipeline"]
    modes = [choice for choice in choices_of("sync", None) if choice.name == "bsp"]
    found = {way.overrides[2:] for way in ways(pipeline, modes, (), 2, [word], False)}
    assert found == {("strategy.schedule='1f1b'",)}


@pytest.mark.parametrize("word", ["bsp", "sync=bsp", "data_parallel", "strategy=data_parallel"])
def test_a_usual_choice_is_not_all_that_is_tried_with_it(word: str) -> None:
    strategies, modes = choices_of("strategy", None), choices_of("sync", None)
    found = {way.overrides for way in ways(strategies, modes, (), 4, [word], False)}
    own = "sync." if "bsp" in word else "strategy."
    assert found and all(way[:2] == ("strategy=data_parallel", "sync=bsp") for way in found)
    assert all(text.startswith(own) for way in found for text in way[2:])
    assert len(found) < 10
