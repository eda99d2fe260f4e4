"""Secure aggregation (Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS): a federated server learns the clients' mean change of a round, and neither what any of them brought nor how
many samples it has.

    sum_u n_u q_u  mod 2^64,   q_u = round(clip(w_u - w, -largest, largest) 2^bits),

and with it sum_u n_u, of those who have sent their vectors; at least t = max(ceil(threshold m), floor(m / 2) + 1) of
the m clients of a round must go on to its end, or it is given up, and w stays. protocol.py says how; this file says how
its messages travel between the clients and the server of `sync=fedavg`, over any fabric.

Keys that messages are signed by are told once, as training begins, by all to all: that they are the clients' own is
trusted. Random numbers are the operating system's. A sum is the same whatever they are, so that a run repeats bit for
bit all the same.

Cost per round and client, of m clients and d weights, where nobody vanishes: a client sends 8 (d + 1) + 244 + 278 m
bytes, about twice what plain weights take, and makes m masks of d numbers; the server sends 516 m - 156, and makes m
masks for those who came to the end, and m more for each who vanished after sharing its keys. The virtual cluster counts
the bytes, and no time for the masks.

Use it where clients do not trust the server with their own weights, which give away data. It does not hide what the
sum says: that is what privacy=dp_fedavg is for, which goes with it.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from secrets import token_bytes
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from ...comm import Comm
from ...conf.errors import ConfigError
from ...strategies.core.held import Held, HeldCells
from ...strategies.core.terms import ADDED_UP, EQUAL_CLIENTS, UNCOMPRESSED, UNINFORMED, WEIGHTS_ALONE, Need
from ..survivors import isend_to, recv_from, wait_for
from .base import Secure
from .fixed_point import WIDTH, FixedPoint, Ring
from .primitives import Identity, check_there
from .protocol import (
    HASH,
    KEY,
    SEALED,
    SIGNATURE,
    Client,
    Keys,
    Opened,
    Opening,
    SecureError,
    Server,
    Shares,
    client_bytes,
)
from .shamir import SHARE

NUMBER = 8
KEYS = 2 * KEY + SIGNATURE  # bytes
OPENING = NUMBER + KEY + SIGNATURE
FEWEST = 3  # clients of a round
SHOWN = 4  # entries of masks, in pictures


class Bonawitz(Secure):
    """Secure aggregation on a client or the server, after `begin`."""

    hides = True

    def __init__(
        self,
        threshold: Annotated[float, Gt(0.5), Le(1)] = 0.67,
        bits: Annotated[int, Ge(1), Le(48)] = 24,
        largest: Annotated[float, Gt(0), Le(2**20)] = 16.0,
    ) -> None:
        """`threshold`: the share of a round's clients that must come to its end. `bits`: behind the point. `largest`:
        that an entry of a change may be, of either sign. Raises `ConfigError`.
        """
        self.threshold, self.fixed = threshold, FixedPoint(bits, largest)
        self.delivered = self.lost = 0  # on a client: entries other than 0, and of these those cut or rounded to 0
        self._masks: Ring | None = None  # of the newest round; None: nobody watches
        if self.fixed.most() < 1:
            raise ConfigError(
                f"secure.bits={bits}, secure.largest={largest:g}: one number takes more than 63 bits, and sums have "
                "63. Choose fewer bits, or a smaller largest."
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        masks = "masks each change, so that the server learns the sum alone"
        return (
            Need(ADDED_UP, masks),
            Need(UNINFORMED, masks),
            Need(UNCOMPRESSED, "adds masked numbers up as they are"),
            Need(WEIGHTS_ALONE, "masks changes of weights, and nothing else that a client delivers"),
            Need(EQUAL_CLIENTS, "counts on clients that are drawn with equal chances and stay"),
        )

    def check(self, sampled: int) -> None:
        """Checks the number of clients in a round, and that this machine can mask. Raises `ConfigError` or
        `MissingToolError`.
        """
        if sampled < FEWEST:
            raise ConfigError(
                f"a round has {sampled} clients, and of the sum of two each knows what the other brought. "
                "Choose hardware.workers and sync.fraction for three or more a round, or secure=none.",
                about=("secure",),
            )
        check_there()

    def needed(self, sampled: int) -> int:
        """t"""
        return max(math.ceil(self.threshold * sampled), sampled // 2 + 1)

    def begin(self, comm: Comm) -> None:
        """All clients and the server call this. `comm`: the server is the last."""
        self._comm, self._identity = comm, Identity(token_bytes(KEY))
        own = torch.tensor([*self._identity.public], dtype=torch.int64)
        told = comm.all_gather(own).view(comm.size, -1).tolist()
        self._known = {client: _public(client, numbers) for client, numbers in enumerate(told[:-1])}

    # -- a client

    def deliver(self, way: Tensor, samples: int, number: int, sampled: int) -> None:
        """[d], w_u - w, to the server, which calls `collect`. Raises `SecureError`."""
        self._fits(samples, number, sampled)
        client = Client(number, self._comm.rank, self.needed(sampled), self._identity, self._known)
        if self._told() is None:
            return
        self._say(_packed_keys(client.advertise()))
        if (peers := self._told()) is None:
            return
        keys = {v: _keys(data) for v, data in self._heard_of(peers, KEYS).items()}
        self._say(_packed_shares(client.share(keys)))
        if (peers := self._told()) is None:
            return
        told = self._heard_of(peers, SEALED + 2 * HASH)
        sealed = {v: data[:SEALED] for v, data in told.items()}
        hashes = {v: (data[SEALED:-HASH], data[-HASH:]) for v, data in told.items()}
        self._say(_packed_opening(client.open(sealed, hashes)))
        if (sound := self._told()) is None:
            return
        opened = self._heard_of(sound, SIGNATURE)
        x = np.append(self.fixed.encode(way, samples), np.uint64(samples))
        entries, lost = self.fixed.lost(way)
        self.delivered, self.lost = self.delivered + entries, self.lost + lost
        self._say(client.mask(x, opened).tobytes())
        if self._masks is not None:
            self._masks = client.between(SHOWN)
        if (masked := self._told()) is None:
            return
        self._say(client.check(masked))
        if (seeds := self._told()) is None:
            return
        of_keys, signed = self._told() or [], self._told() or []
        signatures = self._heard_of(signed, SIGNATURE)
        given = client.unmask(seeds, of_keys, signatures)
        self._say(b"".join(given.seeds[v] for v in seeds) + b"".join(given.keys[v] for v in of_keys))

    def shows(self) -> dict[str, Held]:
        """Returns the first entries of the masks that a client added in its newest round, as shares of 2^63.

        Over all clients of a round they add up to 0 modulo 2. The first call begins to note them.
        """
        if self._masks is None:
            self._masks = np.zeros(SHOWN, dtype=np.uint64)
        shares = (self._masks.view(np.int64) / 2.0**63).tolist()
        return {"entries of masks": HeldCells(tuple(f"{x:+.2f}" for x in shares), tuple(abs(x) for x in shares))}

    def _fits(self, samples: int, number: int, sampled: int) -> None:
        if samples * sampled > self.fixed.most():
            raise SecureError(
                f"round {number}, client {self._comm.rank}: {samples:,} samples make sums of {sampled} clients larger "
                f"than 63 bits. Choose a smaller secure.bits (now {self.fixed.bits}) or secure.largest."
            )

    def _say(self, data: bytes) -> None:
        self._comm.send(_as_tensor(data), self._comm.size - 1)

    def _told(self) -> list[int] | None:
        """Clients; None where the round is given up."""
        count = torch.zeros(1, dtype=torch.int64)
        self._comm.recv(count, self._comm.size - 1)
        if int(count) < 0:
            return None
        found = torch.zeros(int(count), dtype=torch.int64)
        if len(found):
            self._comm.recv(found, self._comm.size - 1)
        return found.tolist()

    def _heard_of(self, clients: list[int], size: int) -> dict[int, bytes]:
        data = torch.zeros(len(clients) * size, dtype=torch.uint8)
        if len(data):
            self._comm.recv(data, self._comm.size - 1)
        return dict(zip(clients, _cut(_as_bytes(data), size), strict=True))

    # -- the server

    def collect(self, clients: Collection[int], number: int, d: int, sampled: int) -> tuple[Tensor, int] | None:
        """Returns the mean change by samples, [d] float64, of the clients that call `deliver`, and how many are in it.

        The number is 0 where nobody has a sample. Returns None where too few came to the end. Raises `SecureError`.
        """
        t = self.needed(sampled)
        server = Server(number, t, self._known)
        going = sorted(clients)
        self._tell(going, [])
        for client, data in self._hear(going, lambda _: KEYS).items():
            server.advertised(client, _keys(data))
        if (going := self._enough(going, server.keys, t)) is None:
            return None
        everyone = sorted(server.keys)
        packed = b"".join(_packed_keys(server.keys[v]) for v in everyone)
        self._tell(going, everyone, packed)
        n = len(everyone)
        for client, data in self._hear(going, lambda _: _shares_size(n)).items():
            server.shared(client, _shares(data, client, everyone))
        if (going := self._enough(going, server.shares, t)) is None:
            return None
        for client in going:
            sealed, hashes = server.for_client(client)
            self._tell([client], sorted(sealed), b"".join(sealed[v] + b"".join(hashes[v]) for v in sorted(sealed)))
        for client, data in self._hear(going, lambda _: OPENING).items():
            server.found(client, _opening(data))
        if (going := self._enough(going, server.sound, t)) is None:
            return None
        self._tell(going, sorted(server.sound), b"".join(server.sound[v] for v in sorted(server.sound)))
        for client, data in self._hear(going, lambda _: WIDTH * (d + 1)).items():
            server.receive(client, np.frombuffer(data, dtype=np.uint64))
        if (going := self._enough(going, server.masked, t)) is None:
            return None
        self._tell(going, sorted(server.masked))
        for client, data in self._hear(going, lambda _: SIGNATURE).items():
            server.checked(client, data)
        if (going := self._enough(going, server.signed, t)) is None:
            return None
        seeds, keys, signatures = server.asks()
        order, gone, signed = sorted(seeds), sorted(keys), sorted(signatures)
        self._tell(going, order)
        self._tell(going, gone)
        self._tell(going, signed, b"".join(signatures[v] for v in signed))
        for client, data in self._hear(going, lambda _: SHARE * (len(order) + len(gone))).items():
            shares = _cut(data, SHARE)
            opened = Opened(
                dict(zip(order, shares[: len(order)], strict=True)), dict(zip(gone, shares[len(order) :], strict=True))
            )
            server.opened(client, opened)
        if len(server.given) < t:
            return None
        total, who = server.total()
        samples = int(total[-1])
        if samples > self.fixed.most():  # clients have fewer together (`_fits`): a mask is left in the sum
            raise SecureError(
                f"round {number}: the vectors are of {samples:,} samples together, which is more than its clients can "
                "have. One of them sent a vector that it did not mask for this round"
            )
        return self.fixed.decode(total[:-1], max(samples, 1)), len(who) if samples else 0

    def _enough(self, asked: list[int], answered: Collection[int], t: int) -> list[int] | None:
        """Returns the clients that answered. If they are too few, tells them so and returns None."""
        going = sorted({*asked} & {*answered})
        if len(going) >= t:
            return going
        wait_for(isend_to(torch.tensor([-1]), going, self._comm))
        return None

    def _tell(self, clients: Iterable[int], about: list[int], data: bytes = b"") -> None:
        to, messages = list(clients), [torch.tensor([len(about)])]
        if about:
            messages.append(torch.tensor(about))
        if data:
            messages.append(_as_tensor(data))
        wait_for([work for each in messages for work in isend_to(each, to, self._comm)])

    def _hear(self, clients: Iterable[int], size: Callable[[int], int]) -> dict[int, bytes]:
        """Returns the message of each client that lives."""
        heard: dict[int, bytes] = {}
        for client in clients:
            data = torch.zeros(size(client), dtype=torch.uint8)
            if recv_from(data, client, self._comm):
                heard[client] = _as_bytes(data)
        return heard

    # -- what is sent

    def client_bytes(self, m: int, d: int) -> int:
        """Returns the bytes that a client sends in a round of m clients in which nobody vanishes, for d weights."""
        return client_bytes(m, d + 1)

    def server_bytes(self, m: int) -> int:
        """Returns the bytes that the server sends to each client in such a round."""
        ids = NUMBER + NUMBER * m  # a list of all
        peers = NUMBER + (m - 1) * (NUMBER + SEALED + 2 * HASH)
        signed = ids + SIGNATURE * m
        return NUMBER + ids + KEYS * m + peers + signed + ids + ids + NUMBER + signed


def _public(client: int, numbers: list[int]) -> bytes:
    try:
        return bytes(numbers)
    except ValueError:
        raise SecureError(f"client {client} told a public key that is none, as training began") from None


def _packed_keys(keys: Keys) -> bytes:
    return keys.seal + keys.mask + keys.signature


def _keys(data: bytes) -> Keys:
    return Keys(data[:KEY], data[KEY : 2 * KEY], data[2 * KEY :])


def _shares_size(n: int) -> int:
    return (n - 1) * SEALED + n * 2 * HASH + HASH + SIGNATURE


def _packed_shares(shares: Shares) -> bytes:
    sealed = b"".join(shares.sealed[v] for v in sorted(shares.sealed))
    hashes = b"".join(b"".join(shares.hashes[v]) for v in sorted(shares.hashes))
    return sealed + hashes + shares.seed + shares.signature


def _shares(data: bytes, client: int, everyone: list[int]) -> Shares:
    at, n = (len(everyone) - 1) * SEALED, len(everyone)
    sealed = dict(zip([v for v in everyone if v != client], _cut(data[:at], SEALED), strict=True))
    pairs = _cut(data[at : at + 2 * HASH * n], 2 * HASH)
    hashes: Mapping[int, tuple[bytes, bytes]] = {
        v: (each[:HASH], each[HASH:]) for v, each in zip(everyone, pairs, strict=True)
    }
    return Shares(sealed, dict(hashes), data[-SIGNATURE - HASH : -SIGNATURE], data[-SIGNATURE:])


def _packed_opening(opening: Opening) -> bytes:
    accused = -1 if opening.accused is None else opening.accused
    return accused.to_bytes(NUMBER, "little", signed=True) + opening.secret + opening.signature


def _opening(data: bytes) -> Opening:
    accused = int.from_bytes(data[:NUMBER], "little", signed=True)
    return Opening(None if accused == -1 else accused, data[NUMBER:-SIGNATURE], data[-SIGNATURE:])


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _as_bytes(data: Tensor) -> bytes:
    return data.numpy().tobytes()
