"""The token of workers that torchrun started: where it comes from, who can read it, what is refused."""

import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from paceline.comm.connecting import check_place
from paceline.comm.errors import HangError, RendezvousError, TokenError
from paceline.comm.handshake import Endpoint
from paceline.comm.rendezvous import JOB, TOKEN, Environment, _job, job_of_torchrun, meet
from paceline.comm.store import StoreClient

SECONDS = 20.0
SECRET = "0123456789abcdef" * 4
ALONE = Environment(0, 2, 1, "127.0.0.1", 0, store_is_served=False, run="one")
SEVERAL = replace(ALONE, nodes=2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def key(told: Environment) -> bytes:
    server, store = meet(told, SECONDS)
    assert server is not None
    server.close()
    return store.key


def given_token(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv(TOKEN, token)


def test_several_nodes_without_a_token_are_refused_with_the_command_that_makes_one() -> None:
    with pytest.raises(TokenError, match=r"PACELINE_TOKEN: is not set, and 2 nodes .*openssl rand -hex 32") as caught:
        meet(SEVERAL, SECONDS)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("token", ["", "x", "0123456789abcdef0123456789abcde"])
@pytest.mark.parametrize("told", [ALONE, SEVERAL], ids=["one node", "two"])
def test_a_token_that_is_too_short_is_refused_and_not_shown(
    told: Environment, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_token(monkeypatch, token)
    with pytest.raises(TokenError, match=rf"has {len(token)} characters and needs at least 32: export ") as caught:
        meet(told, SECONDS)
    assert len(token) < 2 or token not in str(caught.value)


def test_the_token_is_not_left_in_the_environment_of_what_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    given_token(monkeypatch, SECRET)
    key(SEVERAL)
    assert TOKEN not in os.environ


def test_runs_have_different_keys_though_their_token_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for run in ("one", "two", "one"):
        given_token(monkeypatch, SECRET)
        keys.append(key(replace(ALONE, run=run)))
    assert keys[0] == keys[2] != keys[1]
    assert all(SECRET.encode() not in one and len(one) == 32 for one in keys)


def test_the_workers_of_one_node_share_a_token_that_its_user_alone_can_read(home: Path) -> None:
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda: keys.append(key(ALONE))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 4 and len(set(keys)) == 1
    file = home / "paceline" / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file] and len(file.read_text()) == 64


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: file.chmod(0o644), "nobody else can read"),
        (lambda file: file.chmod(0o620), "nobody else can read"),
        (lambda file: (file.rename(file.with_name("other")), file.symlink_to("other")), "cannot keep a token"),
        (lambda file: (file.unlink(), os.mkfifo(file, 0o600)), "a file that you own"),
        (lambda file: (file.unlink(), file.mkdir()), "a file that you own|cannot keep a token"),
        (lambda file: file.write_text("short"), "has 5 characters"),
    ],
    ids=["others read", "group writes", "link", "fifo", "directory", "short"],
)
def test_a_file_that_others_may_have_a_hand_in_is_refused(
    home: Path, spoil: Callable[[Path], object], why: str
) -> None:
    key(ALONE)
    spoil(home / "paceline" / "token")
    with pytest.raises(TokenError, match=why):
        meet(ALONE, SECONDS)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(home: Path) -> None:
    key(ALONE)
    os.chown(home / "paceline" / "token", 65534, 65534)
    with pytest.raises(TokenError, match="a file that you own"):
        meet(ALONE, SECONDS)


def test_where_no_file_can_be_kept_a_sentence_says_what_to_do(home: Path) -> None:
    (home / "paceline").write_text("in the way")
    with pytest.raises(TokenError, match=r"cannot keep a token there .*export PACELINE_TOKEN="):
        meet(ALONE, SECONDS)


# -- the folder of a scheduler's job, which all nodes see


