"""The rendezvous store: what torch asks of a store, for those who know the key, and nothing for anybody else."""

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.errors import RendezvousError
from paceline.comm.handshake import call
from paceline.comm.rendezvous import serve_store
from paceline.comm.store import FRAME, StoreClient, StoreServer, decode, encode

SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with closing(serve_store(0)) as server:
        yield server


@pytest.fixture
def client(server: StoreServer) -> Iterator[StoreClient]:
    with closing(StoreClient(server.endpoint, 0, SECONDS)) as client:
        yield client


@given(st.lists(st.binary(max_size=50)), st.binary(max_size=50))
def test_a_frame_is_what_was_put_in_and_a_broken_one_is_refused(parts: list[bytes], rest: bytes) -> None:
    body = encode(parts)[4:]
    assert decode(body) == parts
    for broken in (body[:-1], body + rest):
        try:
            assert encode(decode(broken))[4:] == broken
        except ValueError:
            assert broken != body


def test_a_forked_child_does_not_keep_connections_open(server: StoreServer) -> None:
    client = StoreClient(server.endpoint, 0, SECONDS)
    waits, ends = os.pipe()
    if (child := os.fork()) == 0:
        os.close(ends)
        os.read(waits, 1)
        client.close()  # its copies
        os._exit(0)
    try:
        client.close()
        server.wait_for_clients(SECONDS)
        assert not server._clients
        other = StoreClient(server.endpoint, 0, SECONDS)
    finally:
        os.close(ends)
        os.waitpid(child, 0)
    other.set("a", "1")
    other.close()


def test_it_answers_as_torchs_own_store_does(client: StoreClient) -> None:
    torchs = dist.HashStore()

    def ask(store: Any) -> list[object]:  # dist.Store, whose stub lacks methods
        answers: list[object] = [store.check(["a"]), store.num_keys()]
        store.set("a", "1")
        store.set("b", b"\0\xff")
        store.multi_set(["c", "d"], [b"3", b""])
        answers += [store.get("a"), store.get("b"), store.check(["a", "d"]), store.check(["a", "z"])]
        answers += [store.multi_get(["c", "d"]), store.num_keys()]
        answers += [store.add("n", 2), store.add("n", -5), store.get("n")]
        store.append("a", "23")
        store.append("new", "x")
        answers += [store.get("a"), store.get("new"), store.has_extended_api()]
        answers += [store.compare_set("a", "no", "yes"), store.compare_set("a", "123", "yes"), store.get("a")]
        answers += [store.compare_set("e", "", "made"), store.get("e")]
        store.wait(["a", "b"], timedelta(seconds=1))
        answers += [store.delete_key("a"), store.delete_key("a"), store.check(["a"])]
        return answers

    assert ask(client) == ask(torchs)


def test_torch_reaches_it_through_a_prefix(client: StoreClient) -> None:
    """As its process groups do: from C++, by the names that it calls the methods."""
    inner: Any = dist.PrefixStore("in", dist.PrefixStore("out", client))
    inner.set("a", "1")
    assert client.read(["out/in/a"]) == [b"1"]
    assert (inner.get("a"), inner.check(["a"]), inner.add("n", 3), inner.num_keys()) == (b"1", True, 3, 2)
    inner.append("a", "2")
    inner.multi_set(["b", "c"], [b"x", b"y"])
    assert inner.multi_get(["a", "b", "c"]) == [b"12", b"x", b"y"]
    assert inner.compare_set("b", "x", "z") == b"z" and inner.delete_key("b")
    inner.wait(["a"], timedelta(seconds=1))
    with pytest.raises(dist.DistStoreError, match="timed out"):
        inner.wait(["never"], timedelta(seconds=0.01))


def test_a_wait_ends_with_the_last_of_its_keys_and_not_before(server: StoreServer, client: StoreClient) -> None:
    over: list[bool] = []
    waiting = threading.Thread(target=lambda: over.append(client.get("a") + client.get("b") == b"12"))
    waiting.start()
    with closing(StoreClient(server.endpoint, 1, SECONDS)) as other:
        other.set("a", "1")
        with pytest.raises(dist.DistStoreError):
            other.wait(["a", "b"], timedelta(seconds=0.05))
        assert not over
        other.set("b", "2")
        waiting.join(SECONDS)
    assert over == [True]
    assert not server._waiting and not server._timed


