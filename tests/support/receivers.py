"""A server that receives webhooks."""

import base64
from collections import deque
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import backend
from sqlalchemy import update

from agentgit.store.sql.tables import WEBHOOK_DELIVERY

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


class Receiver(ThreadingHTTPServer):
    """A webhook server that responds with each status in `answers`, and then with 204."""

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
    def do_POST(self):  # http.server requires this name
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
        """Disable the log output."""


def due_now(repo):
    """Make all pending webhook deliveries due now."""
    past = datetime.now(UTC) - timedelta(seconds=1)
    backend.write(repo, lambda c: c.execute(update(WEBHOOK_DELIVERY).values(next_at=past)))
