"""When workers are slow, frozen, missing or dead: who waits, who is named, and how soon."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from paceline.comm import HangError, PeerLostError, RendezvousError
from paceline.comm.connecting import connect
from paceline.comm.handshake import Endpoint
from paceline.comm.rendezvous import serve_store

pytestmark = [pytest.mark.dist, pytest.mark.timeout(60)]
TIMEOUT = 1.0
PROMPT = 10.0  # seconds on a busy machine for what takes well under one


def attempt(call) -> dict:
    """What `call` raised, and after how many seconds."""
    start = time.monotonic()
    try:
        call()
    except (HangError, PeerLostError, RendezvousError) as error:
        kind, message, code = type(error).__name__, str(error), error.exit_code
    else:
        kind = message = ""
        code = 0
    return {"kind": kind, "message": message, "exit_code": code, "seconds": time.monotonic() - start}


def wait_in(comm, operation):
    tensor = torch.ones(4)
    calls = {
        "all_reduce": lambda: comm.all_reduce(tensor).wait(),
        "broadcast": lambda: comm.broadcast(tensor, 1).wait(),
        "all_gather": lambda: comm.all_gather(tensor),
        "all_to_all": lambda: comm.all_to_all(torch.ones(comm.size)),
        "recv": lambda: comm.recv(tensor, 1),
        "recv_any": lambda: comm.recv_any(tensor),
    }
    return attempt(calls[operation])


def wait_for_absent(comm, operation):
    """Worker 1 is alive and never comes to the operation; it leaves once worker 0 has had its timeout."""
    if comm.rank == 1:
        comm.key_values.read("given up", 0)
        return None
    outcome = wait_in(comm, operation)
    comm.key_values.post("given up", "")
    return outcome


ELSEWHERE = ["all_reduce", "all_gather", "recv", "recv_any"]
LONG_TAIL = [pytest.param(name, marks=pytest.mark.slow) for name in ("broadcast", "all_to_all")]


@pytest.mark.parametrize("operation", [*ELSEWHERE, *LONG_TAIL])
def test_a_timeout_names_the_worker_that_is_elsewhere(workers, operation):
    outcome = workers(2, wait_for_absent, operation, timeout=TIMEOUT)[0]
    assert outcome["kind"] == "HangError", outcome
    assert outcome["exit_code"] == 5
    assert f"worker 0 waited {TIMEOUT:g} s in {operation}" in outcome["message"]
    assert "alive but elsewhere: worker 1" in outcome["message"]
    assert TIMEOUT * 0.9 <= outcome["seconds"] < TIMEOUT + PROMPT


def wait_for_frozen(comm, operation, frozen):
    if comm.rank == frozen:
        os.kill(os.getpid(), signal.SIGSTOP)
    return attempt(comm.barrier) if operation == "barrier" else wait_in(comm, operation)


@pytest.mark.parametrize("operation", ["barrier", "all_reduce", "recv"])
def test_a_frozen_worker_is_named_by_all_that_wait_for_it(workers, operation):
    outcomes = workers(3, wait_for_frozen, operation, 1, timeout=TIMEOUT, lost=[1])
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome["seconds"] < TIMEOUT + PROMPT
        if outcome["kind"] == "PeerLostError":  # the first to give up leaves, which its ring neighbour may see first
            continue
        assert outcome["kind"] == "HangError", outcome
        assert "worker 1 (last" in outcome["message"]
        assert "worker 0 (" not in outcome["message"] and "worker 2 (" not in outcome["message"]
    assert "HangError" in (outcomes[0]["kind"], outcomes[2]["kind"])


def wait_while_suspended(comm, operation):
    """Worker 0 waits for worker 1, when something stops both for longer than the timeout, and continues them."""
    pids = [comm.key_values.read("pid", 0), str(os.getpid())] if comm.rank else []
    if comm.rank == 0:
        comm.key_values.post("pid", str(os.getpid()))
    mutex = comm.mutex()
    if comm.rank == 0:
        comm.key_values.read("held", 1)
        with mutex if operation == "mutex" else contextlib.nullcontext():
            return "" if operation == "mutex" else wait_in(comm, operation)["message"]
    with mutex:
        comm.key_values.post("held", "")
        time.sleep(TIMEOUT / 4)  # worker 0 waits by now
        stop, last = f"kill -STOP {' '.join(pids)}; sleep {2.5 * TIMEOUT}", f"sleep 0.2; kill -CONT {pids[1]}"
        script = f"{stop}; kill -CONT {pids[0]}; {last}"
        subprocess.run(["sh", "-c", script], check=True)
    if operation == "recv":
        comm.send(torch.ones(4), 0)
    elif operation == "all_reduce":
        comm.all_reduce(torch.ones(4)).wait()
    return ""


@pytest.mark.parametrize("operation", ["recv", "all_reduce", "mutex"])
def test_a_wait_does_not_count_the_time_in_which_all_workers_were_suspended(workers, operation):
    assert workers(2, wait_while_suspended, operation, timeout=2 * TIMEOUT) == ["", ""]


def freeze_in_split(comm):
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    return attempt(lambda: comm.split(0))


@pytest.mark.slow
def test_a_split_without_a_frozen_worker_times_out_and_names_it(workers):
    for outcome in workers(3, freeze_in_split, timeout=TIMEOUT, lost=[2])[:2]:
        assert outcome["kind"] == "HangError"
        assert "worker 2 (last" in outcome["message"]


def come_late_to_the_barrier(comm, late):
    if comm.rank == 1:
        time.sleep(late)
    comm.barrier()
    start = time.monotonic()
    comm.all_reduce(torch.ones(1)).wait()  # and the fabric is as good as before
    return time.monotonic() - start


@pytest.mark.slow
def test_a_barrier_waits_longer_than_the_timeout_for_a_slow_but_living_worker(workers):
    timeout, late = 1.0, 3.0
    start = time.monotonic()
    workers(2, come_late_to_the_barrier, late, timeout=timeout)
    assert time.monotonic() - start >= late


def stay_in_a_step(comm, late):
    if comm.rank == 1:
        comm.key_values.in_step(7)
        comm.key_values.doing("computing")
        time.sleep(late)
        return None
    with pytest.raises(
        HangError, match=r"waited 1 s for the barrier of world: in one step: worker 1 \(last computing"
    ) as e:
        comm.barrier()
    return {"missing": list(e.value.missing), "frozen": e.value.frozen, "exit_code": e.value.exit_code}


@pytest.mark.slow  # it waits for seconds
def test_a_barrier_does_not_wait_for_a_living_worker_that_stays_in_one_step(workers):
    told = workers(2, stay_in_a_step, 5.0, timeout=1.0)[0]
    assert told == {"missing": [1], "frozen": False, "exit_code": 5}


def slow_reader(comm, late):
    if comm.rank == 1:
        time.sleep(late)
        comm.key_values.post("word", "hello")
        return ""
    return comm.key_values.read("word", 1)


@pytest.mark.slow  # it waits for seconds
def test_reading_the_board_waits_for_a_slow_but_living_writer(workers):
    assert workers(2, slow_reader, 3.0, timeout=1.0)[0] == "hello"


def lose_a_peer(comm, operation):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return wait_in(comm, operation)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all", "recv"])
def test_a_killed_peer_is_noticed_at_once(workers, operation):
    outcome = workers(2, lose_a_peer, operation, timeout=30.0, lost=[1])[0]
    assert outcome["kind"] == "PeerLostError", outcome
    assert outcome["exit_code"] == 4
    assert f"worker 0 lost a peer in {operation}" in outcome["message"]
    assert outcome["seconds"] < PROMPT


def explain_what_torch_says(comm):
    pair = comm.split(comm.rank // 2)
    said = [str(pair.waits.explained(RuntimeError("connection reset"), "in all_reduce"))]
    comm.key_values.lost.add(3)
    return [*said, str(pair.waits.explained(RuntimeError("connection reset"), "in all_reduce"))]


@pytest.mark.slow
def test_a_loss_that_torch_tells_names_the_dead_once_they_are_known(workers):
    *others, two, _ = workers(4, explain_what_torch_says)
    assert two == [f"worker 2 lost a peer in all_reduce: {why}" for why in ("connection reset", "worker 3 has died")]
    assert all(said[1].endswith("connection reset") for said in others)  # it is in another group


def meet_too_few(comm):
    with closing(serve_store(0)) as store:
        return attempt(lambda: connect(store.endpoint, 0, 3, TIMEOUT, torch.device("cpu")))


def test_workers_that_never_start_are_named(workers):
    [outcome] = workers(1, meet_too_few)
    assert outcome["kind"] == "HangError"
    assert "all workers to start" in outcome["message"]
    assert "worker 1 (never seen), worker 2 (never seen)" in outcome["message"]


def test_a_worker_that_could_not_connect_lives_on_when_the_store_goes() -> None:
    with closing(serve_store(0)) as store:
        outcome = attempt(lambda: connect(store.endpoint, 0, 2, 0.3, torch.device("cpu")))
        assert outcome["kind"] == "HangError"
        assert not [each for each in threading.enumerate() if each.name == "heartbeat"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_no_store_to_meet_in_is_a_rendezvous_error():
    nobody = Endpoint("store", "127.0.0.1", free_port(), bytes(32))
    outcome = attempt(lambda: connect(nobody, 1, 2, 1.0, torch.device("cpu")))
    assert outcome["kind"] == "RendezvousError"
    assert outcome["exit_code"] == 3
    assert outcome["seconds"] < PROMPT


def test_a_taken_port_is_a_rendezvous_error_that_says_which_knob():
    with contextlib.closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(RendezvousError, match=rf"hardware\.port={port}: .*hardware\.port=0") as caught:
            serve_store(port)
    assert caught.value.exit_code == 3


def listening_addresses(port: int) -> list[str]:
    """The local addresses, in the kernel's hexadecimal, on which somebody listens at `port`."""
    lines = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()]
    local = [fields[1].split(":") for fields in lines if fields[3] == "0A"]  # LISTEN
    return [address for address, number in local if int(number, 16) == port]


