"""Secure aggregation (Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS, figure 4). A server learns the sum of at least t of n clients' vectors x_u, modulo 2^64, and nothing else; clients
may vanish at any time.

    0 advertise   u draws two key pairs, and signs and sends the public ones, c_u and s_u
    1 share       u draws a seed b_u, and sends each v its shares of b_u and of s_u's secret key, encrypted for v
    2 open        u opens the shares sealed for it, and signs that it could; or it accuses v, by c_u's secret key
    3 mask        y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv),   s_uv by s_u and s_v
    4 check       u signs who has sent y, as it was told; all must have been told the same
    5 unmask      of each peer that has sent y, u gives its share of the seed; of each that has vanished, of the key
                  sum x_u = sum y_u - sum PRG(b_u) + the masks with those who vanished

Who gives the two of one peer away gives that peer's vector away: no client does, and the server does not ask. A server
that lies in step 4 is found out as long as fewer than 2 t - n clients help it (section 6). Keys
agree by X25519 and HKDF-SHA256, masks are ChaCha20's stream, shares travel under ChaCha20-Poly1305, and who signs does
so by Ed25519 with a key that all knew beforehand. Every key and signature is of one round alone, so that no message of
another round is of use.

Deviations from the paper: keys are signed with who they are of, and so are hashes of all shares, of the seed and its
stream's length: a share that was tampered with is found, and who gave it named. Masks are between all who shared keys
(not a sparse graph).

Step 2 is not the paper's, where a client that cannot open a share leaves: one liar drives out the honest. Ciphertexts
are signed with the shares. With c_v's secret anybody can open what u sealed for v, so that an accusation proves who
lies: u, or v. No client masks its vector before t clients have signed that they could open theirs. At most n - t honest
clients have accused then: what they gave away helps a lying server only if 2 t - n clients help it, too.

Objects here exchange messages and know nothing of how they travel: `Client` and `Server` each have one method a step.
"""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import NoReturn

import numpy as np

from .fixed_point import WIDTH, Ring
from .primitives import Identity, agreed, decrypted, encrypted, new_key, public_of, stream, verified
from .shamir import SHARE, join, split

KEY = 32  # bytes
SIGNATURE = 64
HASH = 32
SEALED = 2 * SHARE + 16  # bytes of both shares, encrypted
Draw = Callable[[int], bytes]


class SecureError(RuntimeError):
    """A client or the server broke the protocol, or too few are left. The round is lost, and no vector was revealed."""

    exit_code = 4


@dataclass(frozen=True)
class Keys:
    """The public keys that client u advertises, signed."""

    seal: bytes  # c_u
    mask: bytes  # s_u
    signature: bytes

    def signed(self, number: int, client: int) -> bytes:
        return b"keys" + _said(number, client) + self.seal + self.mask


@dataclass(frozen=True)
class Shares:
    """The message of client u in step 1: for each v its two shares, sealed, and hashes that verify them."""

    sealed: dict[int, bytes]
    hashes: dict[int, tuple[bytes, bytes]]  # of the share of the seed, and of that of the key
    seed: bytes  # hash of b_u
    signature: bytes

    def signed(self, number: int, client: int) -> bytes:
        told = b"".join(_said(v) + b"".join(self.hashes[v]) for v in sorted(self.hashes))
        sealed = b"".join(_said(v) + self.sealed[v] for v in sorted(self.sealed))
        return b"shares" + _said(number, client) + told + sealed + self.seed


@dataclass(frozen=True)
class Opening:
    """Statement of u on the shares sealed for it. `accused`: the sender of shares that do not open; None: all opened.

    `secret`: of c_u, with which anybody sees who lies; zeros where nobody is accused.
    """

    accused: int | None
    secret: bytes
    signature: bytes

    def signed(self, number: int, client: int, shared: Collection[int]) -> bytes:
        """`shared`: all who shared their keys."""
        if self.accused is None:
            return _opened(number, shared)
        return b"accuses" + _said(number, client, self.accused) + self.secret


