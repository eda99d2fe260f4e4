"""What a choice's own file says of it: every choice has its rule or equation, its cost, its paper and its use."""

import pytest

from paceline.cli.choices import group_of
from paceline.conf.errors import ConfigError
from paceline.engine.config.experiment import Choice, shipped
from paceline.engine.config.explained import explain, taken_apart

TEXT = """A rule (Doe et al. 2019, "On rules", ICML; after Roe and Poe 1999).

Of each entry

    y = 2 x

where x is it. It needs nothing else.

Cost of n entries: n bytes, that is

    n = 8

Deviation from the paper: none. arXiv 1905.00001 is no paper's name.

Use it where entries are few.
Source: this line is still of its use."""


@pytest.mark.parametrize("group", ["sync", "strategy", "collective", "compress"])
def test_each_choice_has_a_rule_a_cost_a_paper_and_says_when_to_use_it(group: str) -> None:
    every = group_of(group)
    assert every
    lacks: list[str] = []
    for choice in every:
        found = explain(group, shipped(group, choice.name), choice.description)
        for part in ("what", "rule", "cost", "use", "sources"):
            if not getattr(found, part):
                lacks.append(f"{group}={choice.name} ({found.file}): no {part}")
    assert not lacks


@pytest.mark.parametrize(("group", "name"), [("sync", "ssp"), ("compress", "topk"), ("collective", "ring")])
def test_an_equation_keeps_its_lines_and_is_one(group: str, name: str) -> None:
    found = explain(group, shipped(group, name), "")
    assert found.equations and all(each.startswith("    ") and "\n\n" not in each for each in found.equations)
    assert set(found.equations) <= set(found.rule) and found.file.endswith(".py")


def test_a_text_is_taken_apart_by_its_paragraphs() -> None:
    found = taken_apart(TEXT)
    assert found["what"] == ['A rule (Doe et al. 2019, "On rules", ICML; after Roe and Poe 1999).']
    assert found["rule"] == ["Of each entry", "    y = 2 x", "where x is it. It needs nothing else."]
    assert found["cost"] == ["Cost of n entries: n bytes, that is", "    n = 8"]
    assert found["deviations"] == ["Deviation from the paper: none. arXiv 1905.00001 is no paper's name."]
    assert found["use"] == ["Use it where entries are few. Source: this line is still of its use."]


def test_papers_are_named_once_each_with_their_titles_and_numbers_are_no_years(monkeypatch: pytest.MonkeyPatch) -> None:
    import paceline.strategies.sync.ssp as module

    monkeypatch.setattr(module, "__doc__", f"{TEXT}\n\nAs in Doe et al. 2019, and as arXiv 2001.00002 has it.")
    found = explain("sync", shipped("sync", "ssp"), "")
    assert found.sources == ('Doe et al. 2019, "On rules", ICML', "Roe and Poe 1999")


def test_a_class_that_is_not_there_or_not_allowed_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"sync=mine: paceline\.strategies\.nothing\.Mine cannot be had"):
        explain("sync", Choice(name="mine", target="paceline.strategies.nothing.Mine", knobs={}), "")
    with pytest.raises(ConfigError, match=r"must name a class in paceline\.strategies"):
        explain("sync", Choice(name="mine", target="os.Mine", knobs={}), "")


def test_a_word_broken_at_its_hyphen_is_joined_and_a_paper_keeps_its_arxiv_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import paceline.strategies.sync.ssp as module

    text = (
        'A first-\nand second-order rule (Doe et al. 2019, "Communication-\nEfficient Rules", ICLR; arXiv 1910.00643).'
    )
    monkeypatch.setattr(module, "__doc__", text)
    found = explain("sync", shipped("sync", "ssp"), "")
    assert found.what.startswith("A first- and second-order rule")
    assert found.sources == ('Doe et al. 2019, "Communication-Efficient Rules", ICLR; arXiv 1910.00643',)