def test_threads_that_ask_at_once_have_their_own_answers(client: StoreClient) -> None:
    wrong: list[object] = []

    def ask(number: int) -> None:
        for i in range(50):
            client.set(f"{number}", f"{number}/{i}")
            if client.get(f"{number}") != f"{number}/{i}".encode():
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_process_groups_meet_in_it(server: StoreServer) -> None:
    sums: list[float] = []

    def work(rank: int) -> None:
        with closing(StoreClient(server.endpoint, rank, SECONDS)) as client:
            options = cast(Any, dist.ProcessGroupGloo)._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            group: Any = dist.ProcessGroupGloo(dist.PrefixStore("g", client), rank, 2, options)
            tensor = torch.tensor([1.0 + rank])
            group.allreduce([tensor]).wait()
            sums.append(tensor.item())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [3.0, 3.0]


# -- strangers


def test_torchs_own_client_gets_nothing_and_changes_nothing(server: StoreServer, client: StoreClient) -> None:
    with suppress(RuntimeError):
        there = server.endpoint
        stranger = dist.TCPStore(there.host, there.port, is_master=False, timeout=timedelta(seconds=1))
        stranger.set("stop", "1")
        stranger.set("paceline/stop", "1")
    assert client.num_keys() == 0


def test_a_client_with_another_key_is_refused_in_a_sentence(server: StoreServer) -> None:
    with pytest.raises(RendezvousError, match=r"worker 1 cannot join the run: store at .* does not take") as caught:
        StoreClient(replace(server.endpoint, key=bytes(32)), 1, SECONDS)
    assert caught.value.exit_code == 3


def test_a_store_that_does_not_know_the_key_is_not_trusted(server: StoreServer) -> None:
    with closing(serve_store(0)) as other, pytest.raises(RendezvousError):
        StoreClient(replace(other.endpoint, key=server.endpoint.key), 1, SECONDS)


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack("!I", 2**32 - 1),
        struct.pack("!I", FRAME + 1),
        encode([b"nothing we know"]),
        encode([]),
        encode([b"set", b"half a pair"]),
        encode([b"add", b"n", b"many"]),
        encode([b"wait", b"soon", b"a"]),
        struct.pack("!II", 4, 5),
    ],
    ids=["2^32", "frame", "request", "empty", "pair", "number", "milliseconds", "part"],
)
def test_nonsense_from_one_that_knows_the_key_ends_its_connection_only(
    server: StoreServer, client: StoreClient, nonsense: bytes
) -> None:
    with call(server.endpoint, 3, SECONDS) as one:
        one.sendall(nonsense)
        one.settimeout(SECONDS)
        with suppress(ConnectionResetError):
            assert one.recv(1) == b""
    client.set("a", "1")
    assert client.get("a") == b"1"


def test_what_is_too_long_is_refused_before_it_leaves(client: StoreClient) -> None:
    with pytest.raises(ValueError, match="16777216"):
        client.set("a", bytes(FRAME))
    assert not client.check(["a"])


def test_a_large_value_to_one_that_does_not_read_holds_nobody_up(server: StoreServer, client: StoreClient) -> None:
    client.set("a", bytes(FRAME - 100))
    with call(server.endpoint, 3, SECONDS) as one:
        for _ in range(8):
            one.sendall(encode([b"read", b"a"]))
        client.set("b", "1")
        assert client.get("b") == b"1"


# -- the end


def test_a_store_that_has_gone_is_a_network_error() -> None:
    server = serve_store(0)
    with closing(StoreClient(server.endpoint, 0, SECONDS)) as client:
        server.close()
        for _ in range(2):  # on a connection that was there, and on a new one
            with pytest.raises(dist.DistNetworkError, match="the rendezvous store is gone"):
                client.set("a", "1")


def test_a_store_that_does_not_answer_is_given_up() -> None:
    from paceline.comm import store

    with pytest.MonkeyPatch.context() as patch, closing(serve_store(0)) as server:
        patch.setattr(store, "SLICE", 0.02)
        with closing(StoreClient(server.endpoint, 0, 0.1)) as client:
            patch.setattr(StoreServer, "_carry_out", lambda *_: time.sleep(0))
            with pytest.raises(dist.DistNetworkError, match="no answer in"):
                client.set("a", "1")


def test_closing_waits_until_clients_have_hung_up(server: StoreServer) -> None:
    client = StoreClient(server.endpoint, 0, SECONDS)
    client.set("a", "1")
    gone = threading.Timer(0.1, client.close)
    gone.start()
    server.wait_for_clients(SECONDS)
    assert not server._clients
    gone.join(SECONDS)


def test_closing_ends_threads_and_descriptors() -> None:
    before, open_before = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    with closing(serve_store(0)) as server, closing(StoreClient(server.endpoint, 0, SECONDS)) as client:
        client.set("a", "1")
    assert threading.active_count() == before
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_every_run_has_a_key_of_its_own() -> None:
    with closing(serve_store(0)) as one, closing(serve_store(0)) as other:
        assert one.endpoint.key != other.endpoint.key and len(one.endpoint.key) == 32
