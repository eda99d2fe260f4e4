"""The lab's page and the requests that it sends."""

import json
import threading
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

from ..tracking.report.page import data_block, policy_of
from ..tracking.report.serve import LocalServer, Served
from .catalogue import Catalogue, Listed
from .results import results
from .runs import NAMES, SECONDS, LabRuns
from .sides import STEPS, WORKERS, Side, Sides, lack_of_memory


class LabServer(LocalServer):
    """Serves the lab until it is closed, which ends its runs and removes their folder."""

    def __init__(self, port: int, listed: Listed, given: Sequence[str]) -> None:
        """`given`: overrides of both sides. Raises `ConfigError`, StorageError, and OSError where the port is taken."""
        self._catalogue = Catalogue(listed)
        self._sides = Sides(self._catalogue, given)
        self._drawn, self._mutex = ("", b""), threading.Lock()
        gets = {
            "": Served("text/html", self._page),
            "state": Served("application/json", lambda: _json(self.runs.look())),
            "results": Served("application/json", self._results),
        }
        self.runs = LabRuns()
        super().__init__(port, gets, {"plan": self._plan, "run": self._run, "cancel": self._cancel})

    def service_actions(self) -> None:
        """Called by `serve_forever`, several times a second."""
        self.runs.tend()

    def server_close(self) -> None:
        """Called where the port is taken, too."""
        super().server_close()
        self.runs.close()

    def _page(self) -> bytes:
        script, style, page = (_file(f"lab.{kind}") for kind in ("js", "css", "html"))
        limits = {"workers": WORKERS, "steps": STEPS, "seconds": SECONDS}
        return (
            Template(page)
            .substitute(
                policy=policy_of([script], "connect-src 'self'; "),
                style=style,
                script=script,
                data=data_block({"names": NAMES, "groups": self._catalogue.plain(), "limits": limits}),
                workers=WORKERS,
                steps=f"{STEPS:,}",
                seconds=f"{SECONDS:.0f}",
            )
            .encode()
        )

    def _plan(self, body: Any) -> dict[str, Any]:
        """Raises ValueError for a body that the page does not send."""
        return {"sides": [told for told, _ in self._looked_at(body)]}

    def _run(self, body: Any) -> dict[str, Any]:
        """Raises ValueError likewise. `why`: the reason why nothing is started; "" where the runs are. `going_on`:
        whether runs are, of this page or another one.
        """
        looked_at = self._looked_at(body)
        accepted = [run for _, run in looked_at if run is not None]
        if len(accepted) < len(NAMES):
            why = "A side is refused."
        elif not (why := lack_of_memory(accepted)) and not self.runs.start(accepted):
            why = "Another page of this lab is running."
        return {"why": why, "going_on": self.runs.going_on, "sides": [told for told, _ in looked_at]}

    def _cancel(self, body: Any) -> dict[str, Any]:
        self.runs.cancel()
        return {}

    def _looked_at(self, body: Any) -> list[Any]:
        sides = body.get("sides") if isinstance(body, dict) else None
        if not isinstance(sides, list) or len(sides) != len(NAMES):
            raise ValueError("there are two sides")
        return [self._sides.looked_at(place, Side.parse(side)) for place, side in enumerate(sides)]

    def _results(self) -> bytes:
        """Returns the pictures. Those of one moment are drawn once."""
        with self._mutex:
            version = self.runs.look()["version"]
            if self._drawn[0] != version:
                self._drawn = version, _json(results(self.runs.runs()))
            return self._drawn[1]


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _file(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")
