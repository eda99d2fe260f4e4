"""The rendezvous of a run's workers, and the key by which they know each other.

The launcher of local workers makes a key for each run and hands it to them through the pipe that starts them. Under
torchrun every node is told a token by the environment, `PACELINE_TOKEN`; on a single node a file that its user alone
can read takes its place. Nothing that another user can read ever holds either.

torchrun's own store answers whoever connects. It is used only to say at which port worker 0 serves ours, with a proof.
In a scheduler's job a file says so, in a folder that all nodes see, with the same proof; the token lies beside it.
"""

import hmac
import ipaddress
import json
import os
import secrets
import socket
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch.distributed as dist

from .errors import HangError, RendezvousError, TokenError, TokenFileError
from .handshake import Endpoint, call
from .store import NAME, StoreServer, serve

TOKEN = "PACELINE_TOKEN"  # environment variable
JOB = "PACELINE_JOB"  # environment variable: the folder of these workers' attempt at a scheduler's job
MEETING = "rendezvous"  # a file in that folder, in which worker 0 says where it listens
SHORTEST = 32  # characters of a token
HOW = f"export {TOKEN}=$(openssl rand -hex 32)"
LOOPBACK = "127.0.0.1"
RETRY = 0.05  # seconds
PROBE = 5.0  # seconds


def job_folder() -> Path | None:
    """Returns the folder of the attempt at a scheduler's job that this process is of; None: it is of no such job."""
    return Path(os.environ[JOB]) if JOB in os.environ else None


def serve_store(port: int) -> StoreServer:
    """Serves a store for workers on this host, with a key of its own; `port` 0 takes a free one. Raises
    `RendezvousError`.
    """
    try:
        return serve(LOOPBACK, port, secrets.token_bytes(32))
    except OSError as error:
        raise RendezvousError(
            f"hardware.port={port}: cannot listen on {LOOPBACK}:{port} ({error.strerror}); "
            "hardware.port=0 takes a free port"
        ) from None


