"""Invariants and checks: what a class of a kind is held to, each with its name, its sentence and its source."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from ..strategies.core.terms import VOCABULARY, Compatible

S = TypeVar("S")


class InvariantError(AssertionError):
    """A class breaks an invariant. The text names both."""


class DiffersError(Exception):
    """A measured value is not the expected one. `Invariant` adds what it is about."""


def differs(expected: object, measured: object) -> NoReturn:
    raise DiffersError(f"expected: {expected}\nmeasured: {measured}")


def require(holds: bool, expected: object, measured: object) -> None:
    """Raises `DiffersError` if it does not hold."""
    if not holds:
        differs(expected, measured)


def require_equal(measured: object, expected: object, name: str) -> None:
    """Raises `DiffersError` if the two are not equal."""
    require(measured == expected, f"{name}: {expected}", f"{name}: {measured}")


@dataclass(frozen=True, eq=False)
class Invariant(Generic[S]):
    """A property of each class of a kind.

    Args:
        holds: raises `DiffersError` if it does not hold of a subject; its docstring is the sentence.
        source: the paper, trait or interface that promises it.
        concerns: whether a subject promises it.
    """

    holds: Callable[[S], None]
    source: str
    concerns: Callable[[S], bool]

    @property
    def name(self) -> str:
        return self.holds.__name__.replace("_", " ")

    @property
    def sentence(self) -> str:
        return " ".join((self.holds.__doc__ or "").split())

    def check(self, subject: S, named: str) -> None:
        """Raises `InvariantError`.

        Args:
            named: the class, for the error.
        """
        try:
            self.holds(subject)
        except DiffersError as found:
            raise InvariantError(self._broken(named, str(found))) from None
        except Exception as error:
            raise InvariantError(self._broken(named, f"{type(error).__name__}: {error}")) from error

    def _broken(self, named: str, found: str) -> str:
        told = found.replace("\n", "\n  ")
        broken = f"{named} breaks the invariant '{self.name}'."
        return f"{broken}\n  {told}\n  invariant: {self.sentence}\n  source: {self.source}"


class Suite(Generic[S]):
    """The invariants of a kind of class, in the order in which they were declared."""

    def __init__(self) -> None:
        self.invariants: list[Invariant[S]] = []

    def invariant(
        self, source: str, concerns: Callable[[S], bool] = lambda subject: True
    ) -> Callable[[Callable[[S], None]], Invariant[S]]:
        """Returns the decorator that makes an invariant of a function."""

        def declared(holds: Callable[[S], None]) -> Invariant[S]:
            made = Invariant(holds, source, concerns)
            self.invariants.append(made)
            return made

        return declared

    def checks(self, subject: S, named: str) -> list["InvariantCheck"]:
        """Returns a check for each invariant that this subject promises."""
        return [InvariantCheck(each, subject, named) for each in self.invariants if each.concerns(subject)]


@dataclass(frozen=True, eq=False)
class InvariantCheck:
    """An invariant, to be checked of one class. A call raises `InvariantError` if the class breaks it."""

    invariant: Invariant[Any]
    subject: Any
    named: str

    @property
    def __name__(self) -> str:  # pytest makes the name of a test case of it
        return self.invariant.name

    def __str__(self) -> str:
        return f"{self.named}: {self.invariant.name}"

    def __call__(self) -> None:
        self.invariant.check(self.subject, self.named)


def run_all(checks: Iterable[InvariantCheck]) -> list[str]:
    """Runs all checks and returns the names of their invariants. Raises one `InvariantError` of all that failed."""
    passed, failed = list[str](), list[str]()
    for check in checks:
        try:
            check()
            passed.append(check.invariant.name)
        except InvariantError as error:
            failed.append(str(error))
    if failed:
        raise InvariantError("\n\n".join(failed))
    return passed


def name_of(make: Callable[..., object], made: object) -> str:
    """Returns the name of a class for messages: its own, and that of the function that built it."""
    own, given = type(made).__name__, getattr(make, "__name__", "")
    return own if given in ("", own, "<lambda>") else f"{own} (by {given})"


def known_terms(subject: Compatible, group: str) -> None:
    """Raises `DiffersError` for a term that is unknown, of another group, or needed of the class's own group."""
    for term in subject.lacks:
        require(
            term in VOCABULARY, f"lacks: terms of strategies/core/terms.py ({_terms(group)})", f"lacks {term.name!r}"
        )
        require_equal(term.group, group, f"lacks {term.name!r}: a term of the group")
    for need in subject.needs:
        others = ", ".join(sorted({term.group for term in VOCABULARY} - {group}))
        require(need.term in VOCABULARY, "needs: terms of strategies/core/terms.py", f"needs {need.term.name!r}")
        require(
            need.term.group != group, f"needs: terms of other groups ({others})", f"needs {need.term.name!r} of {group}"
        )


def _terms(group: str) -> str:
    return ", ".join(term.name for term in VOCABULARY if term.group == group)
