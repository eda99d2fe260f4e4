"""The error of a bad configuration."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Choices that do not go together.

    Args:
        key: the choice, or the key, that needs what another choice lacks, as `compress=topk`.
        reasons: a clause each.
        instead: what goes, as `sync=bsp, gossip or easgd`.
    """

    key: str
    reasons: tuple[str, ...]
    instead: tuple[str, ...] = ()

    def __str__(self) -> str:
        choose = f". Choose {', or '.join(self.instead)}" if self.instead else ""
        return f"{self.key}: {'; '.join(self.reasons)}{choose}"


class ConfigError(ValueError):
    """The configuration is wrong. The message says `KEY=VALUE: what is wrong. Choose X.`

    `about`: the groups whose choices are wrong, where an object raises it that does not know under which names it was
    chosen (`named`). `refusals`: the choices that do not go together, where that is what is wrong.
    """

    exit_code = 2
    refusals: tuple[Refusal, ...] = ()

    def __init__(self, text: str = "", about: Sequence[str] = ()) -> None:
        self.text, self.about = text, tuple(about)
        super().__init__(f"{', '.join(about)}: {text}" if about else text)

    @classmethod
    def of(cls, refusals: Iterable[Refusal]) -> "ConfigError":
        """Returns the error that tells all of these, a line each."""
        refusals = tuple(refusals)
        error = cls("\n".join(map(str, refusals)))
        error.refusals = refusals
        return error

    def named(self, choices: Mapping[str, str]) -> "ConfigError":
        """Returns the error with the names of these choices, by group: `compress=topk, sync=bsp: ...`."""
        return ConfigError(self.text, [f"{group}={choices[group]}" for group in self.about])