@pytest.fixture
def in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Worker 0 of two on one node, in the first attempt of a job."""
    (tmp_path / "job" / "1").mkdir(parents=True)
    (tmp_path / "job" / "token").write_text(SECRET)
    (tmp_path / "job" / "token").chmod(0o600)
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "", "MASTER_PORT": "0"}
    for name, value in (place | {JOB: str(tmp_path / "job" / "1")}).items():
        monkeypatch.setenv(name, value)
    return Environment.read()


def two_meet(told: Environment) -> None:
    server, _ = meet(told, SECONDS)
    assert server is not None
    none, store = meet(replace(told, rank=1), SECONDS)
    with closing(server), closing(StoreClient(store, 1, SECONDS)) as client:
        client.set("a", "1")
        assert none is None and client.get("a") == b"1"


def test_workers_of_a_job_meet_by_a_file_that_worker_0_signs(in_a_job: Environment) -> None:
    two_meet(in_a_job)


@pytest.mark.parametrize(
    "words", ['["127.0.0.1", 4711, "forged"]', '["127.0.0.1", 4711, 5]', '{"a": 1, "b": 2, "c": 3}']
)
def test_a_file_that_worker_0_has_not_signed_leads_nobody_astray(in_a_job: Environment, words: str) -> None:
    assert in_a_job.folder is not None
    (in_a_job.folder / "rendezvous").write_text(words)
    with pytest.raises(RendezvousError, match="is not signed by worker 0 of this job"):
        meet(replace(in_a_job, rank=1), 0.2)


@pytest.mark.parametrize("words", ["", "5", "null", "[1, 2]", "no JSON"])
def test_a_file_that_is_none_of_ours_is_waited_over(in_a_job: Environment, words: str) -> None:
    assert in_a_job.folder is not None
    (in_a_job.folder / "rendezvous").write_text(words)
    with pytest.raises(HangError, match="for worker 0 to say in"):
        meet(replace(in_a_job, rank=1), 0.2)


def test_a_file_of_another_attempt_is_not_taken(in_a_job: Environment) -> None:
    assert in_a_job.folder is not None
    server, _ = meet(in_a_job, SECONDS)
    assert server is not None
    server.close()
    second = in_a_job.folder.with_name("2")
    second.mkdir()
    (second / "rendezvous").write_bytes((in_a_job.folder / "rendezvous").read_bytes())
    with pytest.raises(RendezvousError, match="is not signed by worker 0 of this job"):
        meet(replace(in_a_job, rank=1, folder=second, run=str(second)), 0.2)


def test_a_token_that_others_can_read_is_refused(in_a_job: Environment) -> None:
    assert in_a_job.folder is not None
    (in_a_job.folder.parent / "token").chmod(0o644)
    with pytest.raises(TokenError, match="nobody else can read") as refused:
        meet(in_a_job, SECONDS)
    assert refused.value.exit_code == 3


# -- torchrun's store, which anybody can write to


@pytest.fixture
def torchruns() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=SECONDS))


def test_workers_find_the_store_by_torchruns_and_meet(torchruns: dist.TCPStore) -> None:
    two_meet(replace(ALONE, port=torchruns.port, store_is_served=True))


@pytest.mark.parametrize("word", ["4711 " + "0" * 64, "4711", "", "x y", "99999999999 " + "f" * 64])
def test_what_others_write_there_leads_nobody_astray(torchruns: dist.TCPStore, word: str) -> None:
    told = replace(ALONE, port=torchruns.port, store_is_served=True, rank=1)
    torchruns.set("restart-one/paceline/store", word)
    with pytest.raises(RendezvousError, match="nothing that worker 0 has signed; PACELINE_TOKEN must be the same"):
        meet(told, 0.2)


def test_what_worker_0_says_counts_though_somebody_else_said_something_first(torchruns: dist.TCPStore) -> None:
    told = replace(ALONE, port=torchruns.port, store_is_served=True)
    torchruns.set("restart-one/paceline/store", "4711 forged")
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(meet(replace(told, rank=1), SECONDS)[1].port))
    waiting.start()
    server, store = meet(told, SECONDS)
    assert server is not None
    waiting.join()
    server.close()
    assert found == [store.port]


def test_a_node_with_another_token_cannot_join(torchruns: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    told = replace(SEVERAL, port=torchruns.port, store_is_served=True)
    given_token(monkeypatch, SECRET)
    server, _ = meet(told, SECONDS)
    assert server is not None
    given_token(monkeypatch, SECRET[::-1])
    with closing(server), pytest.raises(RendezvousError, match="PACELINE_TOKEN must be the same on every node"):
        meet(replace(told, rank=1), 0.2)


def test_a_worker_that_worker_0_never_calls_says_so(torchruns: dist.TCPStore) -> None:
    with pytest.raises(HangError, match=r"worker 1 waited 0\.2 s for worker 0") as late:
        meet(replace(ALONE, port=torchruns.port, store_is_served=True, rank=1), 0.2)
    assert (late.value.exit_code, list(late.value.missing)) == (5, [0])


def test_the_word_of_a_generation_that_has_ended_is_passed_over(torchruns: dist.TCPStore) -> None:
    """A change of members raises no RESTART_COUNT: the old word lies under the same key, and is signed."""
    told = replace(ALONE, port=torchruns.port, store_is_served=True)
    before, _ = meet(told, SECONDS)
    assert before is not None
    before.close()
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(meet(replace(told, rank=1), SECONDS)[1].port))
    waiting.start()
    now, store = meet(told, SECONDS)
    waiting.join()
    assert now is not None
    now.close()
    assert found == [store.port] != [before.endpoint.port]


def test_a_job_is_known_by_its_id_and_token_in_all_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_of_torchrun() is None
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}

    def job(run: str, token: str, port: str = "1", restarts: str = "0") -> str | None:
        given_token(monkeypatch, token)
        elastic = {"TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": restarts, "MASTER_PORT": port}
        for name, value in (told | elastic).items():
            monkeypatch.setenv(name, value)
        _job.cache_clear()
        return job_of_torchrun()

    mine = job("mine", SECRET)
    assert mine is not None and mine == job("mine", SECRET, "2", "3") and SECRET not in mine
    assert len({mine, job("other", SECRET), job("mine", SECRET[::-1]), job("none", SECRET)}) == 4
    os.environ.pop(TOKEN)
    assert job_of_torchrun() == job("none", SECRET), "the token may be gone by now"
    _job.cache_clear()


# -- env:// without torchrun's store


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_worker_that_comes_before_worker_0_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told, tried = replace(ALONE, port=free_port()), threading.Event()
    joined: list[StoreClient] = []

    def sleep(seconds: float) -> None:
        tried.set()
        threading.Event().wait(seconds)

    monkeypatch.setattr("paceline.comm.store.time.sleep", sleep)
    _, store = meet(replace(told, rank=1), SECONDS)
    early = threading.Thread(target=lambda: joined.append(StoreClient(store, 1, SECONDS, served_by=0)))
    early.start()
    assert tried.wait(SECONDS), "worker 1 has been refused once"
    server, _ = meet(told, SECONDS)
    early.join()
    assert server is not None
    with closing(server), closing(joined[0]) as client:
        client.set("a", "1")
        assert client.get("a") == b"1"


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_a_worker_0_that_never_comes_is_named(host: str) -> None:
    nobody = Endpoint("store", host, free_port(), b"0" * 32)
    with pytest.raises(
        HangError, match=rf"worker 3 waited 0\.2 s for worker 0 at {host}:\d+ \(.*Start worker 0"
    ) as late:
        StoreClient(nobody, 3, 0.2, served_by=0)
    assert (late.value.exit_code, list(late.value.missing)) == (5, [0])


def test_one_node_listens_on_loopback_only_and_several_where_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    server, store = meet(replace(ALONE, address="0.0.0.0"), SECONDS)
    assert server is not None and store.host == "127.0.0.1"
    server.close()
    environment = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = Environment.read()
    assert (told.rank, told.size, told.nodes, told.host, told.on_loopback) == (1, 4, 2, "a", False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Environment.read().nodes == 1


@pytest.mark.parametrize("address", ["::1", "0:0:0:0:0:0:0:1", "127.1.2.3", "localhost"])
def test_workers_that_are_told_a_loopback_address_meet_on_loopback(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    server, store = meet(replace(SEVERAL, address=address), SECONDS)
    assert server is not None and store.host == "127.0.0.1"
    server.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
def test_a_host_whose_name_is_an_address_of_ipv6_listens_to_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *its, **more: found("::1", *its, **more))
    server, store = meet(replace(SEVERAL, address="a-name"), SECONDS)
    monkeypatch.undo()
    assert server is not None
    with closing(server):
        for host in ("::1", "127.0.0.1"):
            socket.create_connection((host, store.port), SECONDS).close()


def test_a_second_process_of_one_rank_and_one_of_another_world_size_are_refused() -> None:
    server, store = meet(replace(ALONE, port=free_port()), SECONDS)
    assert server is not None
    with closing(server), closing(StoreClient(store, 0, SECONDS)) as client:
        check_place(client, 0, 3)
        check_place(client, 1, 3)
        with pytest.raises(RendezvousError, match=r"^RANK=1: another process is worker 1 of this run already\. Give"):
            check_place(client, 1, 3)
        with pytest.raises(RendezvousError, match=r"^WORLD_SIZE=2: worker 2 was .* and worker 0 with 3\. Start"):
            check_place(client, 2, 2)
