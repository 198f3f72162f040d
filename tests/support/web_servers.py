"""Real servers for the web tests: a demo session with a shop, and an application served on a free port."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import processes
import pytest
import uvicorn
from fastapi import FastAPI

import agentgit
from agentgit import Repository
from agentgit.demo import EFFECTS, build
from agentgit.web.server import Server, serve

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPj/HwADAgH/eL9GtQAAAABJRU5ErkJggg=="
"""A PNG image of one pixel, in base64."""

HOSTILE = "<script>window.pwned = 1</script>\"'><img src=x onerror=alert(1)> [x](javascript:alert(1)) \u202eevil \x00"
"""Hostile text for messages and names."""


def free_port() -> int:
    """Return a free port below the range from which the system takes ports for outgoing connections."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("a hundred ports are taken")


def started(command: list[str], port: int, log: Path, cwd: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a program that serves HTTP on a port, as a user would, and wait until it answers."""
    with log.open("a") as lines:
        process = subprocess.Popen(  # noqa: S603  # the programs of the tests
            command, cwd=cwd, env=os.environ | environment, stdout=lines, stderr=lines, start_new_session=True
        )
    deadline = time.monotonic() + 90
    while True:
        with suppress(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}", timeout=60)
            return process
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"{command} does not answer: {log.read_text()}")
        time.sleep(0.1)


@contextmanager
def running(command: list[str], port: int, log: Path, cwd: Path, **environment: str) -> Iterator[str]:
    """Run a program that serves HTTP on a port, and yield its URL; the arguments are those of `started`."""
    process = started(command, port, log, cwd, **environment)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a database with the demo session of ada, and the user bob, for tests to copy."""
    folder = tmp_path_factory.mktemp("told")
    with agentgit.open(folder / "agentgit.db") as operator:
        operator.users.add("ada", is_admin=True)
        operator.users.add("bob")
    story(folder, "ada").close()
    return folder


@pytest.fixture
def repo(told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """Open a copy of the demo repository and its shop as ada, who is an admin."""
    for file in ("agentgit.db", "shop.db"):
        shutil.copy(told / file, tmp_path)
    monkeypatch.setenv("AGENTGIT_DEMO_SHOP", str(tmp_path / "shop.db"))
    with agentgit.open(tmp_path / "agentgit.db", user="ada", trust=["agentgit.demo"]) as repo:
        yield repo


def story(folder: Path, user: str | None = None) -> Repository:
    """Create a session of two branches: chairs, then a table that is undone, then a sofa and a mail."""
    repo = agentgit.open(folder / "agentgit.db", user=user)
    agent = repo.wrap(build(folder / "shop.db"), "support-42", effects=EFFECTS)
    agent.run("order two chairs")
    agent.checkpoint("before the table")
    agent.run("a table and two lamps, please")
    retry = agent.rollback("before the table")
    retry.run("rather a sofa")
    retry.checkpoint("before the mail")
    retry.run("pay, and mail the receipt")
    return repo


def hostile(repo: Repository, folder: Path) -> None:
    """Add a session with hostile text in every name and text."""
    (work := folder / "work").mkdir()
    agent = repo.wrap(build(folder / "shop.db"), HOSTILE[:150], effects=EFFECTS, workspace=work)
    (work / "a<b>.txt").write_text("one\n")
    agent.run(f"note {HOSTILE}")
    point = agent.checkpoint(HOSTILE, description=HOSTILE, data={HOSTILE: HOSTILE})
    agent.session.tag(point, HOSTILE.removesuffix(" \x00"))
    (work / "a<b>.txt").write_text(f"two\n{HOSTILE}\n")
    agent.run(f"note {HOSTILE} again")
    agent.fork(name="<i>b</i>")


def served_by_command(repo: Repository, **how: Any) -> tuple[FastAPI, list[str]]:
    """Run `agentgit serve` with these options, stop at once, and return the application and the printed lines."""
    made: list[FastAPI] = []
    said: list[str] = []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        made.append(server.config.app)
        sockets[0].close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "run", run)
        patch.setattr(signal, "signal", lambda *_: None)
        serve(repo, port=0, say=said.append, **how)
    return made[0], said


@contextmanager
def served(app: FastAPI, trusted_proxies: Iterable[str] = ()) -> Iterator[str]:
    """Serve an application on a free port of this machine, and yield its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(app, trusted_proxies)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def serving(folder: Path, database: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `agentgit serve` in a folder, on any free port; yield the process and the first address that it prints."""
    command = [sys.executable, "-m", "agentgit", "--db", database, "serve", *options, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(processes.PATHS)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment) as server:  # noqa: S603  # our own
        try:
            assert server.stderr is not None
            found = (re.search(r"http://127\.0\.0\.1:\d+(/sign-in\?token=\S+)?", line) for line in server.stderr)
            yield server, next(address[0] for address in found if address)
        finally:
            server.kill()
