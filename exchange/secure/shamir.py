"""Secrets in shares (Shamir 1979, "How to Share a Secret", CACM 22(11)): any t of n give the secret, fewer say nothing.

A polynomial of degree t - 1 over the integers modulo the prime P = 2^521 - 1 has the secret at 0 and random
coefficients; share x is its value at x = 1, ..., n. A secret has 32 bytes, which is less than P.
"""

import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache

P = 2**521 - 1
SHARE = 66  # bytes
SECRET = 32  # bytes

Draw = Callable[[int], int]  # a number below the one given


def split(secret: bytes, t: int, n: int, draw: Draw = secrets.randbelow) -> list[bytes]:
    """Shares 1 to n."""
    assert len(secret) == SECRET and 1 <= t <= n < P
    coefficients = [int.from_bytes(secret), *(draw(P) for _ in range(t - 1))]
    return [_value(coefficients, x).to_bytes(SHARE) for x in range(1, n + 1)]


def _value(coefficients: list[int], x: int) -> int:
    value = 0
    for a in reversed(coefficients):
        value = (value * x + a) % P
    return value


def join(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret of t shares, by x. Raises `ValueError` if they have none: too few, or tampered with."""
    at_0 = _lagrange(tuple(sorted(shares)))
    # f(0) = sum_i f(x_i) prod_{j != i} x_j / (x_j - x_i)
    secret = sum(int.from_bytes(shares[x]) * each for x, each in at_0.items()) % P
    return secret.to_bytes(SECRET) if secret < 1 << 8 * SECRET else _none()


def _none() -> bytes:
    raise ValueError("these are no shares of a secret")


@lru_cache(maxsize=64)
def _lagrange(places: tuple[int, ...]) -> dict[int, int]:
    found: dict[int, int] = {}
    for i in places:
        above, below = 1, 1
        for j in places:
            if j != i:
                above, below = above * j % P, below * (j - i) % P
        found[i] = above * pow(below, -1, P) % P
    return found
