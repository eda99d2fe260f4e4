"""`paceline explain group=choice`: its text, and its picture, which is of a real run."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.cli.choices import group_of
from paceline.engine.api.small_run import NoPictureError, SmallRun, small_run
from paceline.tracking.drawn.lanes import as_svg
from paceline.tracking.lanes import read

SVG = "{http://www.w3.org/2000/svg}"
EVERY = [f"{group}={each.name}" for group in ("sync", "strategy", "collective", "compress") for each in group_of(group)]


@pytest.fixture(scope="module")
def of_ssp() -> SmallRun:
    return small_run("sync=ssp", ["hardware.workers=3", "steps=5"])


def arrows(trace: str) -> list[tuple[str, int, int, float, float]]:
    """(purpose, sender, receiver, from, until) of a trace's messages."""
    events = json.loads(trace)["traceEvents"]
    left = {each["id"]: each for each in events if each["ph"] == "s"}
    came = {each["id"]: each for each in events if each["ph"] == "f"}
    assert left.keys() == came.keys() and left
    return [(left[i]["name"], left[i]["tid"], came[i]["tid"], left[i]["ts"], came[i]["ts"]) for i in left]


def test_the_picture_has_the_messages_of_the_trace_and_no_others(of_ssp: SmallRun) -> None:
    lanes = read(of_ssp.trace)
    assert [row["name"] for row in lanes["lanes"]] == ["worker 0", "worker 1", "worker 2", "server 3"]
    own = [each for each in json.loads(of_ssp.trace)["traceEvents"] if each["ph"] == "X" and each["tid"] == 0]
    ends = {each["args"]["step"]: round(each["ts"] + each["dur"], 3) for each in own}
    (over,) = [ends[last] for last in ends if last - 2 in ends and ends[last - 2] == lanes["begin"]]
    within = [each for each in arrows(of_ssp.trace) if lanes["begin"] <= each[3] < over]
    assert lanes["end"] == max(over, *(each[4] for each in within))
    shown = [(each["purpose"], each["from"], each["to"], each["left"], each["came"]) for each in lanes["messages"]]
    assert sorted(shown) == sorted(within)
    assert {purpose for purpose, *_ in shown} == {"fetch request", "fetch", "push header", "push"}
    picture = ET.fromstring(as_svg("sync=ssp", lanes))
    drawn = [each for each in picture.iter(f"{SVG}path") if "message" in each.get("class", "").split()]
    titles = sorted(each.findtext(f"{SVG}title") or "" for each in drawn)
    names = [row["name"] for row in lanes["lanes"]]
    assert titles == sorted(f"{names[sender]} to {names[receiver]}: {what}" for what, sender, receiver, _, _ in within)


def test_a_ring_has_as_many_messages_of_each_phase() -> None:
    """The first worker may end its step before the last message of the step has arrived at another one."""
    lanes = read(small_run("collective=ring", ["hardware.workers=4", "steps=4"]).trace)
    assert Counter(each["purpose"] for each in lanes["messages"]) == {"share-reduce": 24, "share-only": 24}
    assert all(each["came"] <= lanes["end"] for each in lanes["messages"])


def test_each_lane_has_what_its_worker_did_one_after_the_other(of_ssp: SmallRun) -> None:
    lanes = read(of_ssp.trace)
    for row in lanes["lanes"]:
        spans = sorted(row["spans"], key=lambda each: each["start"])
        assert all(one["end"] <= other["start"] + 1e-6 for one, other in pairwise(spans))
        assert all(lanes["begin"] <= each["start"] < each["end"] <= lanes["end"] for each in spans)
    assert {span["kind"] for span in lanes["lanes"][0]["spans"]} == {"compute", "waiting", "communication"}


def test_a_sum_joins_a_worker_that_was_not_blocked_on_it() -> None:
    more = ["hardware.workers=3", "steps=8", "stragglers=one_slow"]
    lanes = read(small_run("sync=easgd", more).trace)
    assert [(each["name"], each["lanes"]) for each in lanes["sums"]] == [("pulls (all_reduce)", [0, 1, 2])]


def test_a_sum_joins_the_lanes_that_take_part_in_it() -> None:
    lanes = read(small_run("strategy=data_parallel", ["hardware.workers=3", "steps=4"]).trace)
    assert [(each["name"], each["lanes"]) for each in lanes["sums"]] == [("gradients (all_reduce)", [0, 1, 2])] * 2
    picture = ET.fromstring(as_svg("bsp", lanes))
    assert sum("sum" in each.get("class", "").split() for each in picture.iter(f"{SVG}path")) == 2


