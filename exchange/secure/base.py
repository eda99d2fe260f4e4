"""What a federated server sees of the clients' changes: all of them, or their sum alone."""


class Secure:
    """`hides`: the server sees the sum alone."""

    hides: bool = False


class Open(Secure):
    """The server sees what each client brings.

    Use it where clients trust the server, or a rule has to look at what each of them brings (`aggregate`).

    Equation: none is needed.

    Source: none is needed.
    """
