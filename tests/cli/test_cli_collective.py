"""`paceline show --collective`: how a sum is made, step by step."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from paceline.tracking.collective_picture import as_html, as_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_a_ring_is_drawn_step_by_step(paceline) -> None:
    ended = paceline("show", "--collective", "ring", "hardware.workers=3")
    assert (ended.status, ended.err) == (0, "")
    paragraphs = ended.out.split("\n\n")
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


def test_hosts_are_named_where_there_are_levels(paceline) -> None:
    hosts = ("hardware=virtual", "hardware.workers=4", "hardware.workers_per_host=2")
    ended = paceline("show", "--collective", "hierarchical", *hosts)
    assert "among 4 workers on 2 hosts, 4 steps, 8 messages" in ended.out and "worker 3 (host 1)" in ended.out
    assert "1 -> 0 chunks 0-3   3 -> 2 chunks 0-3" in ended.out


def test_auto_says_which_it_draws_and_why(paceline, here: Path) -> None:
    hosts = ("hardware=virtual", "hardware.workers=4")
    ended = paceline("show", "--collective", "auto", *hosts, "--html", "auto.html", "--svg", "auto.svg")
    assert ended.status == 0
    why, planned, title = ended.out.split("\n\n")[0].splitlines()[:3]
    said = r"collective=auto: (\w+) for a sum of 32 bytes among 4 workers: [\d.]+ ms by the cost model; \w+ [\d.]+ ms.*"
    found = re.fullmatch(said, why)
    assert found is not None, why
    assert "paceline plan says" in planned and title.startswith("auto: a sum of 4 chunks among 4 workers, ")
    drawn = paceline("show", "--collective", found[1], *hosts).out
    assert drawn.split("\n\n")[1:] == ended.out.split("\n\n")[1:] and "cost model" not in drawn
    assert all(f"auto: {found[1]} for a sum" in (here / f"auto.{kind}").read_text() for kind in ("html", "svg"))
    ET.fromstring((here / "auto.svg").read_text())


def test_json_holds_each_message_and_what_all_have_after_it(paceline) -> None:
    raw = json.loads(paceline("show", "--collective", "star", "hardware.workers=3", "--format", "json").out)
    assert raw["hosts"] == [0, 0, 0] and [step["name"] for step in raw["steps"]] == ["gather", "broadcast"]
    assert raw["steps"][0]["messages"][0] == {"from": 1, "to": 0, "chunks": [0, 1, 2], "adds": True}
    assert raw["steps"][0]["after"][0] == [[0, 1, 2]] * 3


def test_pictures_have_every_step_and_load_nothing(paceline, here: Path) -> None:
    ended = paceline("show", "--collective", "tree", "hardware.workers=4", "--html", "tree.html", "--svg", "tree.svg")
    assert (ended.status, ended.err) == (0, "picture: tree.html\npicture: tree.svg\n")
    svg, html = (here / "tree.svg").read_text(), (here / "tree.html").read_text()
    steps = ET.fromstring(svg).findall(f"{SVG}g")
    assert [step.get("id") for step in steps] == ["step-1", "step-2", "step-3", "step-4"]
    assert [len(step.findall(f"{SVG}path")) for step in steps] == [2, 1, 1, 2]
    assert [[a.get("href") for a in step.findall(f"{SVG}a")] for step in steps] == [
        ["#step-1", "#step-2"],
        ["#step-1", "#step-3"],
        ["#step-2", "#step-4"],
        ["#step-3", "#step-4"],
    ]
    assert svg.strip() in html and "default-src 'none'" in html
    for text in (svg, html):
        assert "<script" not in text and "src=" not in text.replace("default-src", "").replace("style-src", "")
        assert {link.split('"')[0][:6] for link in text.split('href="')[1:]} == {"#step-"}


def test_names_are_text_in_pictures() -> None:
    name = "</title><script>alert(1)</script>"
    step = {"name": name, "messages": [{"from": 0, "to": 1, "chunks": [0], "adds": True}], "after": [[[0]], [[0, 1]]]}
    recording = {"hosts": [0, 1], "steps": [step]}
    for picture in (as_svg(name, recording), as_html(name, recording)):
        assert "<script" not in picture and "&lt;script&gt;" in picture
    ET.fromstring(as_svg(name, recording))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "show takes one run, or --collective NAME and overrides; "),
        (("a", "b"), "a b: show takes one run, or --collective NAME and overrides; "),
        (("a", "--svg", "a.svg"), "--svg: goes with --collective NAME"),
        (("--collective", "rign"), "collective=rign: there is no such choice; did you mean ring?"),
        (("--collective", "fabric"), "collective=fabric: is made by the fabric, "),
        (
            ("--collective", "auto", "hardware.workers=4"),
            r"collective=auto: is made by the fabric \(fabric for a sum of 32 bytes among 4 workers on one host: "
            r"the links between them are not described, .*\), and sends no messages",
        ),
        (("--collective", "ring", "hardware.workers=64"), "hardware.workers=64: a picture of a collective has 2 to 16"),
        (("--collective", "hierarchical"), "collective=hierarchical: .* all 2 that make this sum are on one host; "),
        (("--collective", "ring", "--svg", "no/ring.svg"), "--svg no/ring.svg: must name a file to write; "),
        (("--collective", "ring", "sync=nonsense"), "sync=nonsense: "),
    ],
)
def test_what_cannot_be_drawn_is_refused(paceline, arguments, says) -> None:
    ended = paceline("show", *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert re.match(says, ended.last)
