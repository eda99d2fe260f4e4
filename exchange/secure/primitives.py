"""Cryptographic primitives of secure aggregation, all from the optional package `cryptography`."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from ...strategies.core.errors import MissingToolError
from .fixed_point import WIDTH, Ring

IS_THERE = find_spec("cryptography") is not None

if TYPE_CHECKING or IS_THERE:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def check_there() -> None:
    """Checks that `cryptography` is installed. Raises `MissingToolError`."""
    if not IS_THERE:
        raise MissingToolError(
            "secure=bonawitz: the package cryptography is not installed. Run pip install 'paceline[privacy]' or choose "
            "secure=none."
        )


class Identity:
    """A key to sign with, Ed25519."""

    def __init__(self, secret: bytes) -> None:
        """32 random bytes."""
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def verified(public: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def new_key(secret: bytes) -> bytes:
    """X25519, of 32 random bytes."""
    return X25519PrivateKey.from_private_bytes(secret).private_bytes_raw()


def public_of(key: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()


def agreed(own: bytes, peer: bytes, purpose: bytes) -> bytes:
    """Returns 32 bytes known only to the owners of the two secret keys: HKDF of X25519.

    Raises `ValueError` for a public key of small order, with which all agree on the same.
    """
    shared = X25519PrivateKey.from_private_bytes(own).exchange(X25519PublicKey.from_public_bytes(peer))
    return _derived(shared, purpose)


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), length=32, salt=None, info=b"paceline secure aggregation/" + purpose).derive(secret)


def encrypted(key: bytes, plain: bytes, told: bytes) -> bytes:
    """Encrypts `plain`. `told`: public data that is authenticated too. A key encrypts one message for each `told`."""
    return ChaCha20Poly1305(_derived(key, b"to" + told)).encrypt(bytes(12), plain, told)


def decrypted(key: bytes, message: bytes, told: bytes) -> bytes | None:
    """None where it was tampered with, or goes with something else."""
    try:
        return ChaCha20Poly1305(_derived(key, b"to" + told)).decrypt(bytes(12), message, told)
    except InvalidTag:
        return None


def stream(seed: bytes, purpose: bytes, d: int) -> Ring:
    """PRG: [d] uniform numbers modulo 2^64, of ChaCha20."""
    made = Cipher(ChaCha20(_derived(seed, b"stream" + purpose), bytes(16)), mode=None).encryptor()
    return np.frombuffer(made.update(bytes(WIDTH * d)), dtype=np.uint64)
