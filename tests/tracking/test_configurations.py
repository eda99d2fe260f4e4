"""Configurations parsed section by section are what they are as a whole, each distinct section parsed once."""

import random
from collections import Counter

import pytest
import yaml

from paceline.tracking import configurations
from paceline.tracking.configurations import MOST_CHARACTERS, parse_configuration
from paceline.tracking.files import MOST_DEPTH, MOST_DIGITS, UnusableFileError, parse_yaml

RUN = {"sync": {"name": "bsp", "knobs": {"mb": 25.0}}, "model": {"hidden": [8, 4], "note": "a\n\nb"}, "name": "one"}
# Lines that begin, end, continue or spoil a section.
PIECES = [
    "a: 1;b:;  c: x;  - 2;- 3;-;d: [1,;  2];3]: 4;e: 'text;  more';f: bar';g: \"q;h: |;  block;;i: >+",
    "# a comment;  # inside;---;...;%YAML 1.1;? j;: k;l: {m: n};true: 5;null:;on: off;a: again",
    "x: &one 1;y: *one;<<: {z: 1};'quoted': 1;1: one;\tt: 1;p: q: r;s: 'it''s';t: 2001-01-01;u: 0x1F",
    "v: é;w: \x85b: 1;o: 1\r...;_: !!set {a};A_1: ~;no: word;word: no;word: Null;a: e5;a: b-c.d;y: n;a: b ",
    "a: True;a: yes_;a: on.;a: n-;Off: a",
]
LINES = [line for piece in PIECES for line in piece.split(";")]


def outcome(parse, text: str) -> str:
    """NaN, and 1 beside True, tell apart."""
    try:
        return repr(parse(text))
    except UnusableFileError as error:
        return f"refused: {error}"


def test_any_text_means_what_it_means_as_a_whole() -> None:
    draw = random.Random(1)
    taken = 0
    for _ in range(3000):
        text = "\n".join(draw.choices(LINES, k=draw.randint(1, 7))) + draw.choice(["\n", "", "\n\n"])
        assert outcome(parse_configuration, text) == outcome(parse_yaml, text), text
        taken += outcome(parse_yaml, text).startswith("{")
    assert taken > 100


@pytest.mark.parametrize(
    "text",
    [
        "a:" + "\n" + "".join(f"{' ' * i}- \n" for i in range(1, 80)),
        "a: " + "[" * 50_000,
        f"a: {'9' * (MOST_DIGITS + 1)}",
    ],
    ids=["deep blocks", "deep brackets", "digits"],
)
def test_a_section_has_the_bounds_of_a_file(text: str) -> None:
    text = f"name: x\n{text}\n"
    assert outcome(parse_configuration, text) == outcome(parse_yaml, text) and "refused" in outcome(parse_yaml, text)


def test_the_depth_of_a_section_counts_from_the_whole() -> None:
    for depth in (MOST_DEPTH - 1, MOST_DEPTH, MOST_DEPTH + 1):
        text = "name: x\na: " + "[" * depth + "]" * depth + "\n"
        assert outcome(parse_configuration, text) == outcome(parse_yaml, text)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each text was parsed as YAML."""
    texts: Counter[str] = Counter()

    def counted(text: str):
        texts[text] += 1
        return parse_yaml(text)

    monkeypatch.setattr(configurations, "parse_yaml", counted)
    configurations._parsed.cache_clear()
    return texts


def test_each_distinct_section_is_parsed_once(parsed: Counter[str]) -> None:
    runs = [RUN | {"name": f"run-{i}", "seed": i % 3} for i in range(40)]
    texts = [yaml.safe_dump(run, sort_keys=False) + "# sha256 of the lines above: 0\n" for run in runs]
    assert [parse_configuration(text) for text in texts] == runs
    assert set(parsed.values()) == {1} and len(parsed) == 2 + 3  # a name is text as it stands


def test_a_long_text_and_one_with_aliases_are_parsed_as_a_whole_and_forgotten(parsed: Counter[str]) -> None:
    for text in ("a: " + "x" * MOST_CHARACTERS + "\n", "a: &one [1]\nb: *one\n"):
        assert parse_configuration(text) == yaml.safe_load(text)
        assert parsed.pop(text) == 1 and not parsed
