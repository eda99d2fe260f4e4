"""Who shares a host, as each fabric knows it."""

import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs_namespaces

from paceline.comm import Comm
from paceline.comm.connecting import _host
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster


def hosts(comm: Comm) -> list[list[int]]:
    """Of all, and of those whose rank is as odd as this one's."""
    half = comm.split(comm.rank % 2)
    assert half is not None
    return [list(comm.hosts), list(half.hosts)]


def test_hosts_of_a_virtual_cluster_are_those_of_its_network() -> None:
    link = NetworkLink(latency=1e-3, bandwidth=1e6)
    told = SimulatedCluster(6, Network(between=link, inside=link, workers_per_host=2)).run(hosts)
    assert told == [[[0, 0, 1, 1, 2, 2], [0, 1, 2]]] * 6


@pytest.mark.dist
def test_processes_of_one_machine_share_a_host(workers) -> None:
    assert workers(2, hosts) == [[[0, 0], [0]]] * 2


def proc(folder: Path, boot: str, **spaces: str) -> Path:
    """A /proc of that machine and those namespaces."""
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(boot)
    (folder / "self/ns").mkdir(parents=True)
    for kind, space in {"pid": "pid:[1]", "mnt": "mnt:[2]", **spaces}.items():
        (folder / "self/ns" / kind).symlink_to(space)
    return folder


def test_containers_of_one_machine_are_hosts_of_their_own(tmp_path: Path) -> None:
    one = _host(proc(tmp_path / "one", "a"))
    assert _host(proc(tmp_path / "same", "a")) == one
    others = [
        proc(tmp_path / "machine", "b"),
        proc(tmp_path / "pid", "a", pid="pid:[7]"),
        proc(tmp_path / "mnt", "a", mnt="mnt:[7]"),
        proc(tmp_path / "time", "a", time="time:[7]"),
    ]
    assert one not in [_host(other) for other in others]
    assert _host() == _host()


@needs_namespaces
@pytest.mark.slow
def test_a_process_in_its_own_pid_namespace_is_another_host() -> None:
    def said(*prefix: str) -> str:
        code = "from paceline.comm.connecting import _host; print(repr(_host()))"
        return subprocess.run([*prefix, sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said() == repr(_host()) + "\n" != said("unshare", "--map-root-user", "--fork", "--pid", "--mount-proc")