@pytest.mark.slow
def test_what_is_tried_beside_a_choice_never_takes_its_place() -> None:
    """optimizer=adam would train the MLP that Pegasos refuses."""
    overrides = small_run("optimizer=pegasos", ["hardware.workers=2"]).overrides
    assert [each for each in overrides if each.startswith("optimizer=")] == ["optimizer=pegasos"]
    assert "model=linear" in overrides


@pytest.mark.slow  # a run
def test_a_choice_that_needs_itself_among_others_is_typed_once() -> None:
    overrides = small_run("model=kmeans", ["hardware.workers=2", "steps=2"]).overrides
    assert len({*overrides}) == len(overrides) and "optimizer=lloyd" in overrides


@pytest.mark.slow  # two runs in processes of their own
@pytest.mark.timeout(240)
def test_a_choice_that_diverges_alone_is_run_with_one_that_defends() -> None:
    """attack=not_finite makes the mean NaN at once."""
    more = ["hardware.workers=3", "steps=2", "data.limit=64"]
    assert "aggregate=median" in small_run("attack=not_finite", more).overrides


def test_a_run_is_watched_only_where_that_is_asked_for(of_ssp: SmallRun) -> None:
    assert of_ssp.samples is None
    watched = small_run("sync=ssp", ["hardware.workers=3", "steps=5"], watch=True)
    assert watched.samples is not None and watched.samples["held"]
    assert json.loads(watched.trace)["traceEvents"] == json.loads(of_ssp.trace)["traceEvents"]


def test_the_text_has_the_equation_the_cost_the_paper_and_the_picture(paceline, here: Path) -> None:
    ended = paceline("explain", "sync=ssp", "hardware.workers=3", "--html", "ssp.html", "--svg", "ssp.svg")
    assert (ended.status, ended.err) == (0, "picture: ssp.html\npicture: ssp.svg\n")
    assert "    w_i,t = w_0 - eta (" in ended.out and "Ho et al. 2013" in ended.out
    stated, sent = re.findall(r"digits: (\S+ \w+) are stated, and (\S+ \w+)\s+were", " ".join(ended.out.split()))[0]
    assert stated == sent
    assert re.search(r"^worker 2 +[#~. ]+$", ended.out, re.M) and re.search(r"worker \d -> server 3 +push", ended.out)
    assert "again: paceline train sync=ssp hardware=virtual " in ended.out
    page = (here / "ssp.html").read_text()
    assert (here / "ssp.svg").read_text().strip() in page and "default-src 'none'" in page
    words = page.partition("<h2>Who sends")[0]
    assert "<code>staleness</code>" in words and "<em>Several servers</em>: each" in words and "`" not in words
    assert '<div class="picture" tabindex="0"' in page, "it scrolls on a telephone"
    kinds = re.findall("<script([^>]*)>", page)
    assert kinds == [' type="application/json"', ""] and "script-src 'sha256-" in page
    assert not re.search(r"\\b(src|href)=", page)


def test_json_holds_the_parts_and_the_picture(paceline) -> None:
    raw = json.loads(paceline("explain", "collective=star", "hardware.workers=3", "--format", "json").out)
    assert raw["group"] == "collective" and raw["equations"] and raw["use"] and raw["sources"]
    assert raw["run"]["sent"]["stated"] == raw["run"]["sent"]["measured"] > 0
    purposes = [(each["purpose"], each["to"]) for each in raw["run"]["picture"]["messages"]]
    assert {to for purpose, to in purposes if purpose == "gather"} == {0} and "broadcast" in dict(purposes)


def test_a_choice_with_a_value_that_has_no_default_is_explained_and_asks_for_it(paceline, here: Path) -> None:
    ended = paceline("explain", "stragglers=trace", "--html", "trace.html")
    assert ended.status == 0 and "stragglers.path=VALUE (it has no default)" in ended.out
    why = "There is no picture: stragglers.path: has no default. Choose a value: stragglers.path=VALUE"
    assert why in " ".join(ended.out.split()) and why in (here / "trace.html").read_text()


@pytest.mark.slow
def test_a_choice_whose_value_is_given_has_a_picture(paceline, here: Path) -> None:
    (here / "factors.txt").write_text("1 2 4\n1 1 1\n")
    given = paceline("explain", "stragglers=trace", "stragglers.path=factors.txt", "hardware.workers=3", "steps=4")
    assert given.status == 0 and re.search(r"^worker 2 +[#~. ]+$", given.out, re.M), given.err


def test_a_loss_that_no_built_in_data_fit_says_which_data_do(paceline) -> None:
    ended = paceline("explain", "task=binary")
    said = " ".join(ended.out.split())
    assert ended.status == 0 and "There is no picture: data=diabetes: load() gives a train split with targets" in said
    assert "task=binary learns those from 0 to 1" in said and "columns of 0 and 1 of `data=table" in said


