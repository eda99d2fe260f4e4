"""The errors of communication between workers. `exit_code` is the status that the process ends with."""

from collections.abc import Sequence


class HangError(RuntimeError):
    """A wait outlasted its timeout; the message names the workers that were missing.

    `missing`: they, numbered in the whole run; they may be hanging themselves. `frozen`: they gave no sign of life, so
    that nobody else is to blame.
    """

    exit_code = 5

    def __init__(self, message: str, missing: Sequence[int] = (), frozen: bool = False) -> None:
        super().__init__(message)
        self.missing, self.frozen = missing, frozen


class PeerLostError(RuntimeError):
    """The connection to a peer broke, mostly because that peer failed first: the peer's own error says more.

    `rank`: the peer, numbered in the group that was used, where one peer is to blame (point to point).
    """

    exit_code = 4

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class MessageError(RuntimeError):
    """A peer's message cannot be read, or is not the expected one; the text names the sender."""

    exit_code = 4


class RendezvousError(RuntimeError):
    """The workers could not meet: the port is taken, or the network interface is not there."""

    exit_code = 3


class HostMemoryError(RuntimeError):
    """The host has less memory than workers must share."""

    exit_code = 3


class SharedDeviceError(RuntimeError):
    """Two workers compute on one GPU."""

    exit_code = 2


class TokenError(ValueError):
    """The workers have no secret in common, or one that others could guess or read."""

    exit_code = 2


class TokenFileError(TokenError):
    """The file with the token is one that others may read, or that cannot be used."""

    exit_code = 3


class NetworkError(ValueError):
    """A modelled network that cannot be."""

    exit_code = 2


class FabricError(RuntimeError):
    """The fabric cannot do what was asked, for instance share memory across hosts."""

    exit_code = 2
