"""`paceline explain collective=NAME`: how a sum is made, step by step."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.collective import drawn, raw, recorded
from paceline.tracking.drawn.player import as_svg
from paceline.tracking.player import of_sum

SVG = "{http://www.w3.org/2000/svg}"


def sum_of(name: str, *overrides: str) -> tuple[str, dict[str, Any]]:
    """What is drawn in the terminal, and the raw steps."""
    recording, why = recorded(f"collective={name}", overrides, None, ())
    assert recording is not None, why
    return drawn(name, recording), raw(name, recording)


def test_a_ring_is_drawn_step_by_step() -> None:
    paragraphs = sum_of("ring", "hardware.workers=3")[0].split("\n\n")
    assert paragraphs[0].splitlines()[0] == "ring: a sum of 3 chunks among 3 workers, 4 steps, 12 messages"
    assert paragraphs[1].splitlines()[:2] == [
        "step 1 of 4: share-reduce",
        "  0 -> 1 chunk 0   1 -> 2 chunk 1   2 -> 0 chunk 2",
    ]
    assert [line.split() for line in paragraphs[1].splitlines()[3:]] == [
        ["worker", "0", "1", "1", "2+"],
        ["worker", "1", "2+", "1", "1"],
        ["worker", "2", "1", "2+", "1"],
    ]
    assert [line.split()[2:] for line in paragraphs[4].splitlines()[3:]] == [
        ["3", "3", "3="],
        ["3=", "3", "3"],
        ["3", "3=", "3"],
    ]


def test_hosts_are_named_where_there_are_levels() -> None:
    for hosts in (("hardware.workers=4", "hardware.workers_per_host=2"), ()):  # of itself, as one host would be refused
        text, _ = sum_of("hierarchical", *hosts)
        assert "among 4 workers on 2 hosts, 4 steps, 8 messages" in text and "worker 3 (host 1)" in text
        assert "1 -> 0 chunks 0-3   3 -> 2 chunks 0-3" in text


def test_auto_says_which_it_draws_and_why() -> None:
    text, steps = sum_of("auto")
    why, planned, title = text.split("\n\n")[0].splitlines()[:3]
    said = r"collective=auto: (\w+) for a sum of 32 bytes among 4 workers: [\d.]+ ms by the cost model; \w+ [\d.]+ ms.*"
    found = re.fullmatch(said, why)
    assert found is not None, why
    assert "paceline plan says" in planned and title.startswith("auto: a sum of 4 chunks among 4 workers, ")
    chosen, _ = sum_of(found[1])
    assert chosen.split("\n\n")[1:] == text.split("\n\n")[1:] and "cost model" not in chosen
    assert f"auto: {found[1]} for a sum" in as_svg(of_sum(steps))


def test_pictures_have_every_step_and_load_nothing(paceline, here: Path) -> None:
    words = ("hardware.workers=4", "steps=1", "--format", "json", "--html", "tree.html", "--svg", "tree.svg")
    ended = paceline("explain", "collective=tree", *words)
    assert (ended.status, ended.err) == (0, "picture: tree.html\npicture: tree.svg\n")
    told = json.loads(ended.out)["sum"]
    assert (
        told["hosts"] == [0, 1, 2, 3] and [step["name"] for step in told["steps"]] == ["reduce"] * 2 + ["broadcast"] * 2
    )
    assert told["steps"][0]["messages"][0] == {"from": 1, "to": 0, "chunks": [0, 1, 2, 3], "adds": True}
    assert told["steps"][0]["after"][0] == [[0, 1]] * 4
    svg, html = (here / "tree.svg").read_text(), (here / "tree.html").read_text()
    steps = ET.fromstring(svg).findall(f"{SVG}g")
    assert [len(step.findall(f".//{SVG}circle")) for step in steps] == [0, 2, 1, 1, 2]  # messages, where they arrive
    assert "default-src 'none'; script-src 'sha256-" in html and "<h2>How the sum is made</h2>" in html
    for text in (svg, html):
        assert not re.search(r"\b(src|href)=", text) and "<script" not in text.replace("<script>", "", 1).replace(
            '<script type="application/json">', ""
        )


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("fabric", (), "collective=fabric: is made by the fabric, "),
        (
            "auto",
            ("hardware=local", "hardware.workers=4"),
            r"collective=auto: is made by the fabric \(fabric for a sum of 32 bytes among 4 workers on one host: "
            r"the links between them are not described, .*\), and sends no messages",
        ),
        ("ring", ("hardware.workers=64",), "hardware.workers=64: a picture of a collective has 2 to 16"),
        ("hierarchical", ("hardware.workers_per_host=16",), "collective=hierarchical: .* are on one host"),
    ],
)
def test_a_sum_without_messages_of_its_own_has_no_picture(name: str, overrides: tuple[str, ...], says: str) -> None:
    recording, why = recorded(f"collective={name}", overrides, None, ())
    assert recording is None and re.match(says, why), why


def test_the_former_option_of_show_says_its_new_line(paceline) -> None:
    ended = paceline("show", "--collective", "ring", "hardware.workers=3", "steps=1")
    says = "--collective: is a part of explain now. Write: paceline explain collective=ring hardware.workers=3 steps=1"
    assert (ended.status, ended.err) == (0, f"{says}\n") and "HOW THE SUM IS MADE\n\nring: a sum of 3 " in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show",), "show takes one run; "),
        (("show", "a", "b"), "a b: show takes one run; "),
        (("show", "a", "--svg", "a.svg"), "--svg: show takes none. Choose paceline explain GROUP=CHOICE --svg"),
        (("explain", "collective=rign"), "collective=rign: there is no such choice; did you mean ring?"),
        (("explain", "collective=ring", "--svg", "no/ring.svg"), "--svg no/ring.svg: must name a file to write; "),
    ],
)
def test_what_cannot_be_shown_is_refused(paceline, arguments, says) -> None:
    ended = paceline(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert re.match(re.escape(says), ended.last)
