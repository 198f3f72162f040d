"""The limits of request sizes, and the health checks."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from pathlib import Path

import backend
import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, make_url, text
from web_servers import served

import agentgit
from agentgit.web import app


@pytest.fixture
def repo(tmp_path: Path):
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        yield repo


def connect(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 60)


@pytest.mark.parametrize("head", ["content-length: 2000000", "transfer-encoding: chunked"])
def test_a_get_request_with_a_body_is_answered_in_full(repo, caplog, head):
    chunks = 2_000 if "chunked" in head else 0
    with served(app(repo)) as address:
        for path in ("/static/agentgit.css", "/sign-in", "/healthz"):
            size = len(httpx.get(f"{address}{path}").content)
            with connect(address) as sent, suppress(OSError):  # the server closes after the answer
                sent.settimeout(20)
                sent.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n".encode())
                got = b""
                while len(got.partition(b"\r\n\r\n")[2]) < size and (more := sent.recv(65536)):
                    got += more
                for _ in range(chunks):
                    sent.sendall(b"400\r\n" + bytes(1024) + b"\r\n")
            assert got.startswith(b"HTTP/1.1 200"), path
            assert len(got.partition(b"\r\n\r\n")[2]) == size
    assert "Traceback" not in caplog.text


def test_oversized_request_heads_are_refused(repo):
    """A head that does not end is refused, as one header, many headers or a long path; the largest has 256 KB."""
    big = b"x" * 300_000  # more than the server reads at once
    heads = [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-big: " + big + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(30_000)) + b"\r\n",
        b"GET /" + big + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-big: " + big * 10,
    ]
    with served(app(repo)) as address:
        for head in heads:
            with connect(address) as one:
                with suppress(OSError):  # the server closes it before it has received everything
                    one.sendall(head)
                with suppress(ConnectionError):
                    assert re.match(rb"HTTP/1\.1 4(00|31|14) ", one.recv(100))
        fitting = {"x-big": "x" * 10_000}
        assert httpx.get(f"{address}/healthz", headers=fitting, timeout=60).status_code == 200


# -- health checks


def test_healthz_and_readyz_report_the_process_and_the_schema(repo, caplog):
    """/healthz says that the process runs, /readyz that the schema is right; both answer to any host name."""
    made = app(repo, hosts=["git.example"])
    client = TestClient(made, base_url="http://10.0.0.1")
    found = [(client.get(path).status_code, client.get(path).text) for path in ("/healthz", "/readyz")]
    assert found == [(200, "alive\n"), (200, "ready\n")]
    for path in ("/sign-in", "/sessions/healthz", "/sign-in/healthz", "/api/v1/readyz", "//healthz"):
        assert client.get(f"http://10.0.0.1{path}").status_code == 400, path
    backend.write(repo, lambda c: c.execute(text("UPDATE agentgit_version SET version_num = '9999'")))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "not ready\n")
    assert "9999" in caplog.text  # only the log has the reason
    assert client.get("/healthz").status_code == 200


def test_readyz_is_503_during_shutdown_and_database_outage(postgres_url):
    url = make_url(postgres_url)
    other = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with agentgit.open(postgres_url) as repo, other.connect() as operator:
        made = app(repo)
        client = TestClient(made, base_url="http://localhost")
        made.state.site.is_closing = True
        assert client.get("/readyz").status_code == 503
        made.state.site.is_closing = False
        assert client.get("/readyz").status_code == 200
        try:
            operator.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS false'))
            mine = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
            operator.execute(mine, {"name": url.database})
            assert [client.get(path).status_code for path in ("/readyz", "/healthz")] == [503, 200]
        finally:
            operator.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS true'))
        assert client.get("/readyz").status_code == 200
    other.dispose()