@dataclass(frozen=True)
class Opened:
    """The shares that client u reveals of its peers: of seeds, and of keys."""

    seeds: dict[int, bytes]
    keys: dict[int, bytes]


class Client:
    """One client's part in round `number`. Each method raises `SecureError`, after which it says nothing more."""

    def __init__(
        self,
        number: int,
        client: int,
        t: int,
        identity: Identity,
        known: Mapping[int, bytes],
        draw: Draw = secrets.token_bytes,
    ) -> None:
        """`known`: everybody's public key to verify signatures by. `draw`: random bytes."""
        self.number, self.client, self.t = number, client, t
        self._identity, self._known, self._draw = identity, known, draw
        self._seal, self._mask, self._seed = new_key(draw(KEY)), new_key(draw(KEY)), draw(KEY)
        self._keys: dict[int, Keys] = {}
        self._held: dict[int, tuple[bytes, bytes]] = {}  # of peers: shares of the seed and of the key
        self._step = 0

    def advertise(self) -> Keys:
        """Step 0"""
        self._next(0)
        keys = Keys(public_of(self._seal), public_of(self._mask), b"")
        return Keys(keys.seal, keys.mask, self._identity.sign(keys.signed(self.number, self.client)))

    def share(self, keys: Mapping[int, Keys]) -> Shares:
        """Makes the message of step 1. `keys`: of all clients that take part."""
        self._next(1)
        self._enough(keys, "advertised keys")
        if self.client not in keys:
            self._refuse("the server left out this client's own keys")
        for v, each in keys.items():
            self._verify(v, each.signed(self.number, v), each.signature, "keys")
        if len({key for each in keys.values() for key in (each.seal, each.mask)}) < 2 * len(keys):
            self._refuse("two of the advertised keys are the same")
        self._keys = dict(keys)
        order, below = sorted(keys), self._below
        of_seed = dict(zip(order, split(self._seed, self.t, len(order), below), strict=True))
        of_key = dict(zip(order, split(self._mask, self.t, len(order), below), strict=True))
        self._held[self.client] = of_seed[self.client], of_key[self.client]
        sealed = {
            v: encrypted(self._sealing(v), of_seed[v] + of_key[v], _said(self.number, self.client, v))
            for v in order
            if v != self.client
        }
        hashes = {v: (_hash(of_seed[v]), _hash(of_key[v])) for v in order}
        made = Shares(sealed, hashes, _hash(self._seed), b"")
        return Shares(sealed, hashes, made.seed, self._identity.sign(made.signed(self.number, self.client)))

    def open(self, sealed: Mapping[int, bytes], hashes: Mapping[int, tuple[bytes, bytes]]) -> Opening:
        """Makes the message of step 2. `sealed`: the shares sealed for this client, by peer. `hashes`: of these shares.

        A client that accuses says nothing more in this round.
        """
        self._next(2)
        self._enough({*sealed, self.client}, "shared their keys")
        for v, message in sealed.items():
            if v not in self._keys:
                self._refuse(f"client {v} has shares and no keys")
            own = _unsealed(self._sealing(v), message, self.number, v, self.client)
            if own is None or (_hash(own[0]), _hash(own[1])) != hashes.get(v):
                self._step = -1
                accusation = Opening(v, self._seal, b"")
                return self._signed(accusation, ())
            self._held[v] = own
        return self._signed(Opening(None, bytes(KEY), b""), self._held)

    def _signed(self, opening: Opening, shared: Collection[int]) -> Opening:
        signature = self._identity.sign(opening.signed(self.number, self.client, shared))
        return Opening(opening.accused, opening.secret, signature)

    def mask(self, x: Ring, opened: Mapping[int, bytes]) -> Ring:
        """Step 3: [d] -> [d]. `opened`: by client, its signature that it could open all shares."""
        self._next(3)
        self._enough(opened.keys() & self._held.keys(), "opened their shares")
        for v, signature in opened.items():
            self._verify(v, _opened(self.number, self._held), signature, "word that it could open all shares")
        # y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)
        return x + stream(self._seed, b"self" + _said(self.number, self.client), len(x)) + self.between(len(x))

    def between(self, d: int) -> Ring:
        """sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv): [d]. The sum of these over all clients is 0."""
        total = np.zeros(d, dtype=np.uint64)
        for v in sorted(self._held.keys() - {self.client}):
            mask = self._between(v, d)
            total = total + mask if v > self.client else total - mask
        return total

    def check(self, masked: Collection[int]) -> bytes:
        """Makes the message of step 4: a signature of `masked`, the clients that sent a vector, as the server says."""
        self._next(4)
        self._enough(masked, "sent a vector")
        if not {*masked} <= self._held.keys():
            self._refuse("the server says that one has sent a vector who shared no keys")
        self._masked = frozenset(masked)
        return self._identity.sign(_consistent(self.number, masked))

    def unmask(self, seeds: Collection[int], keys: Collection[int], signatures: Mapping[int, bytes]) -> Opened:
        """Step 5. The server asks for shares of the seeds of some, and of the keys of others."""
        self._next(5)
        if both := {*seeds} & {*keys}:
            self._refuse(f"the server asks for both shares of client {min(both)}, which would give its vector away")
        if {*seeds} != self._masked or {*keys} != self._held.keys() - self._masked:
            self._refuse("the server asks for other shares than of the seeds of those who sent a vector, and no others")
        self._enough({*signatures} & self._masked, "signed who has sent a vector")
        for v, signature in signatures.items():
            self._verify(v, _consistent(self.number, self._masked), signature, "list of those who sent a vector")
        return Opened({v: self._held[v][0] for v in seeds}, {v: self._held[v][1] for v in keys})

    def _next(self, step: int) -> None:
        if step != self._step:
            self._refuse(f"a message of step {step} came in step {self._step}: it was sent twice, or out of turn")
        self._step += 1

    def _enough(self, who: Collection[int], what: str) -> None:
        if len(who) < self.t:
            self._refuse(f"{len(who)} clients have {what}, and {self.t} must")

    def _verify(self, v: int, message: bytes, signature: bytes, what: str) -> None:
        if v not in self._known or not verified(self._known[v], message, signature):
            self._refuse(f"the {what} of client {v} were not signed by it for round {self.number}")

    def _refuse(self, why: str) -> NoReturn:
        self._step = -1
        raise SecureError(f"round {self.number}, client {self.client}: {why}")

    def _sealing(self, v: int) -> bytes:
        low, high = sorted((self.client, v))
        try:
            return agreed(self._seal, self._keys[v].seal, b"seal" + _said(self.number, low, high))
        except ValueError:
            self._refuse(f"the keys of client {v} agree with nobody's")

    def _between(self, v: int, d: int) -> Ring:
        try:
            return pairwise(self._mask, self._keys[v].mask, self.number, self.client, v, d)
        except ValueError:
            self._refuse(f"the keys of client {v} agree with nobody's")

    def _below(self, most: int) -> int:
        return int.from_bytes(self._draw(SHARE + 16)) % most  # 128 bits more: as good as uniform