@pytest.mark.slow
def test_a_choice_that_the_virtual_cluster_does_not_take_is_explained_without_a_picture(paceline) -> None:
    ended = paceline("explain", "strategy=torch_ddp")
    assert ended.status == 0
    assert "There is no picture: hardware=virtual: strategy=torch_ddp talks to torch's own" in ended.out
    refused = paceline("explain", "strategy=torch_ddp", "--svg", "a.svg")
    assert refused.status == 2 and refused.last.startswith("--svg: there is no picture of strategy=torch_ddp: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sync=spp",), "sync=spp: there is no such choice; did you mean ssp"),
        (("snyc=ssp",), "snyc: must be a group whose choices are classes, as in GROUP=CHOICE; did you mean sync?"),
        (("evaluate.attack=pgd",), "(fgsm or pgd: robust accuracy, on test samples"),
        (("evaluate.attack=pgd",), "GROUP=CHOICE; of that name there is: paceline explain adversarial_training=pgd"),
        (("evaluate.eps",), "evaluate.eps: is a key of the configuration (a share of the data's range; null: 0.1)"),
        (("epochs=5",), "epochs=5: is a key of the configuration, and explain takes choices"),
        (("sync.staleness=2",), "is a knob of sync=ssp: paceline explain sync=ssp sync.staleness=2"),
        (("staleness",), "staleness: is a knob of sync=ssp: paceline explain sync=ssp"),
        (("lr",), "lr: is a knob of several groups. Choose callbacks.lr or optimizer.lr or server.lr or sync.lr"),
        (("ring",), "ring: is no run, and a choice: paceline explain collective=ring"),
        (("SSP",), "SSP: is no run and no choice; did you mean sync=ssp?"),
        (("krumm",), "krumm: is no run and no choice; did you mean aggregate=krum"),
        (("Stalenes",), "Stalenes: is no run and no choice; did you mean staleness"),
        (("fsdp",), "fsdp: is no run and no choice; did you mean strategy=torch_fsdp?"),
        (("learning_rate",), "learning_rate: is no run and no choice; did you mean optimizer.lr?"),
        (("1F1B",), " or strategy=pipeline strategy.schedule=1f1b"),
        (("xyzzy",), "no run 'xyzzy' under runs"),
        (("sync",), "sync: is a group; explain takes one of its choices, such as sync=asp (paceline list sync)"),
        (("callbacks=best",), "there is no more to explain of it than its keys have (paceline list callbacks)"),
        (("sync.nothing=2",), "sync.nothing: must be a group"),
        (("sync=ssp", "hardware.workers=0"), "hardware.workers=0: must be greater than or equal to 1"),
        (("sync=ssp", "sync.stalenes=3"), "sync.stalenes: "),
        (("sync=ssp", "--svg", "no/where.svg"), "--svg no/where.svg: must name a file to write; "),
    ],
)
def test_what_cannot_be_explained_is_refused(paceline, arguments: tuple[str, ...], says: str) -> None:
    ended = paceline("explain", *arguments)
    assert (ended.status, ended.out) == (2, "") and says in ended.last


def test_a_model_has_the_picture_of_its_own_run() -> None:
    run = small_run("model=linear", ["hardware.workers=2", "steps=2"])
    assert (run.summary["model"], run.summary["data"]) == ("linear", "digits")
    assert [each for each in run.overrides if each.startswith("model=")] == ["model=linear"]


def test_data_that_no_small_run_can_read_have_no_picture() -> None:
    with pytest.raises(NoPictureError, match=r"data\.path"):
        small_run("data=table")


@pytest.mark.slow
@pytest.mark.parametrize("choice", EVERY)
def test_every_choice_has_a_picture_or_says_why_not(choice: str) -> None:
    try:
        run = small_run(choice)
    except NoPictureError as why:
        assert "talks to torch's own process groups" in str(why)
        return
    lanes = read(run.trace)
    assert all(row["spans"] for row in lanes["lanes"] if row["name"].startswith("worker"))
    ET.fromstring(as_svg(choice, lanes))
    silent = choice in ("sync=hogwild", "sync=hogwild_locked", "sync=independent", "sync=routed", "strategy=single")
    assert bool(lanes["messages"] or lanes["sums"]) != silent


@pytest.mark.parametrize("word", ["Ring", "rings"])
def test_a_choice_comes_before_the_knobs_that_have_a_value_of_its_name(word: str, paceline) -> None:
    ended = paceline("explain", word)
    assert ended.status == 2 and "did you mean collective=ring or " in ended.last
