"""Clients of secure sums that break the protocol: `secure={_target_: lying_clients.ByzantineWorker, act: ...}`."""

import os
import signal
from dataclasses import replace
from typing import Any, ClassVar

from paceline.exchange.secure import bonawitz
from paceline.exchange.secure.bonawitz import Bonawitz, _keys, _packed_keys, _packed_opening, _packed_shares
from paceline.exchange.secure.protocol import Client, Opening
from paceline.exchange.secure.shamir import SHARE

KEYS, SHARES, OPENING, VECTOR, SIGNATURE, OPENED = range(1, 7)  # the how manieth thing that a client says
ROUND = 1

# act -> which message it spoils, and what the last line of the run says beside the liar's name
ACTS = {
    "keys spoilt": (KEYS, "were not signed by it for this round"),
    "keys of zeros": (KEYS, "agree with nobody's"),
    "keys of the round before": (KEYS, "were not signed by it for this round"),
    "the same key twice": (KEYS, "advertises the same key twice"),
    "a share spoilt": (SHARES, "were not signed by it for this round"),
    "a share spoilt and signed": (SHARES, "are not those that it signed the hashes of"),
    "all shares spoilt and signed": (SHARES, "are not those that it signed the hashes of"),
    "a hash spoilt and signed": (SHARES, "are not those that it signed the hashes of"),
    "shares cut short": (SHARES, "where"),
    "a false accusation": (OPENING, "falsely accuses client 0: its shares can be opened"),
    "an accusation without proof": (OPENING, "falsely accuses client 0: its proof is none"),
    "an accusation that is not signed": (OPENING, "were not signed by it for this round"),
    "a vector cut short": (VECTOR, "where"),
    "a vector too long": (VECTOR, "where"),
    "a signature spoilt": (SIGNATURE, "were not signed by it for this round"),
    "an opened share spoilt": (OPENED, "that was tampered with"),
    "an opened share for another": (OPENED, "that was tampered with"),
    "opened shares cut short": (OPENED, "where"),
    "keys sent twice": (KEYS, "where"),
}
# Acts that spoil the sum, and nobody can tell whose: the last line of the run says this
UNNAMED = {
    "a vector of the round before": (VECTOR, "more than its clients can have"),
    "a vector of zeros": (VECTOR, "more than its clients can have"),
}
LIAR = 1


class _Kept(Client):
    """The clients of this process, by number."""

    last: ClassVar[dict[int, Client]] = {}

    def __init__(self, number: int, client: int, *given: Any, **named: Any) -> None:
        super().__init__(number, client, *given, **named)
        self.last[client] = self


class ByzantineWorker(Bonawitz):
    def __init__(self, act: str = "", threshold: float = 0.6) -> None:
        super().__init__(threshold=threshold)
        self.act, self.said = act, 0
        self._before: dict[int, bytes] = {}  # by which message it is, in the round before
        bonawitz.Client = _Kept

    def deliver(self, way: Any, samples: int, number: int, sampled: int) -> None:
        self.number, self.said = number, 0
        super().deliver(way, samples, number, sampled)

    def _say(self, data: bytes) -> None:
        self.said += 1
        if self._comm.rank == LIAR and self.number >= ROUND and self.said == (ACTS | UNNAMED)[self.act][0]:
            data = self._spoilt(data)
        else:
            self._before[self.said] = data
        super()._say(data)

    def _spoilt(self, data: bytes) -> bytes:
        flipped = bytes([data[0] ^ 1]) + data[1:]
        match self.act:
            case "keys of the round before" | "a vector of the round before":
                return self._before[self.said]
            case "a vector of zeros":
                return bytes(len(data))
            case "keys of zeros" | "the same key twice":
                keys = _keys(data)
                keys = replace(keys, mask=bytes(32) if self.act == "keys of zeros" else keys.seal)
                return _packed_keys(replace(keys, signature=self._identity.sign(keys.signed(self.number, LIAR))))
            case "a share spoilt and signed" | "all shares spoilt and signed" | "a hash spoilt and signed":
                return self._signed_shares(data)
            case "a false accusation" | "an accusation without proof":
                secret = _Kept.last[LIAR]._seal if self.act == "a false accusation" else bytes(32)
                opening = Opening(0, secret, b"")
                signed = self._identity.sign(opening.signed(self.number, LIAR, ()))
                return _packed_opening(replace(opening, signature=signed))
            case "an accusation that is not signed":
                return bytes(8) + data[8:]
            case "an opened share for another":
                return data[SHARE : 2 * SHARE] + data[:SHARE] + data[2 * SHARE :]
            case "keys sent twice":
                super()._say(data)
                return data
            case "a vector too long":
                return data + data
            case act if act.endswith("cut short"):
                return data[:-8]
        return flipped

    def _signed_shares(self, data: bytes) -> bytes:
        everyone = sorted(self._known)
        shares = bonawitz._shares(data, LIAR, everyone)
        victims = [v for v in everyone if v != LIAR]
        sealed, hashes = dict(shares.sealed), dict(shares.hashes)
        if self.act.startswith("a hash"):
            hashes[0] = bytes(32), hashes[0][1]
        for v in victims if self.act.startswith("all") else victims[:1]:
            if not self.act.startswith("a hash"):
                sealed[v] = bytes([sealed[v][0] ^ 1]) + sealed[v][1:]
        made = replace(shares, sealed=sealed, hashes=hashes)
        return _packed_shares(replace(made, signature=self._identity.sign(made.signed(self.number, LIAR))))


class Dying(ByzantineWorker):
    """Leaves like a client that is killed in the middle of a round."""

    def _spoilt(self, data: bytes) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return data