class Server:
    """The server's part in round `number`. It keeps what it was sent; each method raises `SecureError`."""

    def __init__(self, number: int, t: int, known: Mapping[int, bytes]) -> None:
        self.number, self.t, self._known = number, t, known
        self.keys: dict[int, Keys] = {}
        self.shares: dict[int, Shares] = {}
        self.sound: dict[int, bytes] = {}  # by client, its signature that it could open all shares
        self._sum: Ring | None = None
        self.masked: set[int] = set()
        self._signatures: dict[int, bytes] = {}
        self._opened: dict[int, Opened] = {}

    def advertised(self, client: int, keys: Keys) -> None:
        self._once(client, self.keys)
        self._verify(client, keys.signed(self.number, client), keys.signature, "keys")
        for key in (keys.seal, keys.mask):
            if not _agrees(key):
                raise SecureError(f"round {self.number}: the keys of client {client} agree with nobody's")
            if (other := next((v for v, its in self.keys.items() if key in (its.seal, its.mask)), None)) is not None:
                raise SecureError(f"round {self.number}: clients {other} and {client} advertise the same key")
        if keys.seal == keys.mask:
            raise SecureError(f"round {self.number}: client {client} advertises the same key twice")
        self.keys[client] = keys

    def shared(self, client: int, shares: Shares) -> None:
        self._once(client, self.shares)
        self._verify(client, shares.signed(self.number, client), shares.signature, "shares")
        if shares.hashes.keys() != self.keys.keys() or shares.sealed.keys() != self.keys.keys() - {client}:
            raise SecureError(f"round {self.number}: client {client} did not share its keys with all")
        self.shares[client] = shares

    def for_client(self, client: int) -> tuple[dict[int, bytes], dict[int, tuple[bytes, bytes]]]:
        """Returns the arguments of `Client.open`."""
        peers = [v for v in self.shares if v != client]
        return {v: self.shares[v].sealed[client] for v in peers}, {v: self.shares[v].hashes[client] for v in peers}

    def found(self, client: int, opening: Opening) -> None:
        """Takes this client's statement on the shares sealed for it. An accusation ends the run with the name of
        whoever sealed the shares, or whoever accuses falsely.
        """
        self._once(client, self.sound)
        self._verify(client, opening.signed(self.number, client, self.shares), opening.signature, "word on its shares")
        if opening.accused is None:
            self.sound[client] = opening.signature
            return
        u, falsely = opening.accused, f"client {client} falsely accuses client {opening.accused}"
        if u == client or u not in self.shares or public_of(opening.secret) != self.keys[client].seal:
            raise SecureError(f"round {self.number}: {falsely}: its proof is none")
        key = agreed(opening.secret, self.keys[u].seal, b"seal" + _said(self.number, *sorted((client, u))))
        shares = _unsealed(key, self.shares[u].sealed[client], self.number, u, client)
        if shares is not None and (_hash(shares[0]), _hash(shares[1])) == self.shares[u].hashes[client]:
            raise SecureError(f"round {self.number}: {falsely}: its shares can be opened")
        raise SecureError(
            f"round {self.number}: client {u} sealed shares for client {client} that are not those that it signed the "
            f"hashes of, as client {client} has proved"
        )

    def receive(self, client: int, y: Ring) -> None:
        self._once(client, self.masked)
        if client not in self.sound:
            raise SecureError(f"round {self.number}: client {client} sent a vector and has not opened its shares")
        self._sum = y.copy() if self._sum is None else self._sum + y
        self.masked.add(client)

    def checked(self, client: int, signature: bytes) -> None:
        self._once(client, self._signatures)
        self._verify(client, _consistent(self.number, self.masked), signature, "list of those who sent a vector")
        self._signatures[client] = signature

    def asks(self) -> tuple[set[int], set[int], dict[int, bytes]]:
        """Returns the arguments of `Client.unmask`: never both shares of one client."""
        self.enough(self.masked, "sent a vector")
        self.enough(self._signatures, "signed who has sent a vector")
        return {*self.masked}, self.shares.keys() - self.masked, dict(self._signatures)

    def opened(self, client: int, opened: Opened) -> None:
        self._once(client, self._opened)
        asked = self.masked, self.shares.keys() - self.masked
        for place, (got, of) in enumerate(zip((opened.seeds, opened.keys), asked, strict=True)):
            if got.keys() != of:
                raise SecureError(f"round {self.number}: client {client} gave other shares than it was asked for")
            for v, share in got.items():
                if _hash(share) != self.shares[v].hashes[client][place]:
                    raise SecureError(
                        f"round {self.number}: client {client} gave a share of client {v} that was tampered with"
                    )
        self._opened[client] = opened

    def total(self) -> tuple[Ring, frozenset[int]]:
        """Returns the sum of the vectors of the clients that sent one, [d], and these clients."""
        self.enough(self._opened, "given their shares")
        assert self._sum is not None
        total, d = self._sum, len(self._sum)
        place = {v: x for x, v in enumerate(sorted(self.keys), 1)}
        givers = sorted(self._opened)[: self.t]
        for u in sorted(self.masked):
            seed = self._joined(u, {place[v]: self._opened[v].seeds[u] for v in givers}, "seed")
            if _hash(seed) != self.shares[u].seed:
                raise SecureError(f"round {self.number}: the shares of client {u}'s seed are not of the seed")
            total = total - stream(seed, b"self" + _said(self.number, u), d)
        for gone in sorted(self.shares.keys() - self.masked):
            key = self._joined(gone, {place[v]: self._opened[v].keys[gone] for v in givers}, "key")
            if public_of(key) != self.keys[gone].mask:
                raise SecureError(f"round {self.number}: the shares of client {gone}'s key are not of the key")
            for u in self.masked:  # what u has added for the one who is gone
                between = pairwise(key, self.keys[u].mask, self.number, gone, u, d)
                total = total - between if gone > u else total + between
        return total, frozenset(self.masked)

    def _joined(self, client: int, shares: dict[int, bytes], what: str) -> bytes:
        try:
            return join(shares)
        except ValueError:
            raise SecureError(f"round {self.number}: the shares of client {client}'s {what} are of none") from None

    @property
    def signed(self) -> Collection[int]:
        return self._signatures

    @property
    def given(self) -> Collection[int]:
        """Returns the clients that have revealed their shares of others."""
        return self._opened

    def enough(self, who: Collection[int], what: str) -> None:
        if len(who) < self.t:
            raise SecureError(f"round {self.number}: {len(who)} clients have {what}, and {self.t} must")

    def _once(self, client: int, found: Collection[int]) -> None:
        if client in found:
            raise SecureError(f"round {self.number}: client {client} sent the same twice")

    def _verify(self, client: int, message: bytes, signature: bytes, what: str) -> None:
        if client not in self._known or not verified(self._known[client], message, signature):
            raise SecureError(
                f"round {self.number}: the {what} of client {client} were not signed by it for this round"
            )


