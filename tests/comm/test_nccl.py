"""Workers on GPUs, whose waits for nccl are stood in for: who is named when a peer dies, freezes or is late, and what
is measured.
"""

import os
import signal
import threading
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from nccl_stub import on_gpus

from paceline.comm import HangError, MessageError, PeerLostError
from paceline.comm.groups import Groups
from paceline.comm.torch_world import torch_world
from paceline.comm.works import Copied
from paceline.compat import process_groups
from paceline.engine.training.meters import Meter
from paceline.strategies.torch_ddp import TorchDDP

pytestmark = [pytest.mark.dist, pytest.mark.timeout(60)]
LONG = 1000.0  # seconds: what waits for this timeout fails the test


def reduced(comm, nccl):
    tensor = torch.tensor([float(comm.rank)])
    comm.all_reduce(tensor, "max").wait()
    return tensor


def of_torch(comm, nccl):
    torch_world(comm)
    tensor = torch.tensor([1.0 - comm.rank])
    dist.broadcast(tensor, src=0)
    return tensor


def of_ddp(comm, nccl):
    tensor, loss = torch.tensor([float(comm.rank)]), Mock()
    loss.backward = lambda: comm.all_reduce_future(tensor, blocks=True)
    strategy = object.__new__(TorchDDP)
    strategy.comm = comm
    strategy._backward(loss)
    return tensor


def unseen(comm, nccl):
    """A library waits in the stream alone: the end of the step is where it is met."""
    tensor = torch.tensor([float(comm.rank)])
    with Meter(comm, 0, counts_pauses=False).step(1):
        nccl.allreduce([tensor], None).wait()
    return tensor


CALLS = {"ours": reduced, "torch's": of_torch, "DDP's": of_ddp, "unseen": unseen}


def warmed_up(comm):
    """Returns the worker's nccl, of which the third call is foretold: none is compared before it is made."""
    nccl = on_gpus(comm)
    for _ in range(2):
        reduced(comm, nccl)
    return nccl


def be_late(comm, call):
    nccl = warmed_up(comm)
    if comm.rank == 1:
        comm.key_values.read("polled 3", 0)  # worker 0 waits
    launched = comm.now()
    tensor = CALLS[call](comm, nccl)
    *_, last = comm.timeline.operations
    return {"tensor": tensor, "launched": launched, "blocked": [last.launch, last.start, last.end]}


@pytest.mark.parametrize("call", ["ours", "torch's", "DDP's"])
def test_a_wait_is_measured_by_events_and_its_result_is_there(workers, call):
    first, second = workers(2, be_late, call)
    launch, start, end = first["blocked"]
    assert launch <= start < second["launched"] <= end
    assert first["tensor"] == second["tensor"] == 1.0


def fail(comm, call, how):
    nccl = warmed_up(comm)
    if comm.rank == 1:
        comm.key_values.read("polled 3", 0)
        if how != "late":
            os.kill(os.getpid(), {"dead": signal.SIGKILL, "frozen": signal.SIGSTOP}[how])
        comm.key_values.doing("looking for its keys")
        comm.key_values.read("named", 0)
        return None
    with pytest.raises((HangError, PeerLostError)) as caught:
        CALLS[call](comm, nccl)
    comm.key_values.post("named", "")
    return {"said": str(caught.value), "code": caught.value.exit_code, "aborted": nccl.aborted}


@pytest.mark.parametrize("call", ["ours", "torch's", pytest.param("DDP's", marks=pytest.mark.slow)])
def test_a_dead_peer_is_named_at_once_and_nccl_is_aborted(workers, call):
    told, _ = workers(2, fail, call, "dead", timeout=LONG, patience=30.0, lost=[1])
    assert told["said"].endswith("worker 1 has died") and told["said"].startswith("worker 0 lost a peer in ")
    assert (told["code"], told["aborted"]) == (4, 1)


@pytest.mark.parametrize(
    ("call", "how", "who"),
    [
        ("ours", "late", "alive but elsewhere: worker 1 (last looking for its keys)"),
        pytest.param("ours", "frozen", "gave no sign of life", marks=pytest.mark.slow),
        pytest.param("unseen", "frozen", "gave no sign of life", marks=pytest.mark.slow),
    ],
)
def test_a_peer_that_does_not_come_is_named_at_the_timeout_and_nccl_is_aborted(workers, call, how, who):
    told, _ = workers(2, fail, call, how, timeout=1.0, lost=[] if how == "late" else [1])
    assert told["said"].startswith("worker 0 waited 1 s ") and who in told["said"] and "worker 1 (" in told["said"]
    assert (told["code"], told["aborted"]) == (5, 1)


@pytest.mark.slow
def test_a_death_that_a_library_waits_for_is_named_at_the_end_of_the_step(workers):
    told, _ = workers(2, fail, "unseen", "dead", timeout=1.0, lost=[1])
    assert told == {"said": "worker 0 lost a peer with its GPU busy: worker 1 has died", "code": 4, "aborted": 1}


def pass_messages(comm):
    on_gpus(comm)
    torch_world(comm)
    came = torch.zeros(3)
    if comm.rank == 0:
        dist.send(torch.ones(3), dst=1)
        dist.recv(came, src=1)
    else:
        dist.recv(came, src=0)
        dist.send(came + 1, dst=0)
    return came


