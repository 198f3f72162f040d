"""A server that receives webhooks."""

import base64
import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import backend
import pytest
from sqlalchemy import update

from agentgit.store.sql.tables import WEBHOOK_DELIVERY

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Receiver(ThreadingHTTPServer):
    """Takes messages; answers with what is in `answers`, and then with 204."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, at=("127.0.0.1", 0)):
        self.got, self.answers, self.headers, self.hold = [], deque(), {}, None
        self.now, self.most = 0, 0
        super().__init__(at, Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/hook"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):  # the name that http.server asks for
        server = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        server.got.append((dict(self.headers), body))
        if server.hold is not None:
            server.hold.wait(10)
        self.send_response(server.answers.popleft() if server.answers else 204)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def receiver():
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    """Let this machine's own servers be sent to, as an operator does, before a test opens anything."""
    monkeypatch.setenv("AGENTGIT_WEBHOOK_ALLOW", "127.0.0.1")


def due_now(repo):
    """Let what waits for another try be due."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    backend.write(repo, lambda c: c.execute(update(WEBHOOK_DELIVERY).values(next_at=past)))
