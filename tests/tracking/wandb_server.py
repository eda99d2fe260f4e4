"""A local stand-in for the W&B server: enough for runs to be created, logged to and finished."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WandbServer(ThreadingHTTPServer):
    """Remembers what it was sent: `upserts` (variables), `history` (rows), `complete`, `keys`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.upserts: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.summaries: list[dict[str, Any]] = []
        self.exit_codes: list[int] = []
        self.runs: set[str] = set()

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
        return {}

    def _bucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": "1",
            "name": variables["name"],
            "displayName": variables.get("displayName"),
            "historyLineCount": 0,
            "project": {"id": "1", "name": variables["project"], "entity": {"id": "1", "name": "me"}},
        }

    def stream(self, message: dict[str, Any]) -> None:
        files = message.get("files") or {}
        self.history += [json.loads(line) for line in files.get("wandb-history.jsonl", {}).get("content", [])]
        self.summaries += [json.loads(line) for line in files.get("wandb-summary.json", {}).get("content", [])]
        if message.get("complete"):
            self.exit_codes.append(message["exitcode"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/graphql":
            request = json.loads(body)
            self._reply({"data": self.server.answer(request["query"], request.get("variables") or {})})
        else:
            if self.path.endswith("/file_stream"):
                self.server.stream(json.loads(body))
            self._reply({})

    do_PUT = do_GET = do_POST

    def _reply(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
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
