"""A headless Chromium for tests, by WebDriver over HTTP; the standard library alone."""

import base64
import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from needs import chromium

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
KEYS = {"tab": "\ue004", "enter": "\ue007", "space": " ", "down": "\ue015"}
SECONDS = 100


class BrowserError(Exception):
    """What the browser or a script in the page answered."""


class Browser:
    """One window. `open` forgets what the browser logged before."""

    def __init__(self, port: int) -> None:
        self._port = port
        logs = {"browser": "ALL", "performance": "ALL"}
        options = {"binary": chromium(), "args": ARGUMENTS}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        self._session = ""
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"
        self._logged: dict[str, list[dict[str, Any]]] = {}

    def open(self, file: Path, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Returns once the page has loaded."""
        self.visit(file.resolve().as_uri(), dark, width, height)

    def visit(self, address: str, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """As `open`, of any address."""
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.devtools("Emulation.setEmulatedMedia", features=theme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        self._go("POST", "/url", {"url": "about:blank"})
        self._read_logs()
        self._logged = {}
        self._go("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of a function in the page returns; it may be a promise."""
        source = f"return (async () => {{ {script} }})()"
        return self._go("POST", "/execute/sync", {"script": source, "args": list(arguments)})

    def wait_for(self, condition: str) -> None:
        """Until the expression is true; checked once a frame. Raises BrowserError after 30 s."""
        self.run(
            "const end = performance.now() + 30000;"
            f"while (!({condition})) {{"
            f"  if (performance.now() > end) throw new Error('never true: ' + {json.dumps(condition)});"
            "  await new Promise((next) => requestAnimationFrame(next)); }"
        )

    def press(self, *keys: str) -> None:
        """Each of `keys` (of KEYS, or a character), down and up, wherever the focus is."""
        strokes = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        self._go("POST", "/actions", {"actions": actions})

    def screenshot(self, file: Path, whole: bool = False) -> None:
        found = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings on the console since the page was opened, those of its security policy too."""
        self._read_logs()
        return [entry["message"] for entry in self._logged.get("browser", []) if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        """Addresses that the page asked for, its own and data: and blob: ones left out."""
        self._read_logs()
        messages = [json.loads(entry["message"])["message"] for entry in self._logged.get("performance", [])]
        asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        here = self.run("return location.href.split('#')[0]")
        return [url for url in asked if url.split("#")[0] != here and not url.startswith(("data:", "blob:"))]

    def devtools(self, command: str, **parameters: Any) -> dict[str, Any]:
        return self._go("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _read_logs(self) -> None:
        for kind in ("browser", "performance"):
            self._logged.setdefault(kind, []).extend(self._go("POST", "/se/log", {"type": kind}))

    def close(self) -> None:
        self._go("DELETE", "")

    def _go(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._ask(method, self._session + path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            value = json.loads(answer.read())["value"]
        finally:
            connection.close()
        if answer.status != 200:
            raise BrowserError(f"{value['error']}: {value['message']}")
        return value


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """`profile`: an empty directory for what the browser keeps."""
    with subprocess.Popen(
        ["chromedriver", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"HOME": str(profile), "PATH": "/usr/bin:/bin", "TMPDIR": str(profile)},
    ) as driver:
        try:
            opened = Browser(_port_of(driver))
            try:
                yield opened
            finally:
                opened.close()
        finally:
            driver.terminate()


def _port_of(driver: subprocess.Popen[bytes]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if b"successfully on port" in line:
            return int(line.split()[-1].rstrip(b"."))
    raise BrowserError("chromedriver did not start")
