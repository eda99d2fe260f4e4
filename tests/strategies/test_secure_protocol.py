"""Secure aggregation by itself: clients and a server as objects, their messages handed on by hand."""

import random
import time
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline.exchange.secure.fixed_point import FixedPoint
from paceline.exchange.secure.primitives import Identity, agreed, public_of, stream
from paceline.exchange.secure.protocol import (
    Client,
    Opened,
    Opening,
    SecureError,
    Server,
    Shares,
    _consistent,
    client_bytes,
)
from paceline.exchange.secure.shamir import SECRET, SHARE, join, split
from paceline.strategies.core.errors import NotFiniteError

slow = pytest.mark.slow


# -- shares


@given(st.binary(min_size=SECRET, max_size=SECRET), st.integers(1, 6), st.integers(0, 4), st.randoms())
def test_any_t_shares_give_the_secret(secret: bytes, t: int, more: int, order: random.Random) -> None:
    shares = dict(enumerate(split(secret, t, t + more), 1))
    assert join({x: shares[x] for x in order.sample(sorted(shares), t)}) == secret


def test_fewer_shares_say_nothing_and_a_tampered_one_gives_no_secret() -> None:
    shares = dict(enumerate(split(bytes(32), 3, 5), 1))
    for wrong in ({1: shares[1], 2: shares[2]}, {1: shares[1], 2: shares[2], 3: shares[4]}):
        with pytest.raises(ValueError, match="no shares of a secret"):
            join(wrong)


def test_a_share_alone_fits_every_secret() -> None:
    """Of two that give the secret: for each secret there is a coefficient with which the first share is this one."""
    secret, share = int.from_bytes(b"a" * SECRET), (7).to_bytes(SHARE)
    for other in (secret, 0, 2**255 + 1):
        shares = split(other.to_bytes(SECRET), 2, 3, lambda most, other=other: (7 - other) % most)
        assert shares[0] == share and join({1: shares[0], 3: shares[2]}) == other.to_bytes(SECRET)


# -- numbers


def test_numbers_are_rounded_clipped_weighed_and_summed_exactly() -> None:
    fixed = FixedPoint(bits=8, largest=2.0)
    x, y = torch.tensor([1.5, -0.501, 5.0, -7.0]), torch.tensor([-3.0, 0.25, 0.0, 1.0])
    total = fixed.encode(x, 3) + fixed.encode(y, 2)
    expected = [(3 * 384 - 2 * 512), 3 * -128 + 2 * 64, 3 * 512, 3 * -512 + 2 * 256]
    assert total.view(np.int64).tolist() == expected
    assert fixed.decode(total, 5).tolist() == [each / 256 / 5 for each in expected]
    assert fixed.most() * 512 < 2**63 <= (fixed.most() + 1) * 512


# -- a round


