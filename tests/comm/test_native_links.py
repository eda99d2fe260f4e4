"""The flows of the virtual cluster in native code, against those in Python: the same events, to the bit."""

import random
from collections.abc import Callable, Iterator
from math import inf

import pytest
from needs import needs_compiler

from paceline.comm import native
from paceline.comm.links import LinkChange, ModelledLinks, SharedLinks
from paceline.comm.native_links import NativeLinks, links_here, native_links

BANDWIDTHS = (1.0, 3.0, 7.0, 1e9 / 3, inf)
SIZES = (0, 1, 5, 40, 0.1, 64)  # bytes
SECONDS = (0.0, 0.25, 1 / 3, 1.0, 50.0)
Event = tuple[object, ...]


def native_or_fail() -> ModelledLinks:
    library = native_links()
    assert library is not None
    return NativeLinks(library)


def changes(draw: random.Random, lanes: list[int]) -> Iterator[LinkChange]:
    """Changes of which some come at the same moment. The last one has all lanes up."""
    at = draw.choice(SECONDS)
    for _ in range(100):
        some = [(lane, draw.choice((0.0, 0.0, 2.0, 5.0, 1e9 / 7))) for lane in draw.sample(lanes, 2)]
        yield LinkChange(at, some, f"why {draw.randrange(3)}")
        at += draw.choice(SECONDS)
    yield LinkChange(at, [(lane, 1.0) for lane in lanes], "")


def played(make: Callable[[], ModelledLinks], seed: int) -> list[Event]:
    """All that others see of random flows: ends and their moments, answers, and reasons to wait."""
    draw, links, seen = random.Random(seed), make(), list[Event]()
    lanes = [links.add(draw.choice(BANDWIDTHS)) for _ in range(draw.choice((3, 12, 40)))]
    if seed % 3 == 0:
        links.plan(changes(random.Random(seed + 1), lanes))
    clock, ties = 0.0, draw.random() < 0.5  # many that begin and end at the same moment

    def post(at: float, again: int) -> None:
        number, most = len(seen), draw.choice((1, 2, 2, 2, len(lanes)))
        way, replies = draw.sample(lanes, draw.randrange(most + 1)), draw.random() < 0.3 * again
        nbytes = draw.choice(SIZES) if ties else draw.uniform(0, 50)

        def ended(moment: float) -> None:
            seen.append(("ends", number, moment))
            if replies:
                post(moment + draw.choice((-1.0, 0.0, 0.0, 1.0)), again - 1)

        seen.append(("posts", number, at, nbytes, *way))
        links.post(("connection", draw.randrange(6)), way, nbytes, at, ended)

    for _ in range(300):
        for _ in range(draw.randrange(3)):
            post(clock - draw.choice((0, 0, 0, 0.5)), again=2)
        clock += draw.choice(SECONDS) if ties else draw.uniform(0, 3)
        while happened := links.happen(clock):
            seen.append(("happened", happened, clock))
        seen.append(("stopped", *links.stopped()))
    for _ in range(20):  # the rest, and some changes
        clock += 100.0
        seen.append(("later", links.happen(clock), *map(links.bandwidth, lanes)))
    seen.append(("at last", links.happen(inf), links.happen(inf), *links.stopped()))
    return seen


@needs_compiler
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(12, 120, 12))])
def test_native_links_have_the_same_events_to_the_bit(first: int) -> None:
    ends = 0
    for seed in range(first, first + 12):
        expected = played(SharedLinks, seed)
        assert played(native_or_fail, seed) == expected, seed
        ends += sum(event[0] == "ends" for event in expected)
    assert ends > 1000


@needs_compiler
def test_a_flow_over_more_lanes_than_any_before_shares_them_all() -> None:
    """Each of the thousand flows has half of its lane, beside the one over all lanes."""
    ends: dict[Callable[[], ModelledLinks], list[float]] = {SharedLinks: [], native_or_fail: []}
    for make, found in ends.items():
        links = make()
        lanes = [links.add(2.0) for _ in range(1000)]
        for lane in lanes:
            links.post(lane, [lane], 3.0, 0.0, found.append)
        links.post("all", lanes, 4.0, 0.0, found.append)
        while links.happen(inf):
            pass
    assert ends[native_or_fail] == ends[SharedLinks] == [3.0] * 1000 + [3.5]


@needs_compiler
@pytest.mark.parametrize("make", [SharedLinks, native_or_fail])
def test_changes_without_end_do_not_happen_where_no_flow_waits(make: Callable[[], ModelledLinks]) -> None:
    links = make()
    lane = links.add(2.0)

    def flapping() -> Iterator[LinkChange]:
        yield LinkChange(1.0, [(lane, 0.0)], "it is down")
        raise AssertionError("a second change was asked for, and there may be no end of them")

    links.plan(flapping())
    assert not links.happen(inf)


def test_without_native_code_python_computes_links_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "load", lambda _: None)
    native_links.cache_clear()
    try:
        assert type(links_here()) is type(links_here()) is SharedLinks
    finally:
        native_links.cache_clear()
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "Python computes messages of the virtual cluster" in said
