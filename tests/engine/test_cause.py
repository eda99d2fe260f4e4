"""Of several workers that failed, the one that the launcher names."""

from itertools import permutations

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


def test_nobody_is_waited_for_once_a_worker_is_known_to_be_frozen() -> None:
    local_workers = LocalWorkers(lambda _: False, lambda: "nothing was saved yet")
    frozen, elsewhere = (Ended(0, "HangError", "", 5, [1], frozen) for frozen in (True, False))
    assert local_workers._grace_after(frozen) == 0
    assert (
        local_workers._grace_after(elsewhere)
        == local_workers._grace_after(LOST)
        == local_workers._grace_after(OWN)
        == GRACE
    )
