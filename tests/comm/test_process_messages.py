"""Point to point on both fabrics: order, contents, receiving from whoever is first; timeouts of processes."""

import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from paceline.comm import HangError, MessageError, connecting
from paceline.comm.errors import RendezvousError

pytestmark = pytest.mark.dist


def number(value: int) -> torch.Tensor:
    return torch.tensor([value])


def value_of(tensor: torch.Tensor) -> int:
    """The one value that all entries have."""
    low, high = tensor.aminmax()
    assert low == high
    return int(low)


def receive_in_order(comm, count):
    if comm.rank == 0:
        for i in range(count):
            comm.send(number(i), 1)
        return []
    received = []
    for _ in range(count):
        tensor = number(-1)
        comm.recv(tensor, 0)
        received.append(int(tensor))
    return received


def test_messages_of_one_sender_arrive_in_order(fabric):
    assert fabric(2, receive_in_order, 200)[1] == list(range(200))


def receive_posted_ahead(comm):
    tensors = [torch.full((i + 1,), i if comm.rank == 0 else -1) for i in range(20)]
    works = [comm.isend(tensor, 1) if comm.rank == 0 else comm.irecv(tensor, 0) for tensor in tensors]
    for work in works:
        work.wait()
    return tensors


def test_receives_posted_ahead_match_sends_of_different_sizes_in_order(fabric):
    for i, tensor in enumerate(fabric(2, receive_posted_ahead)[1]):
        assert torch.equal(tensor, torch.full((i + 1,), i))


def take_whoever_is_first(comm):
    """Worker 2 sends only once worker 0 has the message of worker 1, and the other way round."""
    if comm.rank == 0:
        order = []
        for following in (1, 2, 1):
            comm.key_values.post(f"go/{len(order)}/{following}", "")
            tensor = number(-1)
            order.append([comm.recv_any(tensor), int(tensor)])
        return order
    for turn, sender in enumerate((1, 2, 1)):
        if comm.rank == sender:
            comm.key_values.read(f"go/{turn}/{sender}", 0)
            comm.send(number(10 * comm.rank + turn), 0)
    return []


def test_recv_any_takes_whoever_is_first_and_says_who(fabric):
    assert fabric(3, take_whoever_is_first)[0] == [[1, 10], [2, 21], [1, 12]]


def serve_requests(comm, rounds):
    """Two-part messages as a parameter server gets them: a request from anyone, then its payload from that worker."""
    if comm.rank == 0:
        log = []
        for _ in range(rounds * (comm.size - 1)):
            request = number(-1)
            sender = comm.recv_any(request)
            payload = torch.empty(1000)
            comm.recv(payload, sender)
            log.append([sender, int(request), int(payload[0]), int(payload[-1])])
        return log
    for i in range(rounds):
        comm.send(number(i), 0)
        comm.send(torch.full((1000,), float(100 * comm.rank + i)), 0)
    return []


def test_recv_any_keeps_each_senders_messages_in_order_and_together(fabric):
    log = fabric(4, serve_requests, 25)[0]
    for sender in (1, 2, 3):
        mine = [entry[1:] for entry in log if entry[0] == sender]
        assert mine == [[i, 100 * sender + i, 100 * sender + i] for i in range(25)]


def exchange_both_ways(comm):
    other = 1 - comm.rank
    mine = torch.full((300_000,), float(comm.rank))
    received = torch.empty_like(mine)
    work = comm.irecv(received, other)
    comm.send(mine, other)  # both send first: larger than any socket buffer
    work.wait()
    return received


def test_two_workers_that_send_to_each_other_at_once_do_not_lock_up(fabric):
    results = fabric(2, exchange_both_ways)
    assert [value_of(result) for result in results] == [1, 0]


def exchange_large(comm):
    """Everyone sends to everyone, all at once, more than any buffer holds."""
    mine = torch.full((4 << 20,), comm.rank, dtype=torch.int32)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sending = [comm.isend(mine, other) for other in others]
    received = {other: torch.empty_like(mine) for other in others}
    for other in others:
        comm.recv(received[other], other)
    for work in sending:
        work.wait()
        work.wait()  # a second wait does nothing
    return [value_of(received[other]) for other in others]


