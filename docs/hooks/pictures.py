"""Draws the pictures of the course anew: `python docs/hooks/pictures.py [FOLDER]`.

A picture belongs to the command before it in its chapter, which draws it with --svg.
"""

import re
import subprocess
import sys
from pathlib import Path

from paceline.cli.chapters import chapters

PICTURES = Path(__file__).parents[1] / "pictures"
_SHOWN = re.compile(r"!\[[^\]]*\]\(\.\./pictures/([\w-]+\.svg)\)")


def commands() -> dict[str, list[str]]:
    """Returns the words of the command that draws each picture, by its name."""
    found: dict[str, list[str]] = {}
    for chapter in chapters():
        words: list[str] = []
        for part in chapter.parts():
            if part.kind == "command":
                words = part.words
            else:
                found |= dict.fromkeys(_SHOWN.findall(part.content), words)
    return found


def draw(folder: Path) -> None:
    for name, words in commands().items():
        run = [sys.executable, "-m", "paceline.cli.main", *words[1:], "--svg", str(folder / name)]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if sys.argv[1:] else PICTURES)
