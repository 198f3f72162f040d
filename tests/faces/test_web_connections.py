"""The limits of connections and of request sizes, the health checks, the metrics and the access log."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import backend
import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, make_url, text
from web_servers import PASSWORD, served  # a fixture

import agentgit
from agentgit.web import Limits, app

HALF = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: "
TOKEN = "of prometheus"  # noqa: S105  # of a test


@pytest.fixture
def repo(tmp_path: Path):
    """Open a repository with an admin and another account."""
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        repo.users.add("ada", PASSWORD, is_admin=True)
        repo.users.add("bob", PASSWORD)
        yield repo


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files of this process to 4,000."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 4_000:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (4_000 if hard == resource.RLIM_INFINITY else min(hard, 4_000), hard)
        )
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    """Open a connection to a server from an address of this machine."""
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 60, (source, 0))


@contextmanager
def half_requests(address: str, sources: list[str], each: int) -> Iterator[list[socket.socket]]:
    """Send half the head of a request on `each` connections from each address."""
    with ExitStack() as stack:
        made = [stack.enter_context(connect(address, source)) for source in sources for _ in range(each)]
        for one in made:
            with suppress(OSError):  # the server has already refused it
                one.sendall(HALF)
        yield made


def is_open(one: socket.socket, seconds: float = 0.0) -> bool:
    """Return True if the other side keeps a connection open for this time."""
    one.settimeout(seconds or 0.000_001)
    try:
        return one.recv(1_000_000) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def counted(address: str, name: str) -> int:
    """Return one number of the metrics."""
    answer = httpx.get(f"{address}/metrics", headers={"authorization": f"Bearer {TOKEN}"}, timeout=60)
    return int(re.search(rf"^{re.escape(name)} (\d+)$", answer.text, re.MULTILINE)[1])


@pytest.mark.long
def test_unfinished_request_heads_do_not_stop_the_server(repo, many_files):
    """While 600 sockets send half a head, other requests are answered, and those sockets are closed."""
    with served(app(repo, limits=Limits(seconds=6), metrics_token=TOKEN)) as address:
        begun = time.monotonic()
        with half_requests(address, [f"127.0.0.{n}" for n in range(2, 10)], 75) as sockets:
            assert len(sockets) == 600
            for _ in range(20):
                assert httpx.get(f"{address}/readyz", timeout=60).status_code == 200
            left = counted(address, "agentgit_open_connections")
            assert time.monotonic() - begun < 6, "this machine is too slow to tell"
            assert 100 < left <= 500
            for one in sockets:
                assert not is_open(one, 60)
            assert time.monotonic() - begun < 60
        assert counted(address, "agentgit_open_connections") == 1


@pytest.mark.long
def test_the_oldest_unfinished_body_is_dropped_for_new_requests(repo):
    """When unfinished bodies fill the server, new requests are answered and the oldest connection is closed."""
    half = b"POST /api/v1/login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    bodies = (b"content-length: 100\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n5\r\n{")
    made = app(repo, limits=Limits(seconds=60, connections=20, connections_each=10))
    with served(made) as address, ExitStack() as stack:
        sockets = [stack.enter_context(connect(address, f"127.0.0.{2 + n % 4}")) for n in range(20)]
        for n, one in enumerate(sockets):
            with suppress(OSError):  # the server has already closed it for a later one
                one.sendall(half + bodies[n % 2])
                time.sleep(0.02)
        answered = [httpx.get(f"{address}/healthz", timeout=60).status_code for _ in range(10)]
        assert answered == [200] * 10
        assert 1 <= sum(not is_open(one) for one in sockets) < 15
        assert not is_open(sockets[0])
        assert is_open(sockets[-1])


@pytest.mark.parametrize("head", ["content-length: 2000000", "transfer-encoding: chunked"])
def test_a_get_request_with_a_body_is_answered_in_full(repo, caplog, head):
    """A GET is answered in full, whatever body it announces or sends, and no traceback is logged."""
    chunks = 2_000 if "chunked" in head else 0
    with served(app(repo)) as address:
        for path in ("/static/agentgit.css", "/login", "/healthz"):
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


@pytest.mark.long
def test_one_address_is_limited_to_100_connections(repo, many_files):
    """Of 300 sockets from one address 100 stay open; a trusted proxy keeps all of them."""
    for trusted, expected in (((), 100), (("127.0.0.2",), 300)):
        made = app(repo, limits=Limits(seconds=60), trusted_proxies=trusted, metrics_token=TOKEN)
        with served(made) as address, half_requests(address, ["127.0.0.2"], 300) as sockets:
            assert counted(address, "agentgit_open_connections") == expected + 1
            assert sum(map(is_open, sockets)) == expected


@pytest.mark.long
def test_a_kept_connection_is_closed_after_a_deadline(repo):
    """Neither silence nor an unfinished request holds a connection open, also after an answer."""
    whole = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    endless = b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"
    with served(app(repo, limits=Limits(seconds=1))) as address:
        for first, then in ((whole, b""), (whole, HALF), (whole + HALF, b""), (endless, b"x"), (b"", b"")):
            with connect(address) as one:
                begun = time.monotonic()
                if first:
                    one.sendall(first)
                    assert one.recv(100_000).startswith(b"HTTP/1.1 ")
                while is_open(one, 0.2):  # an occasional byte extends no deadline
                    assert time.monotonic() - begun < 30
                    try:
                        one.sendall(then)
                        then = then[:0] and b"x"
                    except OSError:
                        break
                assert time.monotonic() - begun > 0.5


@pytest.mark.long
def test_a_body_sent_too_slowly_ends_in_408(repo):
    """A body that is sent a byte at a time gets a 408, and the connection is closed."""
    head = b"POST /api/v1/login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n"
    head += b"content-type: application/json\r\n\r\n"
    with served(app(repo, limits=Limits(seconds=1))) as address, connect(address) as one:
        one.sendall(head)
        one.settimeout(0.1)
        got, begun = b"", time.monotonic()
        while not got:
            assert time.monotonic() - begun < 30
            one.sendall(b" ")
            try:
                got = one.recv(1_000)
            except TimeoutError:
                continue
        assert got.startswith(b"HTTP/1.1 408")
        while is_open(one, 1):
            assert time.monotonic() - begun < 30


@pytest.mark.long
def test_a_client_that_does_not_read_is_disconnected(repo):
    """A client that sends many requests and reads no answer is disconnected."""
    asked = b"GET /static/agentgit.css HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3_000
    made = app(repo, limits=Limits(seconds=1), metrics_token=TOKEN)
    with served(made) as address, connect(address, "127.0.0.2") as one:
        one.settimeout(1)
        with suppress(OSError):  # a timeout or a reset: the server does not read everything
            while True:
                one.sendall(asked)
        until = time.monotonic() + 60
        while counted(address, "agentgit_open_connections") > 1:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_oversized_request_heads_are_refused(repo):
    """A head over 16 KB is refused, whole or in pieces, as one header, many headers or a long path."""
    big = b"x" * 20_000
    heads = [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-big: " + big + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(2_000)) + b"\r\n",
        b"GET /" + big + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-big: " + big * 100,
    ]
    with served(app(repo)) as address:
        for head in heads:
            for size in (len(head), 1_000):
                with connect(address) as one:
                    try:
                        for at in range(0, len(head), size):
                            one.sendall(head[at : at + size])
                    except OSError:
                        continue  # the server closed it before it received everything
                    assert re.match(rb"HTTP/1\.1 4(00|31|14) ", one.recv(100))
        fitting = {"x-big": "x" * 10_000}
        assert httpx.get(f"{address}/healthz", headers=fitting, timeout=60).status_code == 200


# -- health checks, metrics and the access log


def test_healthz_and_readyz_report_the_process_and_the_schema(repo, caplog):
    """/healthz says that the process runs, /readyz that the schema is right; both answer to any host name."""
    made = app(repo, hosts=["git.example"])
    client = TestClient(made, base_url="http://10.0.0.1")
    found = [(client.get(path).status_code, client.get(path).text) for path in ("/healthz", "/readyz")]
    assert found == [(200, "alive\n"), (200, "ready\n")]
    for path in ("/login", "/metrics", "/sessions/healthz", "/login/healthz", "/api/v1/readyz", "//healthz"):
        assert client.get(f"http://10.0.0.1{path}").status_code == 400, path
    backend.write(repo, lambda c: c.execute(text("UPDATE agentgit_version SET version_num = '9999'")))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "not ready\n")
    assert "9999" in caplog.text  # only the log has the reason
    assert client.get("/healthz").status_code == 200


def test_readyz_is_503_during_shutdown_and_database_outage(postgres_url):
    """/readyz is a 503 during shutdown and while PostgreSQL refuses connections, when /healthz stays a 200."""
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


def test_metrics_need_the_token_or_an_admin_key(repo):
    """/metrics answers only to the metrics token and to an admin's key, also for requests from this machine."""
    made = app(repo, metrics_token=TOKEN)
    client = TestClient(made, base_url="http://localhost", client=("127.0.0.1", 1))

    def status(credential: str | None, app_: TestClient = client) -> int:
        headers = {"authorization": f"Bearer {credential}"} if credential is not None else {}
        return app_.get("/metrics", headers=headers).status_code

    admin, other = (repo.keys.create("scrape", user=name).secret for name in ("ada", "bob"))
    assert [status(one) for one in (None, "", "another", f"{TOKEN}x", other)] == [401] * 5
    assert [status(one) for one in (TOKEN, admin)] == [200, 200]
    for none in (None, ""):
        without = TestClient(app(repo, metrics_token=none), base_url="http://localhost")
        assert [status(one, without) for one in (None, "", "None", admin)] == [401, 401, 401, 200]


