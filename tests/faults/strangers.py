"""Somebody else on this machine, who knows how paceline talks, connects to all that a run listens on."""

import multiprocessing
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import torch.distributed as dist

from paceline.comm.handshake import NONCE, Endpoint
from paceline.comm.store import encode

from .judge import Case, WrongError
from .launched import Launched, Moment, train, weights

NOBODY = 65534
ATTACK = 5.0  # seconds
WAIT = "model.act=wait_for_go"
PAUSED = ("model=trouble", "model.pause=0.05", "steps=60", "hardware.timeout=60")  # so long that what was said is heard
SYNCS = ("bsp", "parameter_server", "local_sgd")
_BUSY = threading.Lock()


@cache
def _reference(sync: str) -> bytes:
    place = Path(mkdtemp(prefix="fault-alone-"))
    train(place, *PAUSED, f"sync={sync}").ends({0})
    return weights(place)


def reference(sync: str) -> bytes:
    """The weights that the run ends with when nobody disturbs it."""
    with _BUSY:
        return _reference(sync)


Attack = Callable[[str, int, random.Random], None]


_reached = threading.Event()  # in the stranger's process: it has connected to something
REACHED, NOTHING, BROKEN = range(3)  # its exit status


def _connected(host: str, port: int) -> socket.socket:
    stranger = socket.create_connection((host, port), 2)
    _reached.set()
    return stranger


def _garbage(host: str, port: int, chance: random.Random) -> None:
    for _ in range(20):
        with suppress(OSError), _connected(host, port) as stranger:
            stranger.sendall(chance.randbytes(chance.randrange(1, 5000)))
            _listen(stranger)


def _listen(stranger: socket.socket) -> None:
    """Until the other end hangs up or says no more: who leaves with something unread takes back what it said."""
    stranger.settimeout(0.5)
    with suppress(OSError):
        while stranger.recv(1000):
            pass


def _silence(host: str, port: int, _: random.Random) -> None:
    with _connected(host, port):
        time.sleep(2)


def _crowd(host: str, port: int, chance: random.Random) -> None:
    crowd = []
    for _ in range(200):
        with suppress(OSError):
            crowd.append(_connected(host, port))
    for stranger in crowd:
        with suppress(OSError):
            stranger.send(chance.randbytes(8))
    time.sleep(1)
    for stranger in crowd:
        stranger.close()


def _drip(host: str, port: int, chance: random.Random) -> None:
    with _connected(host, port) as stranger:
        for _ in range(40):
            stranger.send(chance.randbytes(1))
            time.sleep(0.05)


def _huge(host: str, port: int, _: random.Random) -> None:
    """A message of 2^46 bytes from rank 1, as messages were framed once: a secret, a rank, a header."""
    with _connected(host, port) as stranger:
        stranger.sendall(struct.pack("!16sI", bytes(16), 1) + struct.pack("!QQ", 7, 2**46) + bytes(100_000))
        time.sleep(0.5)


def _echo(host: str, port: int, draws: random.Random) -> None:
    """Send back whatever is said: a challenge answered with itself."""
    with _connected(host, port) as stranger:
        stranger.settimeout(1)
        for _ in range(10):
            stranger.sendall(stranger.recv(4096) or b"hello")


def _another_key(host: str, port: int, chance: random.Random) -> None:
    """The whole handshake with a key of its own, as each of those who may be listening; then writes to the store."""
    for name in ("store", "worker 0", "worker 1", "worker 2"):
        with suppress(OSError), _connected(host, port) as stranger:
            stranger.settimeout(2)
            nonces = stranger.recv(NONCE, socket.MSG_WAITALL), chance.randbytes(NONCE)
            proof = Endpoint(name, host, port, chance.randbytes(32)).proof("caller", 1, *nonces)
            stranger.sendall(struct.pack("!I", 1) + nonces[1] + proof)
            for key, value in ((b"paceline/stop", b"1"), (b"stop", b"1")):
                stranger.sendall(encode([b"set", key, value]))
            _listen(stranger)