def test_all_that_send_to_all_at_once_do_not_lock_up(fabric):
    assert fabric(3, exchange_large) == [[1, 2], [0, 2], [0, 1]]


def wait_in_a_circle(comm):
    """0 waits for 2, which waits for 1, whose send to 0 only a receive that nobody waits for yet can take."""
    large = torch.full((4 << 20,), comm.rank)
    if comm.rank == 0:
        work = comm.irecv(large, 1)
        comm.recv(number(-1), 2)
        work.wait()
    elif comm.rank == 1:
        comm.send(large, 0)
        comm.send(number(1), 2)
    else:
        comm.recv(number(-1), 1)
        comm.send(number(2), 0)
    return value_of(large)


@pytest.mark.slow
def test_receives_go_on_while_their_worker_waits_for_something_else(fabric):
    assert fabric(3, wait_in_a_circle) == [1, 1, 2]


def send_while_computing(comm):
    large = torch.arange(2 << 20)  # 16 MiB, more than the buffers of a socket hold
    if comm.rank == 0:
        work = comm.isend(large, 1)
        comm.key_values.read("received", 1)  # before the sender has waited
        work.wait()
        return True
    received = torch.empty_like(large)
    comm.recv(received, 0)
    comm.key_values.post("received", "")
    return torch.equal(received, large)


def test_a_message_leaves_while_its_sender_computes(fabric):
    assert fabric(2, send_while_computing) == [True, True]


