"""Makes the players of docs/players.md while the site is built: one below each command of `paceline explain`.

`python docs/hooks/players.py site/players.html` writes the hash of each player's events to docs/players.sha256.
"""

import hashlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from paceline.cli import collective
from paceline.cli.explain_choice import player_of
from paceline.engine.api.small_run import small_run
from paceline.tracking.drawn import player
from paceline.tracking.drawn.svg import IN_THE_DARK
from paceline.tracking.player import of_sum

PAGE = "players.md"
HASHES = Path(__file__).parents[1] / "players.sha256"
_COMMAND = re.compile(r"^```text\n(paceline explain [^\n]*)\n```\n", re.MULTILINE)
_DATA = re.compile(r'<script type="application/json">(.*?)</script>', re.DOTALL)
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
    html = html.replace(IN_THE_DARK, '[data-md-color-scheme="slate"]')  # the site has a switch of its own
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


# -- hashes


def hashes(html: str) -> str:
    """Returns a line for each player of the built page: the SHA-256 of its events, and its command."""
    documents = [json.loads(data) for data in _DATA.findall(html)]
    told = commands((HASHES.parent / PAGE).read_text())
    return "".join(f"{event_hash(each)}  {command}\n" for each, command in zip(documents, told, strict=True))


def event_hash(document: dict[str, Any]) -> str:
    """Returns the SHA-256 of what happens when, and of the counts, names and marks that workers hold.

    Places and lengths of weights are left out, as another CPU adds up in another order. So are random masks.
    """
    kept = {key: document[key] for key in ("timed", "end", "lanes", "purposes", "spans", "messages", "sums")}
    held = [
        {**track, "samples": [[lane, at, *map(_without_decimals, rest)] for lane, at, *rest in track["samples"]]}
        for track in document["held"]
    ]
    return hashlib.sha256(json.dumps({**kept, "held": held}, sort_keys=True).encode()).hexdigest()


def _without_decimals(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_decimals(each) for each in value]
    is_decimal = isinstance(value, float) or (isinstance(value, str) and re.fullmatch(r"[+-]?\d+\.\d+", value))
    return None if is_decimal else value


if __name__ == "__main__":
    HASHES.write_text(hashes(Path(sys.argv[1]).read_text()))