def test_metrics_count_requests_and_contain_no_client_text(repo):
    """Metrics count requests, durations, feeds and failed logins, and contain no text that a client sent."""
    client = TestClient(app(repo, metrics_token=TOKEN), base_url="https://git.example", follow_redirects=False)
    client.headers["origin"] = "https://git.example"
    for _ in range(3):
        client.get("/sessions/424242?name=private")
    client.get("/private%22%0a{}")
    client.get("/api/v1/private")
    client.request("PRIVATE", "/login")
    client.head("/login")
    for _ in range(12):
        client.post("/api/v1/login", json={"name": "private", "password": "private private"})
    answer = client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    for line in (
        'agentgit_requests_total{route="/sessions/{session_id}",method="GET",status="303"} 3',
        'agentgit_requests_total{route="/*",method="GET",status="404"} 1',
        'agentgit_requests_total{route="/api/v1/*",method="GET",status="404"} 1',
        'agentgit_requests_total{route="/login",method="other",status="405"} 1',
        'agentgit_requests_total{route="/login",method="HEAD",status="200"} 1',
        'agentgit_requests_total{route="/api/v1/login",method="POST",status="401"} 11',
        'agentgit_requests_total{route="/api/v1/login",method="POST",status="429"} 1',
        'agentgit_request_duration_seconds_bucket{route="/sessions/{session_id}",le="+Inf"} 3',
        'agentgit_request_duration_seconds_count{route="/sessions/{session_id}"} 3',
        'agentgit_login_failures_total{reason="refused"} 11',
        'agentgit_login_failures_total{reason="throttled"} 1',
        "agentgit_open_feeds 0",
    ):
        assert line in lines
    assert "rivate" not in answer.text
    assert "424242" not in answer.text
    sample = r'[a-z_]+(\{[a-z]+="[^"\\\n]*"(,[a-z]+="[^"\\\n]*")*\})? \d+(\.\d+)?'
    assert [line for line in lines if not re.fullmatch(rf"# TYPE \w+ \w+|{sample}", line)] == []
    assert len([line for line in lines if line.startswith("#")]) == len(
        {line for line in lines if line.startswith("#")}
    )