CONTENTS = [
    torch.tensor(3.5),
    torch.empty(0),
    torch.tensor([], dtype=torch.bool).view(0, 3),
    torch.arange(6, dtype=torch.int16).view(1, 2, 3),
    torch.tensor([True, False]),
    torch.randn(5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
    torch.tensor([1 + 2j]),
    torch.arange(3 << 20, dtype=torch.float64).view(3, -1),
]


def pass_contents(comm):
    if comm.rank == 0:
        for content in CONTENTS:
            comm.send(content, 1)
        comm.send(torch.nn.Parameter(torch.ones(2)), 1)
        return []
    received = [torch.zeros_like(content) for content in CONTENTS]
    for tensor in received:
        comm.recv(tensor, 0)
    parameter = torch.nn.Parameter(torch.zeros(2))
    comm.recv(parameter, 0)
    return [*received, parameter.detach()]


def test_tensors_of_all_shapes_and_dtypes_arrive_bit_for_bit(fabric):
    received = fabric(2, pass_contents)[1]
    for tensor, content in zip(received, [*CONTENTS, torch.ones(2)], strict=True):
        assert tensor.dtype == content.dtype and tensor.shape == content.shape and torch.equal(tensor, content)


def talk_in_two_groups(comm):
    first, second = comm.split(0), comm.split(0)
    if comm.rank == 0:
        for group, value in ((comm, 1), (first, 2), (second, 3), (comm, 4)):
            group.send(number(value), 1)
        return []
    received = []
    for group in (second, first, comm, comm):
        tensor = number(-1)
        group.recv(tensor, 0)
        received.append(int(tensor))
    return received


@pytest.mark.slow
def test_groups_of_the_same_workers_do_not_mix_messages(fabric):
    assert fabric(2, talk_in_two_groups)[1] == [3, 2, 1, 4]


def talk_around_all_gathers(comm):
    """Messages are under way before the all-gathers and are received after them; two all-gathers overlap."""
    other = 1 - comm.rank
    sent = comm.isend(number(10 + comm.rank), other)
    gathered = [torch.full((2, 3), -1.0) for _ in range(2)]
    for i, tensor in enumerate(gathered):
        tensor[comm.rank] = 2 * i + comm.rank
    works = [comm.iall_gather(tensor) for tensor in gathered]
    for work in reversed(works):
        work.wait()
    received = number(-1)
    comm.recv(received, other)
    sent.wait()
    return [int(received), *(tensor[:, 0].tolist() for tensor in gathered)]


def test_all_gathers_and_messages_of_the_same_workers_do_not_mix(fabric):
    assert fabric(2, talk_around_all_gathers) == [[11, [0, 1], [2, 3]], [10, [0, 1], [2, 3]]]


def send_too_little(comm):
    if comm.rank == 0:
        comm.send(torch.zeros(3), 1)
        comm.send(torch.ones(4), 1)
        return ""
    tensor = torch.zeros(4)
    with pytest.raises(MessageError) as caught:
        comm.recv(tensor, 0)
    comm.recv(tensor, 0)
    assert torch.equal(tensor, torch.ones(4))
    return str(caught.value)


def test_a_tensor_of_another_size_is_an_error_and_the_next_message_is_sound(fabric):
    words = fabric(2, send_too_little)[1]
    said = "worker 0 sent 12 bytes of float32 where 16 bytes of float32 are due"
    assert words == f"worker 1 in recv from worker 0: {said}"


def send_another_dtype(comm):
    if comm.rank == 0:
        for dtype in (torch.int32, torch.bfloat16, torch.float32):
            comm.send(torch.ones(8 // dtype.itemsize, dtype=dtype), 1)
        return []
    refused = []
    for call in (lambda: comm.recv(torch.zeros(2), 0), lambda: comm.recv_message(0, 100)):
        with pytest.raises(MessageError) as caught:
            call()
        refused.append(str(caught.value))
    tensor = torch.zeros(2)
    comm.recv(tensor, 0)
    assert torch.equal(tensor, torch.ones(2))
    return refused


def test_as_many_bytes_of_another_dtype_are_an_error_and_the_next_message_is_sound(fabric):
    said = "worker 1 in recv from worker 0: worker 0 sent 8 bytes of"
    assert fabric(2, send_another_dtype)[1] == [
        f"{said} int32 where 8 bytes of float32 are due",
        f"{said} bfloat16 where 8 bytes of uint8 are due",
    ]


def refuse(comm):
    holes, other = torch.zeros(3, 4)[:, ::2], 1 - comm.rank
    refused = []
    for call in (comm.send, comm.recv, comm.isend, comm.irecv, lambda tensor, _: comm.recv_any(tensor)):
        with pytest.raises(AssertionError) as caught:
            call(holes, other)
        refused.append(str(caught.value))
    for call in (comm.send, comm.recv):
        with pytest.raises(AssertionError, match="talks to itself"):
            call(torch.zeros(1), comm.rank)
    return {"refused": refused, "ledger": comm.ledger.snapshot()}


def test_messages_are_contiguous_and_for_somebody_else(fabric):
    for result in fabric(2, refuse):
        assert result == {"refused": ["a message is a contiguous tensor"] * 5, "ledger": {}}


def retry(comm):
    """Worker 1 sends only after worker 0 has had a timeout in each call."""
    if comm.rank == 1:
        for turn in range(3):
            comm.key_values.read(f"timeout/{turn}", 0)
            comm.send(torch.full((1 << 20,), turn), 0)
        comm.key_values.read("sent", 0)
        tensor = torch.zeros(4 << 20)
        comm.recv(tensor, 0)
        return float(tensor.unique())
    tensor = torch.full((1 << 20,), -1)
    work = comm.irecv(tensor, 1)
    calls = [work.wait, lambda: comm.recv(tensor, 1), lambda: comm.recv_any(tensor)]
    received = []
    for turn, call in enumerate(calls):
        with pytest.raises(HangError):
            call()
        comm.key_values.post(f"timeout/{turn}", "")
        call()
        received.append(int(tensor.unique()))
    work = comm.isend(torch.full((4 << 20,), 5.0), 1)
    with pytest.raises(HangError):
        work.wait()
    comm.key_values.post("sent", "")
    for _ in range(2):
        work.wait()
    noted = [[operation.channel, operation.number] for operation in comm.timeline.operations]
    return {"received": received, "noted": noted}


@pytest.mark.slow
def test_every_call_can_be_made_again_after_a_timeout(workers):
    results = workers(2, retry, timeout=0.5)
    assert results == [
        {"received": [0, 1, 2], "noted": [*(["world:1>0", i] for i in (1, 2, 3)), ["world:0>1", 1]]},
        5.0,
    ]


def talk_in_pairs(comm):
    """0 with 1; 2 and 3 stay silent."""
    if comm.rank < 2:
        other = 1 - comm.rank
        work = comm.isend(number(0), other)
        comm.recv(number(0), other)
        work.wait()
    return len(comm._worker.sockets._connections)


def test_connections_are_made_between_those_who_talk_only(workers):
    made = workers(4, talk_in_pairs)
    assert all(1 <= count <= 2 for count in made[:2]) and made[2:] == [0, 0]


@pytest.mark.parametrize(
    ("addresses", "rank", "expected"),
    [
        (["127.0.0.1", "127.0.0.1"], 1, "127.0.0.1"),
        (["10.0.0.1", "10.0.0.2"], 1, "10.0.0.2"),
        (["127.0.1.1", "10.0.0.2", "10.0.0.3"], 0, "towards 10.0.0.2"),
        (["127.0.1.1", "10.0.0.2", "10.0.0.3"], 2, "10.0.0.3"),
        (["fd00::1", "::1"], 1, "towards fd00::1"),
        (["10.0.0.1", "fd00::2", "fd00::3"], 2, "towards 10.0.0.1"),
        (["127.0.1.1", "fd00::2", "10.0.0.3"], 0, "towards fd00::2"),
    ],
)
def test_on_several_hosts_nobody_listens_on_loopback(monkeypatch, addresses, rank, expected):
    monkeypatch.setattr(connecting, "_own_address", lambda other: f"towards {other}")
    assert connecting._address_for_all(addresses, rank) == expected


def test_a_host_without_the_network_of_the_others_is_named(monkeypatch):
    def unreachable(other):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(connecting, "_own_address", unreachable)
    said = (
        r"worker 1 at fd00::2 reaches nobody at 10\.0\.0\.1 \(Network is unreachable\)\. Give MASTER_ADDR as an address"
    )
    with pytest.raises(RendezvousError, match=said):
        connecting._address_for_all(["10.0.0.1", "fd00::2"], 1)


def now_everywhere(comm):
    comm.barrier()
    before = comm.now()
    comm.barrier()
    between = comm.now()
    comm.barrier()
    return [before, between, comm.now()]


def test_workers_share_one_clock(fabric):
    moments = fabric(3, now_everywhere)
    for earlier in moments:
        for later in moments:
            assert earlier[0] <= later[1] <= earlier[2]


def let_time_pass(comm):
    start = comm.now()
    comm.elapse(0.2)
    return comm.now() - start


def test_elapse_lets_that_much_time_pass(fabric):
    [seconds] = fabric(1, let_time_pass)
    assert 0.2 <= seconds < 5


def launch_amid_hooks(comm):
    """Returns whether work that is under way lets go of autograd's hooks."""

    class Kept:
        def __call__(self, tensor):
            return tensor

    for _ in range(2):  # from here on this call is foretold, and made without the other worker
        comm.all_reduce(torch.ones(3), "max").wait()
    if comm.rank == 1:
        comm.key_values.read("looked", 0)
        return comm.all_reduce(torch.ones(3), "max").wait()
    hook = Kept()
    with saved_tensors_hooks(hook, hook):
        work = comm.all_reduce(torch.ones(3), "max")
    held = weakref.ref(hook)
    del hook
    gone = held() is None
    comm.key_values.post("looked", "")
    work.wait()
    return gone


def test_work_under_way_keeps_no_hooks_of_autograd_which_would_abort_an_interpreter_at_its_end(workers):
    assert workers(2, launch_amid_hooks)[0] is True
