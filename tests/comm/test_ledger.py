"""The closed forms of what one worker sends, against counting messages one by one."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from paceline.comm import ledger
from paceline.comm.ledger import Ledger

sizes = st.integers(1, 200)
payloads = st.integers(0, 10**9)


@given(payloads, sizes)
def test_a_broadcast_reaches_every_other_worker_once(payload, size):
    sent = sum(ledger.broadcast_bytes(payload, size, distance) for distance in range(size))
    assert sent == (size - 1) * payload


def test_the_source_of_a_broadcast_has_a_child_for_each_level_of_the_tree():
    assert [ledger.broadcast_bytes(1, size, 0) for size in (1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 2, 3, 3, 4]


@given(payloads, sizes)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_of_the_pieces(payload, size):
    piece = Fraction(payload, size)
    by_chunks = sum(piece for _ in range(2 * (size - 1)))  # a ring: one chunk a step
    assert ledger.all_reduce_bytes(payload, size) == by_chunks
    assert ledger.reduce_scatter_bytes(payload, size) + (size - 1) * piece == by_chunks


@given(payloads, sizes)
def test_all_to_all_keeps_its_own_share(payload, size):
    assert ledger.all_to_all_bytes(payload, size) == payload - Fraction(payload, size)


@given(payloads)
def test_one_worker_sends_nothing(payload):
    assert ledger.broadcast_bytes(payload, 1, 0) == 0
    for formula in (
        ledger.all_reduce_bytes,
        ledger.reduce_scatter_bytes,
        ledger.all_gather_bytes,
        ledger.all_to_all_bytes,
    ):
        assert formula(payload, 1) == 0


def test_a_snapshot_does_not_change_afterwards():
    account = Ledger()
    account.count("send", 5)
    before = account.snapshot()
    account.count("send", 7)
    assert before == {"send": 5}
    assert account.snapshot() == {"send": 12}
    assert account.messages["send"] == 2


def test_an_error_aside_does_not_leave_counting_off():
    account = Ledger()
    try:
        with account.aside():
            raise KeyError
    except KeyError:
        account.count("send", 3)
    assert account.snapshot() == {"send": 3}


def test_what_is_sent_aside_is_left_out_and_within_it_too_and_counting_goes_on_afterwards():
    own = Ledger()
    with own.aside():
        own.count("send", 5)
        with own.aside():
            own.count("send", 5)
        own.count("send", 5)
        assert own.is_aside
    assert not own.snapshot() and not own.is_aside
    own.count("send", 7)
    assert own.snapshot() == {"send": 7}


def test_what_training_has_under_way_is_counted_although_somebody_looks_at_it_aside():
    own = Ledger()
    with own.aside():
        with own.along("replica").of_training():
            own.count("send", 5)
        own.count("send", 11)
    assert own.snapshot() == {"send": 5} and not own.is_aside


def test_what_is_sent_along_an_axis_is_counted_there_and_in_all() -> None:
    account = Ledger()
    account.count("send", 1)
    account.along("stage").count("send", 2)
    account.along("stage").along("replica").count("all_reduce", Fraction(1, 3))
    with account.along("replica").aside():
        assert account.is_aside
        account.count("send", 5)
        account.along("stage").count("send", 5)
    assert account.bytes == {"send": 3, "all_reduce": Fraction(1, 3)} and account.messages["send"] == 2
    assert account.along("stage").bytes == {"send": 2} and not account.is_aside
    assert account.axes["replica"].bytes == {"all_reduce": Fraction(1, 3)}
