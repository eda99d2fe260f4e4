"""The ten questions of docs/advise.md: their commands print the answers that the page has."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "advise.md"


@dataclass(frozen=True)
class Question:
    """`answer`: the lines that the page has. `prose`: the text below them."""

    title: str
    command: str
    answer: tuple[str, ...]
    prose: str


def questions() -> list[Question]:
    section = PAGE.read_text().split("## Ten questions\n")[1].split("\n## ")[0]
    found = []
    for part in section.split("\n### ")[1:]:
        title, console, prose = re.fullmatch(r"(.+)\n```console\n\$ (.+?)```\n(.+)", part, re.DOTALL).groups()  # pyright: ignore[reportOptionalMemberAccess]
        command, *answer = console.splitlines()
        found.append(Question(title, command, tuple(answer), prose))
    return found


EVERY = questions()
# The strategy of the answer, and whether practice agrees
AGREED = {
    "Fine-tune a model of 7 or 8 billion parameters on one card of 24 GB": ("data_parallel", True),
    "Llama 8B from scratch on 8 H100": ("hybrid", False),
    "Llama 70B on 64 H100": ("zero", True),
    "GPT-2 124M on 8 A100": ("data_parallel", True),
    "20 billion parameters on 96 A100 of 40 GB": ("zero", False),
    "13 billion parameters on 4 hosts with 100 Gb/s Ethernet": ("zero", True),
    "A model of 1 billion parameters on two RTX 4090": ("zero", True),
    "BLOOM's 176 billion parameters on 384 A100": ("zero", False),
    "Llama 405B on 512 H100": ("", False),
    "A small CNN on one H100": ("data_parallel", True),
}
# Published tokens a second and card, of a step of so many tokens on so many cards, that are within the printed range
PUBLISHED = {
    "Llama 70B on 64 H100": (1039, 2048 * 2048, 64),
    "13 billion parameters on 4 hosts with 100 Gb/s Ethernet": (2262, 1024 * 2048, 32),
}


def test_the_page_has_ten_questions_and_says_whether_practice_agrees() -> None:
    assert {each.title: "**Agrees" in each.prose for each in EVERY} == {
        title: agrees for title, (_, agrees) in AGREED.items()
    }
    assert len(EVERY) == 10 and all(("**Agrees" in each.prose) != ("**Disagrees" in each.prose) for each in EVERY)


@pytest.mark.parametrize("title", PUBLISHED)
def test_the_range_of_the_page_has_the_published_step(title: str) -> None:
    rate, tokens, cards = PUBLISHED[title]
    question = next(each for each in EVERY if each.title == title)
    assert f"{rate:,} tokens a second" in question.prose
    times = next(re.findall(r"([\d.]+) s", line) for line in question.answer if line.startswith("  time: "))
    low, high = map(float, times[1:3])
    assert low < tokens / cards / rate < high


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.parametrize("question", EVERY, ids=lambda each: each.title)
def test_the_command_of_the_page_prints_the_answer_of_the_page(question: Question, paceline) -> None:
    family, _ = AGREED[question.title]
    ended = paceline(*shlex.split(question.command)[1:], "--top", "3")
    printed = ended.out if family else ended.err
    assert ended.status == (0 if family else 2), ended.err
    for line in question.answer:
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert re.search(f"^{pattern}$", printed, re.MULTILINE), f"{line}\n{printed[:2000]}"
    if family:
        first = re.search(r"^1 +(\w+)", printed, re.MULTILINE)
        assert first is not None and first[1] == family
