"""Looks at a page with axe, the accessibility engine."""

from importlib.resources import files
from typing import Any

from browser import Browser

EVERY = ("minor", "moderate", "serious", "critical")
_FOUND = """
const { violations } = await axe.run();
return violations.filter(({ impact }) => arguments[0].includes(impact))
  .map(({ id, nodes }) => [id, nodes[0].html.slice(0, 100)]);
"""


def violations(window: Browser, impacts: tuple[str, ...] = EVERY) -> list[Any]:
    """Returns the rule and the first element of each violation in the page that is open."""
    if not window.run("return 'axe' in window"):
        axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        window.devtools("Runtime.evaluate", expression=axe)
    return window.run(_FOUND.replace("arguments[0]", repr(list(impacts))))
