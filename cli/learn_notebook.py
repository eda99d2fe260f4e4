"""A chapter of the course as a Jupyter notebook, a cell for each text and command."""

import json
from typing import Any

from .chapters import Chapter, ChapterPart, without_links

FORMAT = {"nbformat": 4, "nbformat_minor": 5}
PYTHON = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def as_notebook(chapter: Chapter) -> str:
    """Returns the JSON of nbformat 4.5, without outputs."""
    cells = [_cell(part, f"{chapter.name}-{place}"[-64:]) for place, part in enumerate(chapter.parts())]
    return json.dumps({"cells": cells, "metadata": PYTHON, **FORMAT}, indent=1, ensure_ascii=False) + "\n"


def _cell(part: ChapterPart, name: str) -> dict[str, Any]:
    if part.kind == "text":
        source = without_links(part.content).rstrip("\n")
        return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source.splitlines(keepends=True)}
    return {
        "cell_type": "code",
        "id": name,
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": [f"!{part.content}"],
    }
