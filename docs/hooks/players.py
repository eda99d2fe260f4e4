"""Makes the players of docs/players.md while the site is built: one below each command of `paceline explain`."""

import re
import shlex
from typing import Any

from paceline.cli import collective
from paceline.cli.explain_choice import player_of
from paceline.engine.api.small_run import small_run
from paceline.tracking.drawn import player
from paceline.tracking.player import of_sum

PAGE = "players.md"
_COMMAND = re.compile(r"^```text\n(paceline explain [^\n]*)\n```\n", re.MULTILINE)
_PLACE = '<p data-player="{}"></p>'


def commands(markdown: str) -> list[str]:
    return _COMMAND.findall(markdown)


def titles(markdown: str) -> dict[str, str]:
    """Returns the titles of sections by the choice that each one plays."""
    sections = (section.partition("\n") for section in markdown.split("\n## ")[1:])
    return {shlex.split(command)[2]: title for title, _, text in sections for command in commands(text)}


def with_places(markdown: str) -> str:
    """Returns the page with a place for a player below each command."""
    numbers = iter(range(len(commands(markdown))))
    return _COMMAND.sub(lambda found: f"{found[0]}\n{_PLACE.format(next(numbers))}\n", markdown)


def with_players(html: str, markdown: str) -> str:
    """Returns the page's HTML with a player at each of these places."""
    for number, command in enumerate(commands(markdown)):
        html = html.replace(_PLACE.format(number), player.as_html(document(command)))
    return f"{player.STYLE}\n{html}\n<script>{player.script()}</script>"


def document(command: str) -> dict[str, Any]:
    """Returns what the command's small run, or its collective's sum, has to play."""
    _, _, choice, *overrides = shlex.split(command)
    group, _, name = choice.partition("=")
    if group != "collective":
        return player_of(choice, small_run(choice, overrides, watch=True))
    recording, why = collective.recorded(choice, overrides, None, ())
    assert recording is not None, why
    return of_sum(collective.raw(name, recording))
