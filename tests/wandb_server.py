"""A local stand-in for the W&B server: enough for runs to be created, logged to and finished, and for sweeps."""

import gzip
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

KEY = "a" * 40  # an API key


def isolate(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No real W&B host, key, netrc or settings file is in reach; what would be asked is a port that nobody holds."""
    for name in [name for name in os.environ if name.startswith("WANDB_") or name == "NETRC"]:
        monkeypatch.delenv(name)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(home / name.lower()))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")


class WandbServer(ThreadingHTTPServer):
    """Remembers what it was sent: `upserts` (variables), `history` (rows), `summaries`, `exit_codes`, `sweeps`.

    `points` are handed to a sweep's agent, one at a time. What it is asked for under a path or a GraphQL operation in
    `faults` it answers with that HTTP status.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.upserts: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.summaries: list[dict[str, Any]] = []
        self.exit_codes: list[int] = []
        self.runs: set[str] = set()
        self.sweeps: list[dict[str, Any]] = []
        self.points: list[dict[str, Any]] = []
        self.handed_out = 0
        self.agents: list[dict[str, Any]] = []
        self.faults: dict[str, int] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is none of the server's business."""

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            self.upserts.append(variables)
            inserted = variables["name"] not in self.runs
            self.runs.add(variables["name"])
            return {"upsertBucket": {"bucket": self._bucket(variables), "inserted": inserted}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        if "viewer" in query:
            return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        return self._answer_about_sweeps(query, variables)

    def _answer_about_sweeps(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertSweep" in query:
            self.sweeps.append(variables)
            sweep = {"name": f"sweep{len(self.sweeps)}", "project": _project(variables["projectName"])}
            return {"upsertSweep": {"sweep": sweep, "configValidationWarnings": []}}
        if "SweepWithRuns" in query:
            config = self.sweeps[int(variables["sweep"].removeprefix("sweep")) - 1]["config"]
            return {"project": {"sweep": {"id": "1", "config": config, "state": "RUNNING", "runs": {"edges": []}}}}
        if "createAgent" in query:
            self.agents.append(variables)
            return {"createAgent": {"agent": {"id": str(len(self.agents))}}}
        if "agentHeartbeat" in query:
            return {"agentHeartbeat": {"agent": {"id": "1"}, "commands": json.dumps(self._commands(variables))}}
        return {}

    def _commands(self, heartbeat: dict[str, Any]) -> list[dict[str, Any]]:
        """The next point once the last has ended; the order to leave once there is none."""
        if json.loads(heartbeat["runState"]):
            return []
        if self.handed_out == len(self.points):
            return [{"type": "exit"}]
        point = self.points[self.handed_out]
        self.handed_out += 1
        arguments = {key: {"value": value} for key, value in point.items()}
        return [{"type": "run", "run_id": f"point{self.handed_out}", "program": "paceline", "args": arguments}]

    def _bucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": "1",
            "name": variables["name"],
            "displayName": variables.get("displayName"),
            "sweepName": variables.get("sweep"),
            "historyLineCount": 0,
            "project": _project(variables["project"]),
        }

    def stream(self, message: dict[str, Any]) -> None:
        files = message.get("files") or {}
        self.history += [json.loads(line) for line in files.get("wandb-history.jsonl", {}).get("content", [])]
        self.summaries += [json.loads(line) for line in files.get("wandb-summary.json", {}).get("content", [])]
        if message.get("complete"):
            self.exit_codes.append(message["exitcode"])


def _project(name: str) -> dict[str, Any]:
    return {"id": "1", "name": name, "entity": {"id": "1", "name": "me"}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        status = next(
            (code for what, code in self.server.faults.items() if what in self.path + body.decode(errors="replace")),
            200,
        )
        if status != 200:
            self._reply({"errors": [{"message": "not now"}]}, status)
        elif self.path == "/graphql":
            request = json.loads(body)
            self._reply({"data": self.server.answer(request["query"], request.get("variables") or {})})
        else:
            if self.path.endswith("/file_stream"):
                self.server.stream(json.loads(body))
            self._reply({})

    do_PUT = do_GET = do_POST

    def _reply(self, answer: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def serving() -> Iterator[WandbServer]:
    server = WandbServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
