"""The group of all commands."""

from itertools import pairwise, takewhile
from typing import Any

from typer.core import TyperGroup, TyperOption

from ..compat.typer import BadOptionUsage


class Commands(TyperGroup):
    """Refuses an option where another one expects its value. Click takes the next word for the value, whatever it is.

    `train --trace --dry-run` would train. `--title=--dry-run` still gives such a value.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        # the words of `launch` and `cost` are not all theirs; completion parses an unfinished line
        if command is None or ctx.resilient_parsing or command.context_settings.get("ignore_unknown_options"):
            return name, command, rest
        params = [each for each in command.get_params(ctx) if isinstance(each, TyperOption)]
        options = {word: each for each in params for word in (*each.opts, *each.secondary_opts)}
        for word, following in pairwise(takewhile(lambda word: word != "--", rest)):
            if word in options and following in options and not options[word].is_flag:
                raise BadOptionUsage(word, f"option {word!r} requires an argument")
        return name, command, rest
