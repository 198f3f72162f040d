"""`agentgit serve` as a process, its failures at start, and the application mounted in another one."""

from __future__ import annotations

import re
import signal
import socket
import sys
from pathlib import Path

import command_line
import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from file_tools import Desk
from web_servers import serving, story
from web_visitors import fields_of

import agentgit
from agentgit.web import OwnerLink, app


@pytest.mark.long
def test_serve_prints_a_sign_in_link_and_shuts_down_cleanly(tmp_path):
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        repo.session("support-42", create=True)
    with (
        serving(tmp_path, "agentgit.db") as (server, link),
        httpx.Client(follow_redirects=True, timeout=120) as client,
    ):
        page = client.get(link)
        assert "support-42" in page.text
        with client.stream("GET", str(page.url.join("/api/v1/events/live"))) as feed:
            lines = feed.iter_lines()
            assert next(lines).startswith("retry:")
            server.send_signal(signal.SIGTERM)
            assert [line for line in lines if line] == []  # the feed ends cleanly
        assert server.wait(120) == 0
        assert "Traceback" not in server.stderr.read()


@pytest.mark.long
def test_serve_with_a_graph_edits_a_message_and_runs_it_again(tmp_path):
    """With --graph the pages of a session that another process has made edit a message, and the turn runs here."""
    story(tmp_path).close()
    options = ("--graph", "agentgit.demo:build", "--effects", "agentgit.demo:EFFECTS")
    with (
        serving(tmp_path, "agentgit.db", *options) as (_, link),
        agentgit.open(tmp_path / "agentgit.db") as repo,
        httpx.Client(follow_redirects=True, timeout=120) as client,
    ):
        door, session = client.get(link).url, repo.session("support-42")
        at, message = f"/sessions/{session.id}", session.branch("main-2").conversation_history[4]["id"]
        assert "/edit?" in client.get(door.join(at)).text
        page = client.get(door.join(f"{at}/edit"), params={"branch": "main-2", "message": message})
        assert "Blocked by 1 call (send_mail)" in page.text
        end = repo.events.end()
        form = fields_of(page) | {"text": "a lamp", "force": "true"}
        shown = client.post(door.join(f"{at}/edit"), data=form, headers={"origin": str(door.join("/"))[:-1]})
        assert (shown.status_code, shown.url.params["branch"]) == (200, "main-3")
        next(repo.events.follow(session="support-42", after=end, kinds="turn.done"))
        said = [one["content"] for one in session.branch("main-3").conversation_history]
        assert (said[-4], said[-1]) == ("a lamp", "Ordered 1 lamp for 25 euros (lamp-2).")
        (lamp,) = session.tool_track(branch="main-3")[-1:]
        assert (lamp.tool_name, lamp.effect) == ("create_order", "reversible")


def test_serve_names_what_is_wrong_or_missing(tmp_path, monkeypatch):
    """Serving others needs a proxy and a user, and a header that names the user needs a proxy that is trusted."""
    monkeypatch.chdir(tmp_path)
    agentgit.open(tmp_path / "agentgit.db").close()
    for words, code, part in (
        ("--effects agentgit.demo:EFFECTS", 2, "--graph MODULE:GRAPH"),
        ("--graph agentgit.demo:nothing", 3, "agentgit.demo:nothing"),
        ("--workspace notes=work", 2, "--graph MODULE:GRAPH"),
        ("--graph agentgit.demo:build --workspace work", 2, "like support-42=work, not 'work'"),
        ("--graph agentgit.demo:build --workspace nobody=work", 3, "nobody"),
        ("--host 0.0.0.0", 2, "docs/samples/nginx.conf"),
        ("--host ::", 2, "--no-proxy"),
        ("--user-header X-Remote-User", 2, "--trusted-proxy"),
        ("--user-header X-Remote-User --no-proxy", 2, "--trusted-proxy"),
        ("--user-header X:User --trusted-proxy 127.0.0.1", 2, "not the name of a header"),
        ("--create-users --trusted-proxy 127.0.0.1", 2, "--user-header"),
        ("--trusted-proxy 127.0.0.1", 2, "agentgit --db agentgit.db users add NAME"),
        ("--host 0.0.0.0 --no-proxy", 2, "agentgit --db agentgit.db users add NAME"),
    ):
        done = command_line.run("serve", "--db", "agentgit.db", *words.split())
        assert (done.code, part in done.err) == (code, True), words


