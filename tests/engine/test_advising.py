"""`engine.advise`: what is asked of the room advise, and what is made of its answer. That room is stood in for."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline import engine
from paceline.advise.failures import ExpectedFailures
from paceline.conf.errors import ConfigError


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `ask` and `answer` are called with."""
    said: list[Any] = []
    way = SimpleNamespace(family="zero", settings=(("strategy", "zero"), ("batch_size", "4")), workers=8, hosts=1)
    best = SimpleNamespace(candidate=way, seconds=0.5, device=3 * 2**30, sent=1e6, dollars=12.5, goodput=0.9)
    best.exact, best.roomy = True, True
    second = SimpleNamespace(candidate=way, seconds=None, device=2**30, sent=None, dollars=None, goodput=None)
    second.exact, second.roomy = False, False

    def ask(*asked: Any) -> str:
        said.append(asked)
        return "question"

    def answer(*asked: Any) -> Any:
        said.append(asked)
        return SimpleNamespace(rows=[best, second])

    rooms = {
        "paceline.advise": SimpleNamespace(),
        "paceline.advise.question": SimpleNamespace(ask=ask),
        "paceline.advise.answer": SimpleNamespace(answer=answer),
        "paceline.advise.failures": SimpleNamespace(ExpectedFailures=ExpectedFailures),
        "paceline.advise.commands": SimpleNamespace(command=lambda question, way: "paceline train <zero>"),
    }
    for name, content in rooms.items():
        module = ModuleType(name)
        module.__dict__.update(vars(content))
        monkeypatch.setitem(sys.modules, name, module)
    return said


def test_what_is_fixed_is_handed_on_as_overrides_and_the_best_ways_come_back(said: list[Any]) -> None:
    advice = engine.advise({"model": "gpt_1b", "hardware": {"name": "a100_8"}}, tokens=2e9, top=5, data="text")
    assert said[0] == (["model=gpt_1b", "hardware=a100_8", "data=text"], None, 2e9, None, None, None, [], None)
    assert said[1] == ("question", None, 5)
    assert len(advice) == 2 and advice[0]["choices"] == "strategy=zero batch_size=4"
    assert advice[0]["seconds"] == 0.5 and advice[1]["dollars"] is None
    assert repr(advice).splitlines()[1:] == [
        "0  zero      8        1      0.5     3.0         12.50    paceline train <zero>",
        "1  zero      8        1      -       ~1.0!       -        paceline train <zero>",
    ]
    assert [(row["exact"], row["margin"]) for row in advice.rows] == [(True, True), (False, False)]
    assert "paceline train &lt;zero&gt;" in advice._repr_html_()
    assert advice.frame().device_bytes.tolist() == [3 * 2**30, 2**30]


def test_failures_are_handed_on_in_hours(said: list[Any]) -> None:
    advice = engine.advise(mtbf=50_000, restart=360, storage=2e9)
    assert said[0][-1] == ExpectedFailures(50_000, 0.1, 2e9)
    assert [row["goodput"] for row in advice.rows] == [0.9, None]


def test_a_whole_configuration_leaves_nothing_to_advise(said: list[Any]) -> None:
    with pytest.raises(ConfigError, match="advise: looks at other choices than the ones given"):
        engine.advise(engine.prepare(tracking="none").experiment)
    assert said == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tokens": "many"}, "tokens='many': must be a number above 0"),
        ({"budget": -1.0}, "budget=-1.0: must be a number above 0"),
        ({"deadline": float("nan")}, "deadline=nan: must be a number above 0"),
        ({"mtbf": 0}, "mtbf=0: must be a number above 0, such as 50000 (hours)"),
        ({"restart": 60}, "restart: is of a worker that fails. Give mtbf, too."),
        ({"storage": 1e9}, "storage: is of a worker that fails. Give mtbf, too."),
        ({"top": -3}, "top=-3: must be a whole number, at least 1 and at most 1,000"),
        ({"top": 2.5}, "top=2.5: must be a whole number"),
        ({"batch": 0}, "batch=0: must be a whole number"),
        ({"sort": "speed"}, "sort='speed': must be one of time, dollars, memory, bytes"),
    ],
)
def test_a_wrong_limit_is_refused_with_its_rule_before_anything_is_asked(
    said: list[Any], wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        engine.advise(**wrong)
    assert says in str(refused.value) and said == []


def test_where_nothing_meets_the_limits_the_answer_says_by_how_much() -> None:
    gpt = ["model=gpt", "data=text", "hardware=a100_8", "strategy=zero", "strategy.stage=1"]
    advice = engine.advise(gpt, tokens=1e15, budget=1.0)
    assert (
        len(advice) == 0
        and advice.why.startswith("no configuration meets the limit; ")
        and "misses --budget by $" in advice.why
    )
    assert repr(advice) == advice.why and "misses --budget by $" in advice._repr_html_()