def test_the_store_listens_on_loopback_only():
    with closing(serve_store(0)) as store:
        assert listening_addresses(store.endpoint.port) == ["0100007F"]  # 127.0.0.1


def test_a_port_may_be_used_again_at_once():
    with closing(serve_store(0)) as store, closing(socket.create_connection(("127.0.0.1", store.endpoint.port))):
        port = store.endpoint.port
    with closing(serve_store(port)) as again:
        assert again.endpoint.port == port


def listen_as_worker(comm):
    """What this process listens on, gloo's own sockets included."""
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in descriptors()}
    lines = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()]
    return [fields[1].split(":")[0] for fields in lines if fields[3] == "0A" and fields[9] in inodes]


def descriptors() -> list[str]:
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            links.append(str(descriptor.readlink()))
    return links


def test_workers_of_one_host_listen_on_loopback_only(workers):
    for addresses in workers(2, listen_as_worker):
        assert set(addresses) <= {"0100007F"}
        assert addresses, "gloo listens somewhere"


def meet_with_another_interface_set(comm):
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
    with closing(serve_store(0)) as store, ThreadPoolExecutor(2) as pool:
        join = [pool.submit(connect, store.endpoint, rank, 2, 10.0, torch.device("cpu")) for rank in range(2)]
        comms = [future.result() for future in join]
        for comm in comms:
            comm.close()
    return [comm.size for comm in comms]


def test_workers_of_one_host_meet_on_loopback_whatever_the_environment_says(workers):
    assert workers(1, meet_with_another_interface_set) == [[2, 2]]


def stop_everyone(comm):
    if comm.rank == 1:
        comm.key_values.request_stop()
    deadline = time.monotonic() + PROMPT
    while not comm.key_values.stop_requested() and time.monotonic() < deadline:
        time.sleep(0.05)
    return comm.key_values.stop_requested()


def test_one_workers_request_to_stop_reaches_all(workers):
    assert workers(3, stop_everyone) == [True, True, True]
