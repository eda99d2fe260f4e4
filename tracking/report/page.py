"""The one file: template, style, plotly.js, our script and the data."""

import base64
import hashlib
import json
from importlib import resources
from string import Template
from typing import Any

SCRIPTS = (
    "base.js", "table.js", "figures.js", "lines.js", "seeds.js", "rows.js", "histogram.js", "ranking.js",
    "coordinates.js", "against.js", "schedules.js", "pictures.js", "configurations.js", "main.js",
)  # fmt: skip
# As \u escapes in the JSON: nothing in it ends the element or begins a comment.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page(document: dict[str, Any], version: str | None = None) -> str:
    """HTML that asks for nothing outside itself, and is forbidden to.

    `version`: of a page that is served, which asks its server for the version now, and nobody else.
    """
    plotly = _file("plotly.package_data", "plotly.min.js")
    ours = "(() => {\n'use strict';\n" + "".join(_file(__package__ or "", name) for name in SCRIPTS) + "})();\n"
    live = "" if version is None else _file(__package__ or "", "live.js")
    for script in (plotly, ours, live):
        assert "</script" not in script.lower() and "<!--" not in script, "would end its element"
    return Template(_file(__package__ or "", "report.html")).substitute(
        version=version or "",
        live=f"<script>{live}</script>\n" if live else "",
        policy=policy_of([plotly, ours, live] if live else [plotly, ours], "connect-src 'self'; " if live else ""),
        style=_file(__package__ or "", "report.css"),
        plotly=plotly,
        script=ours,
        data=data_block(document),
    )


def data_block(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(str.maketrans(_ESCAPES))


def policy_of(scripts: list[str], more: str = "") -> str:
    """Content-Security-Policy: these scripts, no requests. Plotly sets style elements; a saved picture is a blob."""
    hashes = " ".join(f"'sha256-{sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"{more}base-uri 'none'; form-action 'none'"
    )


def sha256(script: str) -> str:
    """Returns the hash by which a Content-Security-Policy allows a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