class World:
    """n clients with vectors [d], seeded; `round` hands messages on until the sum."""

    def __init__(self, n: int, t: int, d: int = 50, number: int = 3, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        draw = rng.bytes
        identities = {u: Identity(draw(32)) for u in range(n)}
        known = {u: each.public for u, each in identities.items()}
        self.clients = {u: Client(number, u, t, identities[u], known, draw) for u in range(n)}
        self.server = Server(number, t, known)
        self.x = {u: rng.integers(0, 2**64, d, dtype=np.uint64) for u in range(n)}
        self.seconds = dict.fromkeys(range(n), 0.0)
        self.sent = dict.fromkeys(range(n), 0)
        self.going = set(range(n))

    def advertise(self) -> None:
        for u in sorted(self.going):
            self.server.advertised(u, self.timed(u, self.clients[u].advertise))

    def share(self) -> None:
        for u in sorted(self.going):
            self.server.shared(u, self.timed(u, self.clients[u].share, self.server.keys))

    def open(self) -> None:
        for u in sorted(self.going):
            self.server.found(u, self.timed(u, self.clients[u].open, *self.server.for_client(u)))

    def mask(self) -> None:
        for u in sorted(self.going):
            self.server.receive(u, self.timed(u, self.clients[u].mask, self.x[u], self.server.sound))

    def check(self) -> None:
        for u in sorted(self.going):
            self.server.checked(u, self.timed(u, self.clients[u].check, self.server.masked))

    def unmask(self) -> None:
        asks = self.server.asks()
        for u in sorted(self.going):
            self.server.opened(u, self.timed(u, self.clients[u].unmask, *asks))

    def timed(self, u: int, step, *given):
        began = time.perf_counter()
        made = step(*given)
        self.seconds[u] += time.perf_counter() - began
        self.sent[u] += size_of(made)
        return made

    def vanish(self, *who: int) -> None:
        self.going -= {*who}

    def plain(self, who: Collection[int]) -> np.ndarray:
        return sum((self.x[u] for u in who), start=np.zeros_like(self.x[0]))


def size_of(message) -> int:
    if isinstance(message, bytes):
        return len(message)
    if isinstance(message, np.ndarray):
        return message.nbytes
    if isinstance(message, dict):
        return sum(map(size_of, message.values()))
    if message is None or isinstance(message, int):
        return 8
    if isinstance(message, tuple):
        return sum(map(size_of, message))
    return sum(map(size_of, vars(message).values()))


STEPS = ("advertise", "share", "open", "mask", "check", "unmask")


def through(world: World, vanish: dict[str, Collection[int]]) -> tuple[np.ndarray, frozenset[int]]:
    """`vanish`: who is gone before a step."""
    for step in STEPS:
        world.vanish(*vanish.get(step, ()))
        getattr(world, step)()
    return world.server.total()


@pytest.mark.parametrize(
    "vanish",
    [
        {},
        {"advertise": [1]},
        {"share": [0]},
        {"mask": [2, 5]},
        {"check": [0]},
        {"unmask": [6]},
        {"share": [3], "mask": [0], "unmask": [5]},
    ],
    ids=str,
)
def test_the_sum_is_that_of_all_who_sent_a_vector_bit_for_bit(vanish) -> None:
    world = World(7, 4)
    total, who = through(world, vanish)
    gone = {u for step in STEPS[: STEPS.index("mask") + 1] for u in vanish.get(step, ())}
    assert who == frozenset(range(7)) - gone
    assert np.array_equal(total, world.plain(who))


@pytest.mark.parametrize("step", STEPS)
def test_fewer_than_t_end_the_round_by_name(step: str) -> None:
    with pytest.raises(SecureError, match=r"round 3.*: 3 clients have .*, and 4 must"):
        through(World(7, 4), {step: [0, 2, 4, 6]})


def test_a_masked_vector_is_uniform_and_two_rounds_have_nothing_in_common() -> None:
    seen = []
    for number in (1, 2):
        world = World(5, 3, d=20_000, number=number)
        world.x = {u: np.zeros(20_000, dtype=np.uint64) for u in range(5)}
        world.advertise()
        world.share()
        world.open()
        seen.append(world.clients[2].mask(world.x[2], world.server.sound))
    for y in seen:
        assert stats.kstest(y.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-3
        counts = np.bincount(y.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-3
        ones = np.unpackbits(y.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 4 * 0.5 / np.sqrt(8 * y.nbytes)
    assert abs(np.corrcoef(seen[0].astype(float), seen[1].astype(float))[0, 1]) < 4 / np.sqrt(20_000)


def test_no_mask_but_all_together_gives_a_vector_away() -> None:
    """What is left of two clients' masked vectors is more than the sum of both, where a third has masked, too."""
    world = World(4, 3)
    world.advertise()
    world.share()
    world.open()
    masked = [world.clients[u].mask(world.x[u], world.server.sound) for u in range(4)]
    assert all(not np.any(y == world.x[u]) for u, y in enumerate(masked))
    assert not np.any(masked[0] + masked[1] == world.x[0] + world.x[1])


# -- who breaks the rules


def before_unmask() -> World:
    world = World(5, 3)
    world.advertise()
    world.share()
    world.open()
    world.vanish(4)
    world.mask()
    world.check()
    return world


def test_no_client_gives_both_shares_of_a_peer_and_the_server_never_asks_for_them() -> None:
    world = before_unmask()
    seeds, keys, signatures = world.server.asks()
    assert not seeds & keys and (seeds, keys) == ({0, 1, 2, 3}, {4})
    with pytest.raises(SecureError, match="client 0: the server asks for both shares of client 4, which would give"):
        world.clients[0].unmask({*seeds, 4}, keys, signatures)
    with pytest.raises(SecureError, match="out of turn"):
        world.clients[0].unmask(seeds, keys, signatures)  # it says nothing more
    for wrong in (({0, 1, 2}, {3, 4}), ({0, 1, 2, 3}, set()), ({0, 1, 2, 3, 4}, set())):
        other = before_unmask()
        with pytest.raises(SecureError, match="asks for other shares than"):
            other.clients[1].unmask(*wrong, other.server.asks()[2])


def test_a_server_that_tells_clients_different_lists_is_found_out() -> None:
    world = World(5, 3)
    world.advertise()
    world.share()
    world.open()
    world.mask()
    honest = {u: world.clients[u].check({0, 1, 2, 3}) for u in range(3)}
    deceived = {3: world.clients[3].check({0, 1, 2, 3, 4})}
    with pytest.raises(SecureError, match="client 3: the list of those who sent a vector of client 0 were not signed"):
        world.clients[3].unmask({0, 1, 2, 3, 4}, set(), honest | deceived)


@pytest.mark.parametrize(("helpers", "refuse"), [(2, True), (3, False)])
def test_a_server_that_lies_gets_both_shares_of_a_peer_with_2t_minus_n_clients_and_not_with_fewer(
    helpers: int, refuse: bool
) -> None:
    """It tells some honest clients that `victim` has sent a vector, and others that it is gone; helpers sign both."""
    n, t, victim = 5, 4, 0
    world = World(n, t)
    for step in STEPS[:4]:
        getattr(world, step)()
    honest, everyone = range(n - helpers), frozenset(range(n))
    seeds = keys = helpers  # the shares of the victim's that the server has
    for group, told in ((honest[: t - helpers], everyone), (honest[t - helpers :], everyone - {victim})):
        signed = {u: world.clients[u].check(told) for u in group}
        signed |= {u: world.clients[u]._identity.sign(_consistent(3, told)) for u in range(n - helpers, n)}
        for u in group:
            try:
                opened = world.clients[u].unmask(told, everyone - told, signed)
            except SecureError as error:
                assert "3 clients have signed who has sent a vector, and 4 must" in str(error)
            else:
                seeds, keys = seeds + (victim in opened.seeds), keys + (victim in opened.keys)
    assert seeds == t and (keys < t) == refuse


def test_what_was_tampered_with_is_refused_by_name() -> None:
    world = World(4, 3)
    world.advertise()
    wrong = replace(world.server.keys[1], mask=bytes(32))
    with pytest.raises(SecureError, match="client 2: the keys of client 1 were not signed by it for round 3"):
        world.clients[2].share({**world.server.keys, 1: wrong})
    with pytest.raises(SecureError, match="the keys of client 1 were not signed by it for this round"):
        Server(3, 3, {1: bytes(world.server._known[1])}).advertised(1, wrong)


def spoilt(world: World, liar: int, how: str, victims: Collection[int]) -> Shares:
    """Messages of `liar` in step 1: shares that `victims` cannot open, or whose hashes are others; signed by it."""
    shares = world.clients[liar].share(world.server.keys)
    sealed, hashes = dict(shares.sealed), dict(shares.hashes)
    for v in victims:
        if how == "ciphertext":
            sealed[v] = bytes([sealed[v][0] ^ 1]) + sealed[v][1:]
        elif how == "hash":
            hashes[v] = hashes[v][0], bytes(32)
        else:  # sealed well, for somebody else
            sealed[v] = sealed[(v + 1) % 4 if (v + 1) % 4 != liar else (v + 2) % 4]
    made = Shares(sealed, hashes, shares.seed, b"")
    return replace(made, signature=world.clients[liar]._identity.sign(made.signed(3, liar)))


@pytest.mark.parametrize("how", ["ciphertext", "hash", "another client's"])
@pytest.mark.parametrize("victims", [(1,), (1, 2, 3)])
def test_whoever_seals_spoilt_shares_is_named_by_a_proof_and_no_vector_was_masked(how: str, victims) -> None:
    world = World(4, 3)
    world.advertise()
    for u in range(4):
        world.server.shared(u, spoilt(world, 0, how, victims) if u == 0 else world.clients[u].share(world.server.keys))
    opening = world.clients[1].open(*world.server.for_client(1))
    assert opening.accused == 0
    with pytest.raises(SecureError, match=r"client 0 sealed shares for client 1 .* client 1 has proved"):
        world.server.found(1, opening)
    with pytest.raises(SecureError, match="out of turn"):  # it says nothing more
        world.clients[1].mask(world.x[1], world.server.sound)


def accusation(world: World, by: int, of: int, secret: bytes) -> Opening:
    opening = Opening(of, secret, b"")
    return replace(opening, signature=world.clients[by]._identity.sign(opening.signed(3, by, ())))


def test_whoever_accuses_falsely_is_named() -> None:
    world = World_after_sharing()
    true = world.clients[2]._seal
    for of, secret, says in (
        (0, true, "shares can be opened"),
        (0, bytes(32), "proof is none"),
        (2, true, "proof is n"),
    ):
        with pytest.raises(SecureError, match=f"client 2 falsely accuses client {of}: its {says}"):
            world.server.found(2, accusation(world, 2, of, secret))
    with pytest.raises(SecureError, match="client 2 falsely accuses client 9"):
        world.server.found(2, accusation(world, 2, 9, true))
    with pytest.raises(SecureError, match="the word on its shares of client 1 were not signed by it"):
        world.server.found(1, accusation(world, 2, 0, true))


def test_what_the_server_changes_on_its_way_is_no_proof_against_its_sender() -> None:
    """It has the signed ciphertext, and so has whoever is shown the proof."""
    world = World_after_sharing()
    sealed, hashes = world.server.for_client(1)
    flipped = bytes([sealed[0][0] ^ 1]) + sealed[0][1:]
    with pytest.raises(SecureError, match="client 1 falsely accuses client 0"):
        world.server.found(1, world.clients[1].open({**sealed, 0: flipped}, hashes))
    shares = world.server.shares[0]
    spoilt = replace(shares, sealed={**shares.sealed, 1: flipped})
    with pytest.raises(SecureError, match="the shares of client 0 were not signed"):
        another = World_after_sharing().server
        del another.shares[0]
        another.shared(0, spoilt)


def test_nobody_masks_a_vector_before_t_clients_have_opened_their_shares() -> None:
    world = World_after_sharing()
    for u in range(4):
        world.server.found(u, world.clients[u].open(*world.server.for_client(u)))
    two = {u: world.server.sound[u] for u in (0, 1)}
    with pytest.raises(SecureError, match="2 clients have opened their shares, and 3 must"):
        world.clients[0].mask(world.x[0], two)
    with pytest.raises(SecureError, match="word that it could open all shares of client 3 were not signed"):
        world.clients[1].mask(world.x[1], {**world.server.sound, 3: world.server.sound[0]})


def test_two_keys_that_are_the_same_are_refused() -> None:
    """A client that signs another one's keys as its own would have that one mask twice with the same numbers."""
    world = World(4, 3)
    world.advertise()
    copied = replace(world.server.keys[1], signature=b"")
    signature = world.clients[2]._identity.sign(copied.signed(3, 2))
    with pytest.raises(SecureError, match="client 0: two of the advertised keys are the same"):
        world.clients[0].share({**world.server.keys, 2: replace(copied, signature=signature)})
    del world.server.keys[2]
    with pytest.raises(SecureError, match="clients 1 and 2 advertise the same key"):
        world.server.advertised(2, replace(copied, signature=signature))


def test_what_is_derived_for_one_purpose_is_nothing_like_that_for_another() -> None:
    own, peer = bytes(range(32)), bytes(range(32, 64))
    assert agreed(own, public_of(peer), b"mask") == agreed(peer, public_of(own), b"mask")
    assert agreed(own, public_of(peer), b"mask") != agreed(own, public_of(peer), b"seal")
    assert not np.any(stream(own, b"self", 50) == stream(own, b"pair", 50))


def World_after_sharing() -> World:
    world = World(4, 3)
    world.advertise()
    world.share()
    return world


@pytest.mark.parametrize("which", ["seal", "mask"])
def test_a_key_that_agrees_with_none_is_refused_with_whose_it_is(which: str) -> None:
    """A point of small order, which X25519 refuses; its owner has signed it."""
    world = World(4, 3)
    world.advertise()
    keys = replace(world.server.keys[2], **{which: bytes(32)})
    signed_keys = replace(keys, signature=world.clients[2]._identity.sign(keys.signed(3, 2)))
    told = {**world.server.keys, 2: signed_keys}
    with pytest.raises(SecureError, match="round 3, client 0: the keys of client 2 agree with nobody's"):
        shares = {u: world.clients[u].share(told) for u in range(4)}
        peers = shares.keys() - {0}
        sealed, hashes = {v: shares[v].sealed[0] for v in peers}, {v: shares[v].hashes[0] for v in peers}
        world.clients[0].open(sealed, hashes)
        signed = {
            v: world.clients[v]
            .open(
                {u: shares[u].sealed[v] for u in shares.keys() - {v}},
                {u: shares[u].hashes[v] for u in shares.keys() - {v}},
            )
            .signature
            for v in range(1, 4)
        }
        world.clients[0].mask(world.x[0], signed)
    with pytest.raises(SecureError, match="round 3: the keys of client 2 agree with nobody's"):
        Server(3, 3, world.server._known).advertised(2, signed_keys)


def test_a_share_that_a_client_gives_wrongly_is_named_with_who_gave_it() -> None:
    world = before_unmask()
    opened = world.clients[2].unmask(*world.server.asks())
    wrong = Opened({**opened.seeds, 1: opened.seeds[0]}, opened.keys)
    with pytest.raises(SecureError, match="client 2 gave a share of client 1 that was tampered with"):
        world.server.opened(2, wrong)
    with pytest.raises(SecureError, match="client 2 gave other shares than it was asked for"):
        world.server.opened(2, Opened(opened.seeds, {}))


def test_replays_are_refused_by_name() -> None:
    earlier, now = World(4, 3, number=3), World(4, 3, number=4)
    earlier.advertise()
    with pytest.raises(SecureError, match="round 4: the keys of client 1 were not signed by it for this round"):
        now.server.advertised(1, earlier.server.keys[1])
    now.advertise()
    with pytest.raises(SecureError, match="round 4: client 1 sent the same twice"):
        now.server.advertised(1, now.server.keys[1])
    now.clients[0].share(now.server.keys)
    with pytest.raises(SecureError, match="a message of step 1 came in step 2: it was sent twice, or out of turn"):
        now.clients[0].share(now.server.keys)


def test_a_vector_that_came_late_cannot_be_opened_with_what_was_asked_for_another_list() -> None:
    world = before_unmask()
    late = World_after_sharing()
    assert world.server.masked == {0, 1, 2, 3}
    with pytest.raises(SecureError, match="client 0 sent the same twice"):
        world.server.receive(0, late.x[0])


# -- what it costs


@slow
@pytest.mark.timeout(300)
def test_64_clients_of_whom_30_percent_vanish_sum_100000_numbers(record_property) -> None:
    """Prints what it costs; `python -m benchmarks.secure` has the table by clients and by how many vanish."""
    n, d = 64, 100_000
    world = World(n, 43, d)
    began = time.perf_counter()
    total, who = through(world, {"mask": range(0, 20, 2), "check": range(1, 19, 2)})
    assert len(who) == n - 10 and np.array_equal(total, world.plain(who))
    all_of_it, one = time.perf_counter() - began, 63
    print(
        f"\n{n} clients, 19 vanish, {d:,} numbers: a client sends {world.sent[one]:,} bytes ({8 * d:,} of them its "
        f"vector) and computes {world.seconds[one]:.3f} s; the server computes "
        f"{all_of_it - sum(world.seconds.values()):.2f} s"
    )


@pytest.mark.parametrize("n", [3, 6])
def test_a_client_sends_the_stated_bytes(n: int) -> None:
    world = World(n, 2, d=10)
    through(world, {})
    assert set(world.sent.values()) == {client_bytes(n, 10)}


def test_what_is_not_finite_is_refused_before_it_is_masked() -> None:
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        FixedPoint().encode(torch.tensor([1.0, float("nan")]), 1)


def test_what_is_cut_or_rounded_to_nothing_is_counted_and_zeros_are_not() -> None:
    fixed = FixedPoint(bits=2, largest=2.0)
    x = torch.tensor([0.0, 0.1, -0.1, 0.125, 0.13, -2.0, 2.1, -5.0])
    assert fixed.lost(x) == (7, 5), "0.125 is half of the last place, and rounds to even"
    assert [bool(each) for each in fixed.encode(x[:5], 1)] == [False, False, False, False, True]