def test_serve_without_its_extra_names_the_pip_command(tmp_path, monkeypatch):
    agentgit.open(tmp_path / "agentgit.db").close()
    for name in [name for name in sys.modules if name.startswith(("agentgit.web", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    _, said, code = command_line.run("serve", "--db", str(tmp_path / "agentgit.db"))
    assert (code, "pip install 'agentgit[server]'" in said) == (13, True)


def test_serve_on_a_port_in_use_names_the_port_option(tmp_path):
    agentgit.open(tmp_path / "agentgit.db").close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        _, said, code = command_line.run("serve", "--port", port, "--db", str(tmp_path / "agentgit.db"))
    assert (code, "--port" in said) == (13, True)


@pytest.mark.long
def test_the_application_can_be_mounted_in_another_application(tmp_path):
    """Mounted below a path, all links, forms, redirects and the API stay below it."""
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        repo.session("support-42", create=True)
        link, host = OwnerLink(), FastAPI()
        host.mount("/git", app(repo, link=link))
        client = TestClient(host, base_url="http://localhost", headers={"origin": "http://localhost"})
        door = client.get("/git/sessions", follow_redirects=False)
        assert door.headers["location"] == "/git/sign-in?next=/git/sessions"
        page = client.get(f"/git/sign-in?token={link.token}")
        assert page.url.path == "/git/sessions"
        addresses = re.findall(r'(?:href|src|action|data-feed)="([^"#]+)', page.text)
        assert len(addresses) > 8
        assert [address for address in addresses if not address.startswith("/git/")] == []
        for address in {one for one in addresses if "/static/" in one}:
            assert client.get(address).status_code == 200
        assert client.get("/git/api/v1/me").json()["name"] == "local"
        described = client.get("/git/api/v1/openapi.json").json()
        assert described["servers"] == [{"url": "/git/api/v1"}]
        host.mount("/named", app(repo, link=link, public_url="http://localhost/named"))
        assert client.get(f"/named/sign-in?token={link.token}").url.path == "/named/sessions"


def test_the_package_folder_contains_templates_and_static_files():
    folder = Path(agentgit.__file__).parent / "web"
    assert {"base.html", "parts.html"} <= {file.name for file in (folder / "templates").iterdir()}
    assert {file.suffix for file in (folder / "static").iterdir() if file.is_file()} == {".css", ".js", ".svg"}
    vendor = folder / "static" / "vendor"
    assert {file.name for file in vendor.iterdir()} == {"README.md", "htmx.js", "idiomorph.js"}
    assert "Zero-Clause BSD" in (vendor / "README.md").read_text()


DESK = """
from pathlib import Path
from file_tools import Desk

GRAPH = Desk(Path("work")).graph()
"""


@pytest.mark.long
def test_a_rollback_on_a_page_brings_back_the_files_of_a_session_with_a_workspace(tmp_path):
    """`serve --workspace SESSION=DIR` restores the files of that session, which another process has written."""
    (tmp_path / "desk.py").write_text(DESK)
    desk = Desk(tmp_path / "work")
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        agent = repo.wrap(desk.graph(), "notes", workspace=desk.root)
        agent.run("write a.txt first")
        agent.run("write a.txt second")
        at = f"/sessions/{agent.session.id}/rollback"
    with (
        serving(tmp_path, "agentgit.db", "--graph", "desk:GRAPH", "--workspace", "notes=work") as (_, link),
        httpx.Client(follow_redirects=True, timeout=120) as client,
    ):
        door = client.get(link).url
        page = client.get(door.join(at), params={"to": "main#2"})
        assert "a.txt" in page.text
        shown = client.post(door.join(at), data=fields_of(page), headers={"origin": str(door.join("/"))[:-1]})
        assert shown.status_code == 200
    assert desk.files == {"a.txt": "first"}
