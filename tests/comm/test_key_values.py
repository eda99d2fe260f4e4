"""Heartbeats: who has stopped is known when a wait has been too long, without looking again."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from paceline.comm import key_values
from paceline.comm.errors import HangError
from paceline.comm.key_values import STOPPED, StoreKeyValues
from paceline.comm.rendezvous import serve_store
from paceline.comm.store import StoreClient

MakeBoards = Iterator[list[StoreKeyValues]]


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> MakeBoards:
    """Of three workers, with fast hearts."""
    monkeypatch.setattr(key_values, "BEAT", 0.03)
    with closing(serve_store(0)) as store:
        made = [StoreKeyValues(StoreClient(store.endpoint, rank, 5.0), rank, 3, 0.5) for rank in range(3)]
        yield made
        for one in made:
            one.close()


def wait_for_looks(one: StoreKeyValues, count: int) -> None:
    with one._looked:
        assert one._looked.wait_for(lambda: one._looks >= count, 20)


def test_a_worker_that_has_stopped_is_known_without_looking_again(boards: list[StoreKeyValues]) -> None:
    boards[2].close()  # its heartbeat ends, and it did not say that it left
    wait_for_looks(boards[0], boards[0]._looks + 2 * STOPPED + 2)
    with boards[0]._looked:  # no look can happen
        error = boards[0].hang([0, 1, 2], "in recv")
    assert error.frozen and error.missing == [2]
    assert "worker 0 waited 0.5 s in recv: worker 2 (last starting) gave no sign of life" in str(error)


def test_a_frozen_worker_outside_the_group_is_named_for_it_is_what_the_group_waits_for(
    boards: list[StoreKeyValues],
) -> None:
    boards[2].close()
    wait_for_looks(boards[0], boards[0]._looks + 2 * STOPPED + 2)
    assert boards[0].hang([0, 1], "in recv").missing == [2]
    boards[2].leave()
    error = boards[0].hang([0, 1], "in recv")
    assert error.missing == [1] and not error.frozen and "alive but elsewhere: worker 1" in str(error)


def test_a_worker_that_has_left_is_not_named_beside_one_that_is_waited_for(boards: list[StoreKeyValues]) -> None:
    boards[2].leave()
    boards[2].close()
    wait_for_looks(boards[0], boards[0]._looks + 2 * STOPPED + 2)
    error = boards[0].hang([0, 1, 2], "in recv_any")
    assert error.missing == [1] and not error.frozen
    assert str(error).endswith("alive but elsewhere: worker 1 (last starting)")


@pytest.mark.parametrize(
    ("doing", "said"),
    [
        (
            {1: "in recv from worker 2", 2: "computing"},
            "worker 1 (last in recv from worker 2), which waits for worker 2 (last computing)",
        ),
        (
            {1: "in send to worker 2", 2: "in recv from worker 0"},
            "worker 1 (last in send to worker 2), which waits for worker 2 (last in recv from worker 0), which waits "
            "for worker 0 (last in recv from worker 1), which waits for worker 1",
        ),
        (
            {1: "in recv from worker 2", 2: "in recv from worker 1"},
            "worker 1 (last in recv from worker 2), which waits for worker 2 (last in recv from worker 1), which waits "
            "for worker 1",
        ),
        ({1: "in recv_any", 2: "computing"}, "worker 1 (last in recv_any)"),
    ],
)
def test_whom_a_waiting_worker_waits_for_is_followed_to_the_end(
    doing: dict[int, str], said: str, boards: list[StoreKeyValues]
) -> None:
    boards[0].doing("in recv from worker 1")
    for rank, what in doing.items():
        boards[rank].doing(what)
    wait_for_looks(boards[0], boards[0]._looks + 2)  # all hearts have beaten since
    for rank in doing:
        wait_for_looks(boards[rank], boards[rank]._looks + 2)
    error = boards[0].hang([0, 1], "in recv from worker 1")
    assert str(error) == f"worker 0 waited 0.5 s in recv from worker 1: alive but elsewhere: {said}"
    assert error.missing == [1] and not error.frozen


def test_of_two_that_are_missing_each_is_described_once(boards: list[StoreKeyValues]) -> None:
    boards[1].doing("in recv from worker 2")
    for board in boards[1:]:
        wait_for_looks(board, board._looks + 2)
    said = str(boards[0].hang([0, 1, 2], "in all_reduce"))
    assert said.endswith("worker 1 (last in recv from worker 2), worker 2 (last starting)")


def test_a_worker_that_slept_does_not_take_the_others_for_frozen(boards: list[StoreKeyValues]) -> None:
    """It has not looked meanwhile: how long ago it looked last says nothing."""
    wait_for_looks(boards[0], 2)
    with boards[0]._looked:
        boards[0]._seen = dict.fromkeys(range(3), b'[0, "starting"]')  # what it saw before it was suspended
        boards[0]._still = dict.fromkeys(range(3), STOPPED - 1)
    assert not boards[0].hang([0, 1, 2], "in recv").frozen


def test_a_worker_that_nobody_waits_for_is_named_at_the_next_step(boards: list[StoreKeyValues]) -> None:
    boards[0].in_step(1)
    boards[1].leave()
    boards[1].close()
    boards[2].close()
    wait_for_looks(boards[0], boards[0]._looks + int(boards[0]._looks_of_timeout) + 2)
    boards[0].in_step(None)
    with pytest.raises(
        HangError, match=r"worker 0 waited 0\.5 s for a sign of life: worker 2 \(last starting\)"
    ) as error:
        boards[0].in_step(2)
    assert list(error.value.missing) == [2] and error.value.frozen
    boards[0].lost.add(2)  # the launcher has told of its death, without which others go on
    boards[0].in_step(3)


@pytest.mark.parametrize(("served_by", "who"), [(0, "worker 0"), (None, "the launcher")])
def test_a_heart_whose_store_goes_names_who_served_it(
    served_by: int | None, who: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(key_values, "BEAT", 0.03)
    monkeypatch.setattr(key_values, "ENDED", 0.03)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr(os, "_exit", lambda status: status == 4 and ended.set())
    store = serve_store(0)
    board = StoreKeyValues(StoreClient(store.endpoint, 1, 5.0, served_by), 1, 2, 5.0)
    store.close()
    assert ended.wait(20)
    board.close()
    assert capsys.readouterr().err == f"worker 1 lost {who}: the rendezvous store is gone\n"