def pairwise(own: bytes, peer: bytes, number: int, u: int, v: int, d: int) -> Ring:
    """PRG(s_uv), the same for both: by the secret key of one and the public key of the other."""
    low, high = sorted((u, v))
    return stream(agreed(own, peer, b"mask" + _said(number, low, high)), b"pair", d)


def _agrees(public: bytes) -> bool:
    """Returns True unless the public key is of small order."""
    try:
        agreed(new_key(bytes(KEY - 1) + b"1"), public, b"probe")
    except ValueError:
        return False
    return True


def _unsealed(key: bytes, message: bytes, number: int, sender: int, receiver: int) -> tuple[bytes, bytes] | None:
    """The shares of a seed and of a key, which `sender` sealed; None where that was not so."""
    plain = decrypted(key, message, _said(number, sender, receiver))
    return None if plain is None or len(plain) != 2 * SHARE else (plain[:SHARE], plain[SHARE:])


def _opened(number: int, shared: Collection[int]) -> bytes:
    return b"opened" + _said(number, *sorted(shared))


def _consistent(number: int, masked: Collection[int]) -> bytes:
    return b"check" + _said(number, *sorted(masked))


def _said(*numbers: int) -> bytes:
    return np.array(numbers, dtype="<i8").tobytes()


def _hash(data: bytes) -> bytes:
    return sha256(data).digest()


def client_bytes(n: int, d: int) -> int:
    """Returns the bytes that a client sends in a round of n clients in which nobody vanishes, for d numbers."""
    keys = 2 * KEY + SIGNATURE
    shares = (n - 1) * SEALED + n * 2 * HASH + HASH + SIGNATURE
    opening = WIDTH + KEY + SIGNATURE
    return keys + shares + opening + WIDTH * d + SIGNATURE + n * SHARE