@pytest.mark.long
def test_the_access_log_has_one_line_per_request_without_secrets(tmp_path):
    """A line has time, address, method, route, status, duration and user, no query, token or control character."""
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        user = repo.users.add("ada", PASSWORD)
        key = repo.keys.create("to look", user="ada").secret
    command = [
        sys.executable, "-m", "agentgit", "serve", "--port", "0", "--accounts", "--access-log", "--trusted-proxy",
        "127.0.0.1", "--db", str(tmp_path / "agentgit.db"),
    ]  # fmt: skip
    with subprocess.Popen(  # noqa: S603  # our own
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())[0]
            with httpx.Client(base_url=address, timeout=60, headers={"x-forwarded-for": "192.0.2.9"}) as client:
                client.get("/api/v1/sessions?name=secret", headers={"authorization": f"Bearer {key}"})
                client.get("/enter?token=secret")
                client.get("/secret%1b%5b2J%0a/x")
                client.get("/sessions/secret", headers={"x-forwarded-for": "evil\x1b"})
                client.post("/api/v1/login", json={"name": "ada", "password": PASSWORD})
            lines = [server.stdout.readline() for _ in range(5)]
        finally:
            server.kill()
    line = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\S+) (\S+) (\S+) (\S+) \d+ (\S+)\n"
    assert [re.fullmatch(line, one).groups() for one in lines] == [
        ("192.0.2.9", "GET", "/api/v1/sessions", "200", str(user.id)),
        ("192.0.2.9", "GET", "/enter", "403", "-"),
        ("192.0.2.9", "GET", "/*", "404", "-"),
        ("127.0.0.1", "GET", "/sessions/{session_id}", "303", "-"),
        ("192.0.2.9", "POST", "/api/v1/login", "201", str(user.id)),
    ]