def _store(key: str, value: str) -> Attack:
    def write(host: str, port: int, _: random.Random) -> None:
        _connected(host, port).close()
        store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
        for prefix in ("", "paceline/", "restart-0/paceline/"):
            store.set(prefix + key, value)

    return write


ATTACKS: dict[str, Attack] = {
    "garbage": _garbage,
    "silence": _silence,
    "200 connections": _crowd,
    "a byte now and then": _drip,
    "a message of 2^46 bytes": _huge,
    "an echo": _echo,
    "a key of its own": _another_key,
    "'stop' to the store": _store("stop", "1"),
    "'lost' to the store": _store("lost", "0 1 "),
    "'left' to the store": _store("left/1", ""),
}


def cases(chance: random.Random, count: int) -> list[Case]:
    found: list[Case] = []
    who = "another user" if os.getuid() == 0 else "a process of the same user, without its secrets"
    for number in range(count):
        attack, sync = list(ATTACKS)[number % len(ATTACKS)], chance.choice(SYNCS)
        early = chance.random() < 0.5
        what = f"{attack}, sync={sync}, {'while workers meet' if early else 'in a step'}"
        found.append(Case(f"stranger: {who}", what, partial(_check, attack, sync, early, chance.randrange(2**31))))
    return found


def _check(attack: str, sync: str, early: bool, seed: int, place: Path) -> None:
    launched = train(place, *PAUSED, WAIT, "model.at=3", f"sync={sync}")
    moment = Moment("first worker's log" if early else "first step")
    reached = False
    for _ in range(5 if early else 1):  # new ports appear while workers meet
        if not launched.comes(moment):
            break
        reached |= _as_stranger(attack, listening(launched), seed)
        time.sleep(0.1)
    (place / "go").touch()
    launched.ends({0})
    if not reached:
        raise WrongError("there was nobody to attack: is the harness looking at the right ports?")
    if weights(place) != reference(sync):
        raise WrongError("the run ended with other weights than undisturbed")


def _as_stranger(attack: str, addresses: list[tuple[str, int]], seed: int) -> bool:
    """In a process of another user, where we may become one. Whether it could connect to any of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "faults.strangers"])
    process = context.Process(target=be_stranger, args=(attack, addresses, seed))
    process.start()
    process.join(30)
    process.kill()
    if process.exitcode not in (REACHED, NOTHING):
        raise RuntimeError(f"the stranger itself failed, with status {process.exitcode}")
    return process.exitcode == REACHED


def be_stranger(attack: str, addresses: list[tuple[str, int]], seed: int) -> None:
    """Attack all addresses at once."""
    silent, broken = os.open(os.devnull, os.O_WRONLY), threading.Event()
    os.dup2(silent, 2)
    "".encode("idna")  # connecting imports it, and another user may not read where Python is installed
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    def reach(host: str, port: int) -> None:
        try:
            ATTACKS[attack](host, port, random.Random(seed))
        except (OSError, RuntimeError, struct.error):  # hung up on, in the middle of something
            pass
        except BaseException:
            broken.set()
            raise

    threads = [threading.Thread(target=reach, args=address, daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + ATTACK
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    os._exit(BROKEN if broken.is_set() else REACHED if _reached.is_set() else NOTHING)


def listening(launched: Launched) -> list[tuple[str, int]]:
    """The addresses on which the command and what it started listen."""
    inodes = set()
    for pid in launched.alive():
        with suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(str(fd.readlink()))
    found = []
    for file, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/net", file).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                address, port = words[1].split(":")
                found.append((_host(bytes.fromhex(address), family), int(port, 16)))
    return found


def _host(address: bytes, family: int) -> str:
    """An address as the kernel prints it: 32-bit words in the machine's order. All zeros is reached on loopback."""
    turned = b"".join(address[i : i + 4][::-1] for i in range(0, len(address), 4))
    if not any(turned):
        return "127.0.0.1" if family == socket.AF_INET else "::1"
    return socket.inet_ntop(family, turned)
