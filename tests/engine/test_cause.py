"""Of several workers that failed, the one that the launcher names."""

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.engine.launch import local_workers
from paceline.engine.launch.launching import cause_among
from paceline.engine.launch.local_workers import GRACE, Ended, LocalWorkers

OWN = Ended(2, "ValueError", "bad", 4)
KILLED = Ended(1, "Killed", "was killed by SIGKILL", 4)
LOST = Ended(0, "PeerLostError", "lost a peer", 4)


def test_a_workers_own_error_comes_before_a_kill_and_that_before_a_lost_peer() -> None:
    for failures in permutations([OWN, KILLED, LOST]):
        assert cause_among(list(failures)) is OWN
    assert cause_among([LOST, KILLED]) is KILLED


def test_of_those_that_hang_it_is_the_one_that_waited_for_none_of_them() -> None:
    """Worker 3 is frozen; 2 waits for it, 0 and 1 for 2 and for one another."""
    hung = [Ended(rank, "HangError", "", 5, missing) for rank, missing in ((0, [1, 2]), (1, [2]), (2, [3]))]
    for failures in permutations([*hung, LOST]):
        assert cause_among(list(failures)) is hung[2]


def test_of_those_that_wait_for_one_another_it_is_the_first() -> None:
    hung = [Ended(rank, "HangError", "", 5, [1 - rank]) for rank in (1, 0)]
    assert cause_among(hung).rank == 0


def workers(are_ready: bool) -> LocalWorkers:
    found = LocalWorkers(lambda _: False, lambda: "nothing was saved yet")
    found._members = [SimpleNamespace(is_ready=are_ready)] * 2  # type: ignore[list-item]
    return found


def test_nobody_is_waited_for_once_a_worker_is_known_to_be_frozen() -> None:
    starting, trains = workers(False), workers(True)
    frozen, elsewhere = (Ended(0, "HangError", "", 5, [1], frozen) for frozen in (True, False))
    assert starting._grace_after(frozen) == trains._grace_after(frozen) == starting._grace_after(OWN) == 0
    assert starting._grace_after(elsewhere) == starting._grace_after(LOST) == trains._grace_after(OWN) == GRACE
    assert trains._grace_after(elsewhere) == trains._grace_after(LOST) == 0  # they were judged late


@pytest.mark.parametrize("server", [OWN, Ended(2)])
def test_who_lost_a_peer_is_given_up_once_that_peer_can_have_told_of_its_own_end(
    server: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 loses the server, whose own end is heard of later, and may be no fault."""
    monkeypatch.setattr(local_workers, "GRACE", 0.1)
    asked: list[Ended] = []

    heard = [[0], [2], []]

    class Heard(LocalWorkers):
        def _wait_for_words(self, ended: dict[int, Ended]) -> list[int]:
            return heard.pop(0) if heard else [1] * (1 not in ended and OWN not in ended.values())

        def _how(self, rank: int) -> Ended:
            return {0: LOST, 1: Ended(1), 2: server}[rank]

    def may_go_on(how: Ended) -> bool:
        asked.append(how)
        return how is LOST

    watched: Any = Heard(may_go_on, lambda: "")
    watched._members = [SimpleNamespace(is_ready=True)] * 3
    found = watched.watch()
    assert asked == ([server] if server.failed else [LOST])
    assert [how.rank for how in found if how.failed] == ([0, 2] if server.failed else [])
