"""The animated picture of a small run: its document holds what is true of the algorithm, and its strip shows it."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from watched_run import WatchedRun, trained, watched

from paceline.cli.collective import raw, recorded
from paceline.engine.features import watching
from paceline.engine.features.watching import plane_of
from paceline.exchange.aggregate import Krum
from paceline.exchange.compress import Slot, Vector
from paceline.exchange.compress.feedback import ErrorFeedback, WatchedFeedback
from paceline.strategies.core.held import HeldNumber, HeldRows
from paceline.tracking import player
from paceline.tracking.drawn import player as drawn

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def ssp(tmp_path_factory: pytest.TempPathFactory) -> WatchedRun:
    paces = "hardware.workers=3", "steps=9", "sync.staleness=2", "stragglers=lognormal", "stragglers.sigma=1.5"
    return watched(tmp_path_factory.mktemp("ssp"), "sync=ssp", *paces)


def test_the_clocks_that_ssp_has_applied_are_never_further_apart_than_the_bound(ssp: WatchedRun) -> None:
    applied = [[int(text) for text in texts] for _, _, texts, _ in ssp.held("clocks applied")["samples"]]
    apart = [max(clocks) - min(clocks) for clocks in applied]
    assert max(apart) == 2 and applied[-1] == [9, 9, 9]
    clock = ssp.held("clock")
    assert clock["within"] == 2 and {lane for lane, *_ in clock["samples"]} == {0, 1, 2}
    texts = [text for _, text in ssp.document["moments"]]
    said = [re.search(r"worker (\d) is at clock (\d), the slowest at (\d): bound 2 (\w+)", text) for text in texts]
    found = [(int(each[2]) - int(each[3]), each[4]) for each in said if each]
    assert {(2, "reached"), (3, "passed")} == set(found)  # who is past it waits


def test_a_server_is_not_shown_with_clocks_before_it_told_some(ssp: WatchedRun) -> None:
    [lane] = {lane for lane, *_ in ssp.held("clocks applied")["samples"]}
    first = ssp.held("clocks applied")["samples"][0][1]
    shown = [re.findall(rf'data-text="\d+:{lane}:\d+"[^>]*>(\d*)<', drawn._values(ssp.document, lane, at, 0)[-1])
             for at in (first / 2, first)]  # fmt: skip
    assert first > 0 and shown[0] == [""] and shown[1] != [""]


def test_each_message_has_its_bytes_and_its_time(ssp: WatchedRun) -> None:
    document, sizes = ssp.document, {}
    for *_, left, came, purpose, nbytes in document["messages"]:
        assert 0 <= left < came <= document["end"]
        sizes.setdefault(document["purposes"][purpose], set()).add(nbytes)
    weights = 4 * len(ssp.vectors()[0][2])
    assert sizes == {"fetch request": {8}, "fetch": {weights}, "push header": {8}, "push": {weights}}
    [server] = [i for i, lane in enumerate(document["lanes"]) if lane["kind"] == "server"]
    assert {server} == {each[1] for each in document["messages"] if document["purposes"][each[4]] == "push"}


def test_who_watches_changes_neither_times_nor_weights(tmp_path: Path) -> None:
    run = "sync=ssp", "compress=topk", "hardware.workers=2", "steps=4"
    found = []
    for watches in (True, False):
        folder = tmp_path / str(watches)
        folder.mkdir()
        trace, watcher, summary = trained(folder, *run, watches=watches)
        assert bool(vars(watcher).get("seen")) == watches
        found.append((trace, summary["loss"], summary["step_time"], summary["wire"]))
    assert found[0] == found[1]


def test_of_many_steps_some_weights_are_looked_at_and_all_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_POINTS", 4)
    run = watched(tmp_path, "sync=gossip", "hardware.workers=2", "steps=6")
    assert [clock for lane, _, clock in run.held("clock")["samples"] if lane == 0] == [0, 1, 2, 3, 4, 5, 6]
    assert len([lane for lane, *_ in run.held("weights")["samples"] if lane == 0]) == 3  # steps 0, 3 and 6


def test_gossips_consensus_distance_is_that_of_its_replicas(tmp_path: Path) -> None:
    run = watched(tmp_path, "sync=gossip", "hardware.workers=4", "steps=5")
    last: dict[int, torch.Tensor] = {}
    expected: list[float] = []
    for _, rank, vector in run.vectors():
        last[rank] = vector.double()
        if len(last) == 4:
            rows = torch.stack([*last.values()])
            expected.append(float((rows - rows.mean(0)).square().sum(1).mean().sqrt()))
    [curve] = run.document["curves"]
    assert curve["name"] == "consensus distance"
    assert [value for _, value in curve["samples"]] == pytest.approx(expected, rel=1e-3, abs=1e-7)
    assert max(expected) > 1e-3


def test_easgds_centre_moves_along_the_sum_of_the_springs(tmp_path: Path) -> None:
    run = watched(tmp_path, "sync=easgd", "sync.period=2", "hardware.workers=3", "steps=6")
    centre = run.held("centre")
    assert centre["ties"] and len(centre["samples"]) == 4  # the first, and one after each exchange; copies are left out
    centres = [vector for _, rank, vector in run.vectors("centre") if rank == 0]
    weights = [[vector for _, rank, vector in run.vectors() if rank == i] for i in range(3)]
    for exchange in (2, 4, 6):
        moved = centres[exchange] - centres[exchange - 1]
        springs = sum(own[exchange - 1] - centres[exchange - 1] for own in weights)
        assert isinstance(springs, torch.Tensor) and springs.norm() > 1e-3
        assert float(torch.cosine_similarity(moved, springs, 0)) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(("lock", "overwrites"), [("none", True), ("step", False)])
def test_hogwild_overwrites_what_others_wrote_unless_it_locks_the_step(
    tmp_path: Path, lock: str, overwrites: bool
) -> None:
    sparse = "data=sparse", "data.features=60", "data.nonzeros=10", "data.samples=60", "batch_size=1"
    model = "model=sparse_logistic_regression", f"sync.lock={lock}"
    run = watched(tmp_path, "sync=hogwild", *model, *sparse, "hardware.workers=3", "steps=4")
    assert ("entries overwritten" in {track["name"] for track in run.document["held"]}) == overwrites
    assert run.document["curves"] == []  # they share their memory
    if overwrites:
        counts = [
            sum(int(text or 0) for text in texts) for _, _, texts, _ in run.held("entries overwritten")["samples"]
        ]
        assert 0 < max(counts) <= 2 * 10  # weights of the ten features of a sample, for two classes


def sum_of(name: str, *overrides: str) -> dict[str, Any]:
    recording, why = recorded(f"collective={name}", overrides, None, ())
    assert recording is not None, why
    return raw(name, recording)


def test_a_rings_chunks_fill_up_until_all_have_all() -> None:
    document = player.of_sum(sum_of("ring", "hardware.workers=4"))
    [track] = document["held"]
    at_end = {lane: texts for lane, _, texts, _ in track["samples"]}  # the last of each
    assert at_end == {lane: ["4"] * 4 for lane in range(4)}
    filled = [sum(int(text) for _, at, texts, _ in track["samples"] if at == step * 1e6 for text in texts)
              for step in range(7)]  # fmt: skip
    assert filled == [16, 20, 28, 40, 52, 60, 64]
    assert len(document["messages"]) == 24 and len(document["moments"]) == 7


def test_of_a_long_sum_some_steps_are_drawn_and_a_longer_one_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    document = player.of_sum(sum_of("ring", "hardware.workers=9"))
    strip = drawn.key_moments(document)
    assert len(document["moments"]) == 17 and len(strip) == drawn.MOST_STEPS == len({*strip})
    assert (strip[0], strip[-1]) == (0.0, document["end"]) and player.too_long(document) == ""
    monkeypatch.setattr("paceline.tracking.player.MOST_BYTES", 4000)
    assert re.match(r"the sum of 9 workers has \d+ kB of data, and a player at most 4\.", player.too_long(document))


def test_krum_picks_the_row_that_it_returns_and_never_a_liar(tmp_path: Path) -> None:
    lies = "aggregate=krum", "attack=sign_flip", "attack.workers=1"
    run = watched(tmp_path, "sync=bsp", *lies, "hardware.workers=5", "steps=3")
    samples = run.held(UPDATES)["samples"]
    assert len(samples) == 3  # none before the first step, when there are no rows
    for lane, _, rows, made in samples:
        assert lane == 0 and [worker for worker, *_ in rows] == [0, 1, 2, 3, 4]
        assert [worker for worker, *_, apart in rows if apart] == [4]
        [picked] = [(worker, x, y) for worker, x, y, is_it, _ in rows if is_it]
        assert picked[0] != 4 and list(picked[1:]) == made
        places = {(x, y) for _, x, y, *_ in rows}
        assert len(places) == 5  # they are drawn apart
    found = [held[UPDATES] for _, _, held in run.seen if UPDATES in held]
    for held in found:
        assert isinstance(held, HeldRows)
        assert torch.equal(held.result, Krum().aggregate(held.rows, torch.ones(5), 1))


@pytest.mark.parametrize(
    ("mode", "lane"),
    [
        (("sync=parameter_server",), 5),
        (("sync=local_sgd", "sync.period=2"), 0),
        (("sync=fedavg", "data.limit=80"), 5),
        (("sync=ssp", "sync.staleness=0"), 5),
    ],
    ids=str,
)
def test_each_mode_that_aggregates_shows_what_the_rule_picks(tmp_path: Path, mode: tuple[str, ...], lane: int) -> None:
    lies = "aggregate=krum", "attack=sign_flip", "attack.workers=1"
    run = watched(tmp_path, *mode, *lies, "hardware.workers=5", "steps=4")
    samples = run.held(UPDATES)["samples"]
    times = [at for _, at, *_ in samples]
    assert len(times) >= 2 and len(set(times)) == len(times), "no rows are shown twice"
    for of, _, rows, made in samples:
        assert of == lane and {worker for worker, *_ in rows} == {0, 1, 2, 3, 4}
        assert [worker for worker, *_, apart in rows if apart] == [4]
        picked = [(worker, [x, y]) for worker, x, y, is_it, _ in rows if is_it]
        assert [place for _, place in picked] == [made] and picked[0][0] != 4
    assert f"{UPDATES}, on {run.document['lanes'][lane]['name']}" in drawn.as_html(run.document)


def test_a_gossiping_worker_shows_its_neighbours_and_a_server_of_the_mean_shows_nothing(tmp_path: Path) -> None:
    lies = "attack=sign_flip", "attack.workers=1", "hardware.workers=5", "steps=2"
    run = watched(tmp_path, "sync=gossip", "aggregate=median", *lies)
    assert [(lane, [worker for worker, *_ in rows]) for lane, _, rows, _ in run.held(UPDATES)["samples"]] == [
        (0, [0, 1, 4])
    ] * 2
    (tmp_path / "mean").mkdir()
    mean = watched(tmp_path / "mean", "sync=parameter_server", "hardware.workers=2", "steps=2")
    assert UPDATES not in {track["name"] for track in mean.document["held"]}


def test_what_top_k_sends_and_leaves_out_is_what_was_to_be_sent(tmp_path: Path) -> None:
    """No entry is in both, so that the squares of their lengths add up."""
    run = watched(tmp_path, "sync=bsp", "compress=topk", "compress.ratio=0.1", "hardware.workers=2", "steps=4")
    of = {name: [value for lane, _, value in run.held(name)["samples"] if lane == 1] for name in LENGTHS}
    whole, sent, left = of.values()
    assert len(whole) == 5 and min(*sent[1:], *left[1:]) > 0.01
    assert [a**2 + b**2 for a, b in zip(sent, left, strict=True)] == pytest.approx([p**2 for p in whole], rel=2e-3)


UPDATES = "updates given to the rule"
LENGTHS = ("to send", "sent", "left out")


def test_error_feedback_adds_what_was_left_out_to_the_next_vector() -> None:
    slot = Slot("all", Vector(((6,),), torch.float32), 0, 2)
    watched_one = WatchedFeedback(ErrorFeedback())
    x = torch.tensor([3.0, -1.0, 0.5, 0.0, 2.0, -4.0])
    left = torch.zeros(6)
    for _ in range(3):
        p = watched_one.add(x, slot)
        assert torch.equal(p, left + x)
        sent = torch.where(p.abs() > 2.5, p, 0.0)
        left = p - sent
        watched_one.keep(p, sent, slot)
        found = [held.value for held in watched_one.shows().values() if isinstance(held, HeldNumber)]
        assert found == pytest.approx([float((sent + left).norm()), float(sent.norm()), float(left.norm())])
        assert torch.equal(slot.memory["e"], left)


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_a_stage_holds_the_micro_batches_and_versions_of_its_schedule(tmp_path: Path, schedule: str) -> None:
    """Stage 0 of 1F1B and of PipeDream holds as many micro-batches as there are stages, and the last one a single."""
    three = "strategy.stages=3", "hardware.workers=3", "model.hidden=[8, 8, 8]"
    more = ("strategy.micro_batches=4",) if schedule == "1f1b" else ()
    run = watched(tmp_path, "strategy=pipeline", f"strategy.schedule={schedule}", *three, *more, "steps=6")
    samples = run.held("micro-batch:version of its weights")["samples"]
    most = [max(sum(map(bool, texts)) for of, _, texts, _ in samples if of == lane) for lane in range(3)]
    assert most == [3, 2, 1]
    held = [{text.split(":")[1] for text in texts if text} for lane, _, texts, _ in samples if lane == 0]
    versions = max(map(len, held))
    assert versions == (1 if schedule == "1f1b" else 3)  # with a flush all of a batch read the same weights
    assert "entries overwritten" not in {track["name"] for track in run.document["held"]}
    if schedule == "pipedream":  # stage i's forward pass of micro-batch j comes after the update of j - (3 - i)
        read = {(lane, *map(int, text.split(":v"))) for lane, _, texts, _ in samples for text in texts if text}
        assert len(read) >= 12 and all(version == max(j - (2 - lane), 0) for lane, j, version in read)


@pytest.mark.parametrize(("shard", "others"), [("optimizer", "wg"), ("gradients", "w")])
def test_a_replica_of_zero_has_the_sum_and_the_state_of_its_own_chunk(tmp_path: Path, shard: str, others: str) -> None:
    run = watched(tmp_path, "sync=bsp", f"sync.shard={shard}", "hardware.workers=3", "steps=2")
    at_end = {lane: texts for lane, _, texts, _ in run.held("chunks")["samples"]}
    assert at_end == {lane: ["wGo" if i == lane else others for i in range(3)] for lane in range(3)}


def test_masks_of_secure_aggregation_cancel(tmp_path: Path) -> None:
    run = watched(tmp_path, "sync=fedavg", "secure=bonawitz", "hardware.workers=3", "data.limit=48", "steps=4")
    at_end = {lane: texts for lane, _, texts, _ in run.held("entries of masks")["samples"]}
    assert set(at_end) == {0, 1, 2}
    for entry in zip(*at_end.values(), strict=True):
        total = sum(map(float, entry))  # as shares of 2^63, of numbers modulo 2^64
        assert abs(total - 2 * round(total / 2)) < 0.02
    assert max(abs(float(text)) for texts in at_end.values() for text in texts) > 0.05


def test_vectors_of_a_plane_keep_their_distances_in_it() -> None:
    generator = torch.Generator().manual_seed(3)
    flat = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    axes, _ = torch.linalg.qr(torch.randn(9, 2, generator=generator, dtype=torch.float64))
    vectors = flat @ axes.T
    vectors -= vectors.mean(0)
    places = plane_of(vectors @ vectors.T, torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(torch.cdist(places, places), torch.cdist(flat, flat))


def test_what_does_not_fit_is_left_out_and_the_document_says_so(
    ssp: WatchedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "MOST_BYTES", 4000)
    monkeypatch.setattr(player, "LANES", 3)
    cut = player._fitting({**ssp.document, "moments": []})
    assert len(json.dumps(cut, separators=(",", ":"))) < 4200
    assert [lane["name"] for lane in cut["lanes"]] == ["worker 0", "worker 1", "server 3"]
    assert max(end for _, _, end, _ in cut["spans"]) <= cut["end"] < ssp.document["end"]
    assert re.fullmatch(r"Shown are the first \S+ ms of \S+ ms and 3 of 4 workers and servers\.", cut["about"])
    assert drawn.as_html(cut).count("Shown are the first") == 2


def test_the_strip_is_readable_without_a_script(ssp: WatchedRun) -> None:
    page = drawn.as_html(ssp.document)
    pictures = [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.S)]
    assert len(pictures) == 2 * drawn.MOMENTS  # rows, and the plane
    words = ["".join(each.itertext()) for each in pictures[-2].iter(f"{SVG}text")]
    assert {"worker 0", "server 3", "9"} <= set(words)
    assert page.count("<figcaption>") == drawn.MOMENTS and "is at clock" in page
    [data] = re.findall(r'<script type="application/json">(.*?)</script>', page, re.S)
    assert {key: value for key, value in json.loads(data).items() if key not in ("layout", "strip")} == ssp.document
    ET.fromstring(drawn.as_svg(ssp.document))


def test_names_are_text_in_the_strip() -> None:
    name = "</title><script>alert(1)</script>"
    step = {"name": name, "messages": [{"from": 0, "to": 1, "chunks": [0], "adds": True}], "after": [[[0]], [[0, 1]]]}
    document = player.of_sum({"collective": name, "hosts": [0, 1], "steps": [step]})
    for text in (drawn.as_svg(document), drawn.as_html(document)):
        assert "<script>" not in text
    ET.fromstring(drawn.as_svg(document))