@dataclass(frozen=True)
class Environment:
    """The facts that torchrun, or another launcher that follows env://, gives a worker."""

    rank: int
    size: int
    nodes: int
    address: str  # of worker 0's host
    port: int
    store_is_served: bool  # by torchrun, at that port; else the port is ours
    run: str  # a name that no other run on `address` has at this time
    folder: Path | None = None  # in which worker 0 says where its store is, instead of at `address` and `port`

    @staticmethod
    def read() -> "Environment":
        here = os.environ
        size, address, port = int(here["WORLD_SIZE"]), here["MASTER_ADDR"], int(here["MASTER_PORT"])
        if (job := job_folder()) is not None and "TORCHELASTIC_RUN_ID" not in here:
            nodes = -(-size // int(here["LOCAL_WORLD_SIZE"]))
            return Environment(int(here["RANK"]), size, nodes, socket.gethostname(), 0, False, str(job), job)
        names = [here.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
        local = int(here.get("LOCAL_WORLD_SIZE") or 1)
        return Environment(
            int(here["RANK"]),
            size,
            -(-size // local),
            address,
            port,
            here.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            "\n".join([address, str(port), *names]),
        )

    @property
    def on_loopback(self) -> bool:
        return self.nodes == 1 or self.address == "localhost" or is_loopback(self.address)

    @property
    def host(self) -> str:
        """Returns the address of worker 0."""
        return LOOPBACK if self.on_loopback else self.address


def is_loopback(address: str) -> bool:
    """Returns False for a name."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def meet(told: Environment, timeout: float) -> tuple[StoreServer | None, Endpoint]:
    """The run's store, and on worker 0 its server. Raises `RendezvousError`, `HangError` or `TokenError`."""
    key = hmac.digest(_token(told.nodes), f"run\n{told.run}".encode(), "sha256")
    if told.folder is not None:
        return _meet_in(told.folder, told, key, timeout)
    if told.rank == 0:
        server = _serve(told, key)
        if told.store_is_served:
            port = server.endpoint.port
            _torchruns_store(told, timeout).set(_AT, f"{port} {_proof(key, port)}")
        return server, server.endpoint
    port = _port_of_store(told, key, timeout) if told.store_is_served else told.port
    return None, Endpoint(NAME, told.host, port, key)


def _meet_in(folder: Path, told: Environment, key: bytes, timeout: float) -> tuple[StoreServer | None, Endpoint]:
    """Meet by a file that worker 0 signs: the port is one that was free."""
    file = folder / MEETING
    if told.rank == 0:
        server = _serve(told, key)
        port = server.endpoint.port
        draft = file.with_name(f"{MEETING}.new")
        draft.write_text(json.dumps([told.host, port, _proof(key, port, told.host)]))
        draft.rename(file)
        return server, server.endpoint
    deadline, said = time.monotonic() + timeout, False
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError, TypeError):  # not there yet, or not by one of ours
            host, port, proof = json.loads(file.read_text())
            said = True
            if hmac.compare_digest(str(proof), _proof(key, port, host)):
                return None, Endpoint(NAME, host, port, key)
        time.sleep(RETRY)
    if said:
        raise RendezvousError(f"worker {told.rank} cannot join the run: {file} is not signed by worker 0 of this job")
    raise HangError(f"worker {told.rank} waited {timeout:g} s for worker 0 to say in {file} where it is", [0])


_AT = "paceline/store"  # the key in torchrun's store


def _serve(told: Environment, key: bytes) -> StoreServer:
    port = 0 if told.store_is_served else told.port  # which is 0 in a scheduler's job
    try:
        return serve(told.host, port, key, _listening_address(told))
    except OSError as error:
        raise RendezvousError(f"worker 0 cannot listen on {told.host}:{port} ({error.strerror})") from None


def _listening_address(told: Environment) -> str:
    """The narrowest on which worker 0 is reached; all where this host does not have the address that others use."""
    address = socket.getaddrinfo(told.host, 0, type=socket.SOCK_STREAM)[0][4][0]
    assert isinstance(address, str)
    if told.on_loopback:
        return address
    every = "::" if ":" in address else ""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return every
    return every if is_loopback(address) else address  # a host's name for itself


def _torchruns_store(told: Environment, timeout: float) -> dist.Store:
    where = f"{told.address}:{told.port}"
    try:
        store = dist.TCPStore(
            told.address, told.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout)
        )
    except dist.DistError as error:
        raise RendezvousError(f"worker {told.rank} cannot reach torchrun's store at {where}: {error}") from None
    return dist.PrefixStore(f"restart-{told.run.rpartition(chr(10))[2]}", store)


def _port_of_store(told: Environment, key: bytes, timeout: float) -> int:
    store, deadline = _torchruns_store(told, timeout), time.monotonic() + timeout
    said = False
    while time.monotonic() < deadline:
        try:
            store.wait([_AT], timedelta(seconds=max(deadline - time.monotonic(), RETRY)))
            word, _, proof = store.get(_AT).decode(errors="replace").partition(" ")
        except dist.DistError:
            break
        if word.isdecimal() and hmac.compare_digest(proof.encode(), _proof(key, int(word)).encode()):
            if _answers(Endpoint(NAME, told.host, int(word), key), told.rank):
                return int(word)
        else:
            said = True  # by somebody else, who may be overruled yet
        time.sleep(RETRY)
    if said:
        raise RendezvousError(
            f"worker {told.rank} cannot join the run: torchrun's store holds nothing that worker 0 has signed; "
            f"{TOKEN} must be the same on every node"
        )
    raise HangError(f"worker {told.rank} waited {timeout:g} s for worker 0 to serve the rendezvous store", [0])


def _answers(store: Endpoint, rank: int) -> bool:
    """Returns True if our store is up. After a change of members, torchrun's store holds the address of an ended
    generation's.
    """
    try:
        call(store, rank, PROBE).close()
    except OSError:
        return False
    return True


def _proof(key: bytes, port: int, host: str = "") -> str:
    return hmac.digest(key, f"store at {host}{port}".encode(), "sha256").hex()


# -- the token


def job_of_torchrun() -> str | None:
    """Identifies torchrun's job in all its generations, to those who have its token; None under other launchers.

    The user names a job by --rdzv-id. Without it, a job is as old as its agent. Raises `TokenError`.
    """
    if (name := os.environ.get("TORCHELASTIC_RUN_ID")) is None:
        return None
    if name == "none":
        agent = os.getppid()
        began = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[19]
        name = f"none {agent} {began}"
    return _job(name, Environment.read().nodes)


@cache
def _job(name: str, nodes: int) -> str:
    """Kept, as the token is gone from the environment once the workers have met."""
    return hmac.digest(_token(nodes, keep=True), f"job\n{name}".encode(), "sha256").hex()


def _token(nodes: int, keep: bool = False) -> bytes:
    """Raises `TokenError`."""
    if (job := job_folder()) is not None:
        return _read_private(job.parent / "token")
    token = os.environ.get(TOKEN)
    if not keep:
        os.environ.pop(TOKEN, None)  # processes that a worker starts need not know it
    if token is not None:
        if len(token) < SHORTEST:
            raise TokenError(f"{TOKEN}: has {len(token)} characters and needs at least {SHORTEST}: {HOW}")
        return token.encode(errors="surrogateescape")
    if nodes > 1:
        raise TokenError(f"{TOKEN}: is not set, and {nodes} nodes need it to know one another, the same on each: {HOW}")
    return _token_of_user()


def _token_of_user() -> bytes:
    """Returns the token for all single-node runs of this user, made when it is first needed."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    path = Path(state) / "paceline" / "token"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            make_token(path)
        return _read_private(path)
    except OSError as error:
        raise TokenFileError(
            f"{path}: cannot keep a token there ({error.strerror}); do without the file: {HOW}"
        ) from None


def make_token(path: Path) -> None:
    """Whole or not at all, and once: several workers come here at the same time."""
    draft = path.with_name(f"token-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink()


def _read_private(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        what = os.fstat(descriptor)
        if not stat.S_ISREG(what.st_mode) or what.st_uid != os.geteuid() or what.st_mode & 0o077:
            raise TokenFileError(
                f"{path}: must be a file that you own and nobody else can read (mode 600); remove it, or: {HOW}"
            )
        token = file.read(1024)
    if len(token) < SHORTEST:
        raise TokenFileError(f"{path}: has {len(token)} characters and needs at least {SHORTEST}; remove it, or: {HOW}")
    return token
