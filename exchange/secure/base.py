"""Hides the clients' changes from a federated server, or not: the server sees their sum alone, or all of them."""

from collections.abc import Mapping

from ...strategies.core.terms import NOT_SECURE, Compatible, Term, absent


class Secure(Compatible):
    """`hides`: the server sees the sum alone."""

    hides: bool = False

    @property
    def lacks(self) -> Mapping[Term, str]:
        return absent((NOT_SECURE, not self.hides))


class Open(Secure):
    """The server sees what each client brings.

    Use it where clients trust the server, or a rule has to look at what each of them brings (`aggregate`).

    Equation: none is needed.

    Source: none is needed.
    """
