"""All workers of a group call the same collective: what is not the others' ends with the same words on every worker."""

import pytest
import torch

from paceline.comm import Comm, MessageError
from paceline.comm.calls import Past
from paceline.comm.key_values import StoreKeyValues
from paceline.comm.process import ProcessComm


def called(past: Past, calls: str) -> str:
    """Those of `calls` that were not foretold, each but these as a dot."""
    told = ""
    for each in calls:
        if past.foretells((each, "", None, None)):
            told += "."
        else:
            past.learn((each, "", None, None))
            told += each
    return told


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ("aaaaaa", "aa...."),
        ("abcabcabc", "abca....."),
        ("aaabaaabaaabaaab", "aa.ba..........."),
        ("ababababcabababab", "aba.....ca......."),  # an evaluation between steps
    ],
)
def test_what_comes_again_is_foretold_by_the_longest_past_that_is_like_the_present(calls, told):
    assert called(Past(), calls) == told


def test_what_repeats_is_foretold_for_ever_though_old_calls_are_forgotten():
    past, period = Past(kept=16), "aaabaac"
    called(past, 4 * period)
    assert called(past, 20 * period) == "." * len(20 * period)
    assert "".join(past.before(count)[0] for count in range(14, 0, -1)) == 2 * period
    assert past.before(60)[0] == (20 * period)[-60]


def test_calls_that_do_not_repeat_are_never_foretold_and_do_not_pile_up():
    past = Past(kept=8)
    for entries in range(1000):
        assert not past.foretells(("sum", "", entries, None))
        past.learn(("sum", "", entries, None))
    assert len(past._calls) < 16 and len(past._of) < 16


# -- on processes


def ones(entries: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(entries, dtype=dtype)


COLLECTIVES = {
    "all_reduce max": lambda comm, tensor: comm.all_reduce(tensor, "max").wait(),
    "broadcast from 0": lambda comm, tensor: comm.broadcast(tensor, 0).wait(),
    "broadcast from 2": lambda comm, tensor: comm.broadcast(tensor, 2).wait(),
    "reduce_scatter": lambda comm, tensor: comm.reduce_scatter(tensor),
    "all_to_all": lambda comm, tensor: comm.all_to_all(tensor),
}
TENSORS = {"shorter": ones(6), "longer": ones(9000), "of another dtype": ones(12, torch.int32)}


def call_in_turn(comm: Comm, name: str, tensor: torch.Tensor, before: int) -> str:
    """In a group of its own, after as many calls that all make alike."""
    group = comm.split(0)
    assert group is not None
    for _ in range(before):
        COLLECTIVES[name](group, ones(12))
    with pytest.raises(MessageError) as caught:
        while True:  # those that a broadcast reaches without the other worker have gone on
            COLLECTIVES[name](group, tensor)
    assert caught.value.exit_code == 4
    return str(caught.value)


def check(workers, name: str, what: str, odd: int, before: int) -> None:
    """A run of its own: a group that has called unlike ends it, whatever its other groups go on to call."""

    wrong, others = TENSORS[what], ", ".join(str(each) for each in range(3) if each != odd)
    dtype = str(wrong.dtype).removeprefix("torch.")
    told = workers(3, call_unlike, name, what, odd, before, timeout=60.0, patience=200.0)
    assert told == [
        f"worker {rank} in {name.split()[0]} of world/1.0: worker {odd} calls {name} of {len(wrong):,} "
        f"entries of {dtype}, where workers {others} call {name} of 12 entries of float32"
        for rank in range(3)
    ]


def call_unlike(comm: Comm, name: str, what: str, odd: int, before: int) -> str:
    return call_in_turn(comm, name, TENSORS[what] if comm.rank == odd else ones(12), before)


@pytest.mark.dist
def test_all_are_told_who_calls_with_another_tensor_after_some_that_were_foretold(workers):
    check(workers, "reduce_scatter", "of another dtype", 2, 5)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("odd", "before"), [(0, 5), (1, 0), (2, 5)])
@pytest.mark.parametrize("what", TENSORS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_so_with_every_collective(workers, name, what, odd, before):
    check(workers, name, what, odd, before)


def go_elsewhere(comm: ProcessComm) -> str:
    """Worker 0 has begun a sum, and waits for a message of the worker that begins it otherwise."""
    for _ in range(4):
        comm.reduce_scatter(ones(12))
    tensor = ones(12 - 2 * comm.rank)
    with pytest.raises(MessageError) as caught:
        comm.ireduce_scatter(tensor, torch.empty(6 - comm.rank), torch.empty_like(tensor))
        comm.recv(ones(1), 1)
    comm.close()
    return str(caught.value)


@pytest.mark.dist
@pytest.mark.slow
def test_who_has_gone_on_to_another_wait_is_told_the_same(workers):
    words = (
        "worker 1 calls reduce_scatter of 10 entries of float32, where worker 0 calls reduce_scatter of 12 entries of"
    )
    first, other = workers(2, go_elsewhere)
    assert first == f"worker 0 in recv from worker 1: {words} float32"
    assert other == f"worker 1 in reduce_scatter of world: {words} float32"


def count_askings(comm: Comm) -> list[int]:
    asked, ask = [], StoreKeyValues.set_and_ask

    def counted(*given):
        asked.append(given)
        return ask(*given)

    StoreKeyValues.set_and_ask = counted  # type: ignore[method-assign]
    counts = []
    for _ in range(8):
        for entries in (8, 8, 2, 6):
            comm.all_reduce(ones(entries), "max").wait()
            comm.broadcast(ones(entries), 1).wait()
        counts.append(len(asked))
    assert isinstance(comm.key_values, StoreKeyValues)
    assert comm.key_values._store.num_keys() < 40  # what was said and read is taken back
    return counts


@pytest.mark.slow
@pytest.mark.dist
def test_calls_that_repeat_ask_nobody(workers):
    for counts in workers(2, count_askings):
        assert 6 <= counts[0] <= 8 and counts[-1] <= 12 and len({*counts[3:]}) == 1
