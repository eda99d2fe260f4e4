"""Measures a round of secure aggregation by clients, and by dropouts: `python -m benchmarks.secure`.

Prints the table of docs/privacy.md. Clients and the server are objects in one process, one thread: what a message takes
on its way is left out. Who vanishes does so after sharing its keys and before it sends its vector, which is when it
costs most: the server then makes its masks with all others again. Seconds are processor time, the least of three
rounds.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from paceline.exchange.secure.primitives import Identity
from paceline.exchange.secure.protocol import Client, Server

ENTRIES = 100_000  # d
CLIENTS = (8, 16, 32, 64)
VANISH = (0.0, 0.1, 0.3)
THRESHOLD = 0.67  # conf/secure/bonawitz.yaml's
ROUNDS = 3
T = TypeVar("T")


@dataclass
class PartyAccount:
    """The seconds that one party computed, and the bytes that it sent."""

    seconds: float = 0.0
    sent: int = 0

    def runs(self, step: Callable[..., T], *given: Any) -> T:
        began = time.process_time()
        made = step(*given)
        self.seconds += time.process_time() - began
        return made

    def sends(self, step: Callable[..., T], *given: Any) -> T:
        made = self.runs(step, *given)
        self.sent += size_of(made)
        return made


def size_of(message: Any) -> int:
    """Bytes of all keys, shares, hashes, signatures and vectors in it; who they are of is known by their place."""
    match message:
        case bytes():
            return len(message)
        case np.ndarray():
            return message.nbytes
        case Mapping():
            return sum(map(size_of, message.values()))
        case tuple():
            return sum(map(size_of, message))
    return sum(map(size_of, vars(message).values()))


def a_round(n: int, vanish: int, d: int = ENTRIES, number: int = 0) -> tuple[PartyAccount, PartyAccount]:
    """One client that came to the end, the mean of all such, and the server."""
    rng = np.random.default_rng(number)
    t = max(math.ceil(THRESHOLD * n), n // 2 + 1)
    identities = {u: Identity(rng.bytes(32)) for u in range(n)}
    known = {u: each.public for u, each in identities.items()}
    clients = {u: Client(number, u, t, identities[u], known, rng.bytes) for u in range(n)}
    accounts, its = {u: PartyAccount() for u in clients}, PartyAccount()
    server = Server(number, t, known)
    vectors = {u: rng.integers(0, 2**64, d, dtype=np.uint64) for u in clients}
    for u, client in clients.items():
        its.runs(server.advertised, u, accounts[u].sends(client.advertise))
    for u, client in clients.items():
        its.runs(server.shared, u, accounts[u].sends(client.share, server.keys))
    left = sorted(rng.permutation(n)[: n - vanish].tolist())
    for u in left:
        given = its.runs(server.for_client, u)
        its.runs(server.receive, u, accounts[u].sends(clients[u].mask, vectors[u], *given))
    for u in left:
        its.runs(server.checked, u, accounts[u].sends(clients[u].check, server.masked))
    asks = its.runs(server.asks)
    for u in left:
        its.runs(server.opened, u, accounts[u].sends(clients[u].unmask, *asks))
    total, who = its.runs(server.total)
    assert sorted(who) == left
    assert np.array_equal(total, sum((vectors[u] for u in left), start=np.zeros(d, dtype=np.uint64)))
    (sent,) = {accounts[u].sent for u in left}
    return PartyAccount(sum(accounts[u].seconds for u in left) / len(left), sent), its


def main() -> None:
    print("| clients | vanish | a client sends, bytes | beside its vector | a client computes, s | the server, s |")
    print("|---|---|---|---|---|---|")
    for n in CLIENTS:
        for share in VANISH:
            vanish = round(share * n)
            rounds = [a_round(n, vanish, number=number) for number in range(ROUNDS)]
            client = min(client.seconds for client, _ in rounds)
            server = min(server.seconds for _, server in rounds)
            sent = rounds[0][0].sent
            print(f"| {n} | {vanish} | {sent:,} | {sent - 8 * ENTRIES:,} | {client:.3f} | {server:.3f} |", flush=True)


if __name__ == "__main__":
    main()