def test_messages_of_torchs_pipelines_arrive_though_gloo_calls_none_of_them_complete(workers):
    first, second = workers(2, pass_messages, timeout=10.0)
    assert first.tolist() == [2.0] * 3 and second.tolist() == [1.0] * 3


def call_otherwise(comm):
    nccl = warmed_up(comm)
    with pytest.raises(MessageError) as caught:
        if comm.rank == 0:
            reduced(comm, nccl)
        comm.all_reduce(torch.ones(2), "max").wait()
    return str(caught.value)


@pytest.mark.slow
def test_whoever_calls_something_else_is_named_while_others_wait(workers):
    said = workers(2, call_otherwise, timeout=30.0)
    assert all("worker 1 calls all_reduce max of 2 entries" in words for words in said)


class Moment:
    """An event whose time is given, in milliseconds."""

    def __init__(self, at):
        self.at, self.asked = at, 0

    def record(self): ...

    def query(self):
        self.asked += 1
        return True

    def elapsed_time(self, other):
        return other.at - self.at


def take_steps(comm):
    moments = [Moment(at) for at in (1000.0, 3500.0, 4000.0, 4250.0)]
    waiting = iter(moments)
    object.__setattr__(comm._worker, "event", lambda: next(waiting))
    meter = Meter(comm, 0, counts_pauses=False)
    with meter.step(4):
        pass
    with meter.drain():
        pass
    return {"seconds": meter.seconds, "asked": [moment.asked for moment in moments]}


def test_a_step_takes_as_long_as_between_its_events_and_waits_for_the_device_once(workers):
    [told] = workers(1, take_steps)
    assert told["seconds"] == pytest.approx(2.5 + 0.25)
    assert told["asked"] == [0, 1, 0, 1]


def groups(timeout):
    return Groups(dist.HashStore(), timeout, torch.device("cpu"))


def test_nccl_that_does_not_connect_is_no_wait_without_end(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(process_groups, "connect", lambda backend, device: never.wait())
    with pytest.raises(RuntimeError, match=r"nccl did not connect them in 0\.01 s"):
        groups(0.01)._connect(cast(Any, None))
    never.set()


def test_what_nccl_raises_as_it_connects_is_raised(monkeypatch):
    def connect(backend, device):
        raise RuntimeError("no NVLink")

    monkeypatch.setattr(process_groups, "connect", connect)
    with pytest.raises(RuntimeError, match="no NVLink"):
        groups(30.0)._connect(cast(Any, None))


FULL = dist.DistBackendError(
    "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error, NCCL version 2.27.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)


def test_a_gpu_that_is_full_as_nccl_connects_is_no_lost_peer(monkeypatch):
    monkeypatch.setattr(process_groups, "nccl", lambda *_: None)
    monkeypatch.setattr(process_groups, "connect", Mock(side_effect=[FULL, RuntimeError("no NVLink")]))
    with pytest.raises(dist.DistBackendError):
        groups(30.0).make("all", 0, 1, on_gpus=True)
    with pytest.raises(PeerLostError, match="all: could not connect to the other workers: no NVLink"):
        groups(30.0).make("all", 0, 1, on_gpus=True)


def fill(comm, call):
    nccl = on_gpus(comm)
    nccl.allreduce = nccl.broadcast = Mock(side_effect=FULL)
    with pytest.raises(RuntimeError) as caught:
        CALLS[call](comm, nccl)
    return type(caught.value).__name__


@pytest.mark.parametrize("call", ["ours", pytest.param("torch's", marks=pytest.mark.slow)])
def test_a_gpu_that_is_full_as_nccl_launches_is_no_lost_peer(workers, call):
    assert workers(2, fill, call) == ["DistBackendError"] * 2


def test_an_abort_that_fails_hides_no_error():
    made = groups(30.0)
    failing = Mock()
    failing.abort.side_effect = RuntimeError("a CUDA error")
    made.of_nccl.append(failing)
    made.abort()
    made.abort()
    assert failing.abort.call_count == 1


def test_what_came_by_way_of_the_host_is_copied_once():
    work, tensor = Mock(), torch.zeros(2)
    copied = Copied(work, torch.ones(2), tensor)
    copied.wait()
    tensor += 1
    copied.wait()
    assert tensor.tolist() == [2.0, 2.0]


def leave(comm):
    nccl = on_gpus(comm)
    comm.close()
    return nccl.aborted


def test_whoever_leaves_ends_its_communicators(workers):
    assert workers(1, leave) == [1]


class Made:
    """Stands in for torch's group of nccl, which builds for CPUs lack."""

    class Options:
        pass

    def __init__(self, store, rank, size, options):
        self.environment = dict(os.environ)


def test_torchs_watchdog_is_off_where_the_user_did_not_set_it(monkeypatch):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Made, raising=False)
    for variable in process_groups._NO_WATCHDOG:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    made = cast(Any, process_groups.nccl(dist.HashStore(), 0, 1, cast(Any, None))).environment
    assert made["TORCH_NCCL_BLOCKING_WAIT"] == "1" and made["TORCH_NCCL_ENABLE_MONITORING"] == "1"
