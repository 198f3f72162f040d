"""Every entry point × every kind of principal; an entry point that is missing from its table fails a test."""

from __future__ import annotations

import ast
import inspect
import shutil
import sqlite3
from collections import Counter
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import every_command, run
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from mcp_clients import connected, offered
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router
from starlette.staticfiles import StaticFiles
from web_routes import doors
from web_servers import served_by_command, story
from web_visitors import fields_of, mark

import agentgit
from agentgit.web import OwnerLink, app

VIEWER, EDITOR, OWNER = "viewer", "editor", "owner"
ADMIN = "admin"
SELF = "self"
"""The requirement of entry points that show or change only the caller's own data."""
OPEN = "open"
"""The requirement of entry points that need no sign-in."""

RANK = {"stranger": 0, VIEWER: 1, EDITOR: 2, OWNER: 3}
PEOPLE = {"eve": "stranger", "vic": VIEWER, "ed": EDITOR, "olga": OWNER, "ada": OWNER}
"""The users with their roles in ada's session; none of them is an admin."""
SCOPED = {"read": VIEWER, "write": EDITOR}
"""The scopes of ada's narrow keys, with the highest role that each one allows."""

S = "/sessions/{session_id}"
C = S + "/checkpoints/{checkpoint_id}"
ROUTES = {
    "GET /openapi.json": (OPEN, {}),
    "GET /me": (SELF, {}),
    "GET /sessions": (SELF, {}),
    "POST /sessions": (SELF, {"json": {"name": "mine"}}),
    f"GET {S}": (VIEWER, {}),
    f"DELETE {S}": (OWNER, {}),
    f"GET {S}/branches": (VIEWER, {}),
    f"GET {S}/tree": (VIEWER, {}),
    f"GET {S}/log": (VIEWER, {}),
    f"GET {S}/search": (VIEWER, {"params": {"text": "chair"}}),
    f"GET {S}/tool-track": (VIEWER, {}),
    f"GET {S}/checkpoint": (VIEWER, {"params": {"ref": "main#1"}}),
    f"GET {S}/diff": (VIEWER, {"params": {"a": "main#1", "b": "main#2"}}),
    f"GET {S}/compare": (VIEWER, {"params": {"a": "main", "b": "main-2"}}),
    f"GET {S}/tags": (VIEWER, {}),
    f"POST {S}/tags": (EDITOR, {"json": {"name": "v2", "ref": "main#1"}}),
    f"DELETE {S}/tags": (EDITOR, {"params": {"name": "v1"}}),
    f"GET {S}/export": (VIEWER, {}),
    f"GET {C}": (VIEWER, {}),
    f"DELETE {C}": (EDITOR, {}),
    f"GET {C}/messages": (VIEWER, {}),
    f"GET {C}/calls": (VIEWER, {}),
    f"GET {C}/state": (VIEWER, {}),
    f"GET {C}/files": (VIEWER, {}),
    f"GET {S}/plan-rollback": (VIEWER, {"params": {"to": "main#2"}}),
    f"POST {S}/rollback": (EDITOR, {"json": {"to": "main#2", "force": True}}),
    f"POST {S}/rewind-files": (EDITOR, {"json": {"restore_point": "main#2"}}),
    f"GET {S}/plan-switch": (VIEWER, {"params": {"branch": "main"}}),
    f"POST {S}/switch": (EDITOR, {"json": {"branch": "main"}}),
    f"GET {S}/operations": (VIEWER, {}),
    "GET /operations/{operation_id}": (VIEWER, {}),
    "POST /operations/{operation_id}/resume": (EDITOR, {"json": {}}),
    "POST /invocations/{invocation_id}/resolve": (EDITOR, {"json": {"outcome": "happened"}}),
    "GET /events": (SELF, {}),
    "GET /events/live": (SELF, None),  # it never ends; the tests of feeds cover its access
    f"GET {S}/members": (VIEWER, {}),
    f"POST {S}/members": (OWNER, {"json": {"user": "gus", "role": "viewer"}}),
    f"DELETE {S}/members": (OWNER, {"params": {"user": "olga"}}),
    f"GET {S}/links": (OWNER, {}),
    f"POST {S}/links": (OWNER, {"json": {"role": "viewer"}}),
    "DELETE /links/{link_id}": (OWNER, {}),
    "POST /links/accept": (SELF, {"json": {"token": "no link"}}),
    "GET /users": (ADMIN, {}),
    "POST /users": (ADMIN, {"json": {"name": "new"}}),
    "PATCH /users/{user_id}": (ADMIN, {"json": {"disabled": True}}),
    "DELETE /users/{user_id}": (ADMIN, {}),
    "POST /users/{user_id}/link": (ADMIN, {}),
    "GET /keys": (SELF, {}),
    "POST /keys": (SELF, {"json": {"name": "another"}}),
    "DELETE /keys/{key_id}": (SELF, {}),
}
"""Each route of the API with its required role and its request; the ids are of ada's data or of another account."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Create a database with ada's shared session, a key for each user, and keys that are no longer valid."""
    folder = tmp_path_factory.mktemp("doors")
    keys = {}
    with agentgit.open(folder / "agentgit.db") as operator:
        for name in (*PEOPLE, "gus", "gone", "shut", "root"):
            user = operator.users.add(name, is_admin=name == "root")
            keys[name] = operator.keys.create("all", "admin", user=user).secret
        for scope in SCOPED:
            keys[scope] = operator.keys.create(scope, scope, user="ada").secret
        keys["revoked"] = (made := operator.keys.create("revoked", "admin", user="ada")).secret
        operator.keys.revoke(made.key)
        keys["ended"] = (made := operator.keys.create("ended", "admin", timedelta(days=1), user="ada")).secret
        ended = made.key.id
        operator.users.delete("gone")
        operator.users.disable("shut")
    with closing(sqlite3.connect(folder / "agentgit.db")) as raw:
        raw.execute("UPDATE api_key SET expires_at = '2020-01-01 00:00:00.000000' WHERE id = ?", [ended])
        raw.commit()
    with story(folder, "ada") as ada:
        session = ada.session("support-42")
        for name in ("vic", "ed", "olga"):
            session.sharing.share(name, PEOPLE[name])
        session.tag("main#1", "v1")
        session.search("chairs")  # so that a later search has nothing to index
        ids = {
            "session_id": session.id,
            "checkpoint_id": session.get_checkpoint("main#2").id,
            "operation_id": session.operations()[0].id,
            "invocation_id": session.tool_track(branch="main")[0].id,
            "link_id": session.sharing.create_link().id,
            "key_id": ada.keys.list()[0].id,
        }
    with agentgit.open(folder / "agentgit.db") as operator:
        ids["user_id"] = operator.users.find("gus").id
    with agentgit.open(folder / "other.db") as other:
        keys["another database's"] = other.keys.create("all", "admin", user=other.users.add("ada")).secret
    return SimpleNamespace(folder=folder, keys=keys, ids=ids)


@pytest.fixture
def house(prepared, tmp_path, monkeypatch):
    for file in ("agentgit.db", "shop.db"):
        shutil.copy(prepared.folder / file, tmp_path)
    monkeypatch.setenv("AGENTGIT_DEMO_SHOP", str(tmp_path / "shop.db"))
    with agentgit.open(tmp_path / "agentgit.db", trust=["agentgit.demo"]) as repo:
        yield SimpleNamespace(
            repo=repo, app=app(repo), path=tmp_path / "agentgit.db", keys=prepared.keys, ids=prepared.ids
        )


@contextmanager
def changing_nothing(house):
    """Yield a dictionary of wrong answers, to be empty at the end, when all stored rows are as before.

    A refusal may change the audit trail, and the last use of a key.
    """

    def stored():
        with closing(sqlite3.connect(house.path)) as raw:
            tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {
                name: raw.execute(f'SELECT * FROM "{name}"').fetchall()  # noqa: S608  # the names are the schema's
                for name in tables
                if name not in ("event", "api_key") and not name.startswith(("sqlite", "search_words"))
            } | {"keys": raw.execute("SELECT id, hash, scope, revoked_at, expires_at FROM api_key").fetchall()}

    before, wrong = stored(), {}
    yield wrong
    assert wrong == {}
    assert stored() == before


def asked(house, route, key):
    method, _, path = route.partition(" ")
    client = TestClient(house.app, base_url="https://git.example", raise_server_exceptions=False)
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    return client.request(method, f"/api/v1{path.format(**house.ids)}", headers=headers, **(ROUTES[route][1] or {}))


def role_of(who):
    return PEOPLE.get(who) or SCOPED.get(who) or "stranger"


def is_enough(who, needs):
    if needs == ADMIN:
        return who == "root"
    return needs in (SELF, OPEN) or RANK[role_of(who)] >= RANK[needs]


def is_hidden(who, needs):
    """Return True if a refusal must not even say that the session exists."""
    return role_of(who) == "stranger" and needs != ADMIN


CREDENTIALS = (None, "", "agit_1_2_3", "x" * 9000, "revoked", "ended", "gone", "shut", "another database's")


@pytest.mark.long
@pytest.mark.parametrize("who", CREDENTIALS, ids=str)
def test_every_route_refuses_a_missing_or_invalid_credential(house, who):
    with changing_nothing(house) as wrong:
        for route, (needs, _) in ROUTES.items():
            answer = asked(house, route, house.keys.get(who, who))
            if needs != OPEN and (answer.status_code, "chair" in answer.text) != (401, False):
                wrong[route] = (answer.status_code, answer.text[:200])


@pytest.mark.parametrize("who", [*PEOPLE, *SCOPED, "root"])
def test_every_route_refuses_a_role_that_is_too_low(house, who):
    """A stranger does not even learn that the session exists, by a refusal or by a list of their own."""
    with changing_nothing(house) as wrong:
        for route, (needs, sent) in ROUTES.items():
            may, hidden = is_enough(who, needs), is_hidden(who, needs)
            if sent is None or (may and not route.startswith("GET")):
                continue
            answer = asked(house, route, house.keys[who])
            statuses = {200} if may else {404} if hidden else {403, 404}
            if answer.status_code not in statuses or ((hidden or not may) and "chair" in answer.text):
                wrong[route] = (answer.status_code, answer.text[:200])


@pytest.mark.parametrize("route", [route for route, (needs, sent) in ROUTES.items() if sent is not None])
def test_the_required_role_is_enough_for_each_route(house, route):
    needs = ROUTES[route][0]
    who = {ADMIN: "root", SELF: "eve", OPEN: "eve"}.get(needs) or next(n for n, r in PEOPLE.items() if r == needs)
    answer = asked(house, route, house.keys[who])
    # These name another user's key, or a link, an account or a snapshot that does not exist.
    foreign = {"DELETE /keys/{key_id}", "POST /links/accept", f"POST {S}/rewind-files"}
    assert answer.status_code < 500
    assert answer.status_code not in (401, 403, 404) or route in foreign, answer.text


# -- pages


PAGES = {
    "GET /": SELF,
    "GET /help": SELF,
    "GET /sign-in": OPEN,
    "POST /sign-in": OPEN,
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "POST /sign-out": SELF,
    "GET /keys": SELF,
    "POST /keys": SELF,
    "POST /keys/revoke": SELF,
    "GET /join": SELF,
    "POST /join": SELF,
    "GET /audit": SELF,
    "GET /users": ADMIN,
    "POST /users": ADMIN,
    "POST /users/change": ADMIN,
    "POST /users/delete": ADMIN,
    "GET /sessions": SELF,
    "POST /sessions": SELF,
    f"GET {S}": VIEWER,
    f"GET {S}/tool-track": VIEWER,
    f"GET {S}/tree": VIEWER,
    f"GET {C}": VIEWER,
    f"GET {C}/files": VIEWER,
    f"GET {S}/image": VIEWER,
    f"GET {S}/diff": VIEWER,
    f"GET {S}/export": VIEWER,
    f"GET {S}/operations": VIEWER,
    f"GET {S}/rerun": VIEWER,
    f"GET {S}/rollback": VIEWER,
    f"GET {S}/search": VIEWER,
    f"GET {S}/sharing": VIEWER,
    f"GET {S}/switch": VIEWER,
    "GET /operations/{operation_id}": VIEWER,
    f"POST {S}/rollback": EDITOR,
    f"POST {S}/switch": EDITOR,
    f"GET {S}/edit": VIEWER,
    f"POST {S}/branches/rename": EDITOR,
    f"POST {S}/checkpoints/rename": EDITOR,
    f"POST {S}/edit": EDITOR,
    f"POST {S}/fork": EDITOR,
    f"POST {S}/tags": EDITOR,
    f"POST {S}/tags/delete": EDITOR,
    "POST /operations/{operation_id}/resume": EDITOR,
    "POST /invocations/{invocation_id}/resolve": EDITOR,
    f"POST {S}/delete": OWNER,
    f"POST {S}/links": OWNER,
    f"POST {S}/links/revoke": OWNER,
    f"POST {S}/members": OWNER,
    f"POST {S}/members/delete": OWNER,
}
"""Each page and each form with its required role."""

OTHERS = ["BEFORE /* (Guard)", "ANY /static/* (StaticFolder)"]
"""The middleware before all routes, and the static files, which need no sign-in."""

FORM = {
    **dict.fromkeys(("to", "ref", "target"), "main#2"),
    **dict.fromkeys(("days", "link", "key"), "1"),
    **dict.fromkeys(("token", "text", "plan", "request_id", "message"), "x"),
    "branch": "main",
    "name": "v1",
    "role": "editor",
    "user": "gus",
    "what": "disable",
    "scope": "admin",
    "force": "true",
    "outcome": "happened",
    "action": "switch",
    "url": "https://example.com/",
}


def page(house, client, method, path, **form):
    """Request a page, with a value for every field of any form."""
    target = path.format(**{**house.ids, "user": "gus", "name": "v1"})
    scope = {"scope": "all"} if path.endswith("/rollback") else {}  # elsewhere it is the scope of a key
    form = {**FORM, **scope, "user": house.ids["user_id"], **form}
    with_form = {"data": form, "headers": {"origin": "https://git.example"}} if method == "POST" else {"params": form}
    return client.request(method, target, **with_form)


def visitor(house, key):
    client = TestClient(
        house.app, base_url="https://git.example", follow_redirects=False, raise_server_exceptions=False
    )
    if key is not None:
        client.cookies.set("__Host-agentgit", key)
    return client


@pytest.mark.parametrize("way", ["an application", "one with a link and a public URL", "agentgit serve"])
def test_every_route_and_page_declares_its_required_role(prepared, tmp_path, way):
    shutil.copy(prepared.folder / "agentgit.db", tmp_path)
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        if way == "an application":
            made = app(repo)
        elif way == "agentgit serve":
            made = served_by_command(repo)[0].app.app  # behind what knows the proxies
        else:
            made = app(repo, link=OwnerLink(), public_url="https://git.example/below")
        below = (route.replace(" ", " /api/v1") for route in ROUTES)
        found, known = Counter(doors(made)), Counter([*below, *PAGES, *OTHERS])
    assert (found - known, known - found) == ({}, {})


async def evil(*_):
    """Accept any request."""


PLAIN = Starlette(routes=[Route("/evil", evil)])
ADDED = {
    "a plain route": (lambda made, _: made.add_route("/evil", evil, ["HEAD"]), ["HEAD /evil"]),
    "any method": (lambda made, _: made.routes.insert(0, Route("/evil", PlainTextResponse())), ["ANY /evil"]),
    "what is there": (lambda made, _: made.add_api_route("/known", evil), ["GET /known"]),  # one of the two answers
    "a router's hidden route": (
        lambda _, inner: inner.add_api_route("/evil", evil, include_in_schema=False),
        ["GET /far/evil", "GET /api/evil"],
    ),
    "a router's mount": (lambda _, inner: inner.mount("/x", PLAIN), ["GET /far/x/evil", "GET /api/x/evil"]),
    "a folder": (lambda made, _: made.mount("", StaticFiles(directory="/")), ["ANY /* (StaticFiles)"]),
    "a mounted function": (lambda made, _: made.mount("/x", evil), ["ANY /x/* (evil)"]),
    "a wrapped mount": (
        lambda made, _: made.mount("/x", GZipMiddleware(PLAIN)),
        ["BEFORE /x/* (GZipMiddleware)", "GET /x/evil"],
    ),
    "a wrapped router": (
        lambda made, _: made.mount(
            "/x", Router([Route("/evil", evil)], default=evil, middleware=[Middleware(GZipMiddleware)])
        ),
        ["BEFORE /x/* (GZipMiddleware)", "ELSE /x/* (evil)", "GET /x/evil"],
    ),
    "a host": (lambda made, _: made.host("x.example", PLAIN), ["ANY  (Host)"]),
    "a web socket": (lambda made, _: made.add_api_websocket_route("/evil", evil), ["ANY /evil (APIWebSocketRoute)"]),
    "a middleware": (lambda made, _: made.add_middleware(GZipMiddleware), ["BEFORE /* (GZipMiddleware)"]),
    "a default": (lambda made, _: setattr(made.router, "default", evil), ["ELSE /* (evil)"]),
    "pages of a script": (lambda made, _: made.frontend("/x", directory="/"), ["ELSE /x/* (_FrontendRoute)"]),
    "a router's pages of a script": (
        lambda _, inner: inner.frontend("/x", directory="/"),
        ["ELSE /far/x/* (_FrontendRoute)", "ELSE /api/x/* (_FrontendRoute)"],
    ),
}
"""The ways to add a route to an application or to its included and mounted router, and the entry points to find."""


@pytest.mark.parametrize("way", ADDED)
def test_the_scan_finds_every_kind_of_route(way):
    """The scan finds routes that are undocumented, nested, mounted, bound to one host, not HTTP or not a route."""
    add, named = ADDED[way]
    made, below, inner = FastAPI(openapi_url=None), FastAPI(openapi_url=None), APIRouter()
    made.add_api_route("/known", evil)
    add(made, inner)
    made.include_router(inner, prefix="/far")
    made.mount("/api", below)
    below.include_router(inner)
    assert Counter(doors(made)) - Counter(["GET /known"]) == Counter(named)


@pytest.mark.parametrize("who", [*PEOPLE, *SCOPED, "root"])
def test_every_page_refuses_a_role_that_is_too_low(house, who):
    """A stranger sees nothing of the session on any page, and looking at a page changes nothing."""
    client = visitor(house, house.keys[who])
    planned = page(house, visitor(house, house.keys["ada"]), "GET", f"{S}/rollback")
    # Nothing but the role is wrong.
    right = {"csrf": mark(client.get("/sessions")), "plan": fields_of(planned)["plan"]}
    with changing_nothing(house) as wrong:
        for name, needs in PAGES.items():
            method, _, path = name.partition(" ")
            may, hidden = is_enough(who, needs), is_hidden(who, needs)
            if may and method == "POST":
                continue
            given = {"name": "support-42"} if path == f"{S}/delete" else {}
            answer = page(house, client, method, path, **right, **given)
            statuses = range(200, 500) if may else {404} if hidden else {403, 404}
            if answer.status_code not in statuses or (hidden and "chair" in answer.text):
                wrong[name] = (answer.status_code, answer.text[:200])


@pytest.mark.parametrize("who", CREDENTIALS, ids=str)
def test_every_page_refuses_a_missing_or_invalid_credential(house, who):
    client = visitor(house, house.keys.get(who, who))
    with changing_nothing(house) as wrong:
        for name, needs in PAGES.items():
            answer = page(house, client, *name.split(" "))
            if needs != OPEN and (answer.status_code not in (303, 401, 403) or "chair" in answer.text):
                wrong[name] = (answer.status_code, answer.text[:200])


@pytest.mark.parametrize("who", ["ada", "root"])
def test_every_form_needs_its_csrf_token(house, who):
    """A form that another site makes an owner or an admin send changes nothing."""
    client = visitor(house, house.keys[who])
    with changing_nothing(house) as wrong:
        for method, path in (name.split(" ") for name in PAGES):
            if method == "POST" and (answer := page(house, client, method, path, csrf="0" * 64)).status_code != 403:
                wrong[path] = (answer.status_code, answer.text[:200])


# -- MCP

AT = {"session": "ada/support-42"}
TOOLS = {
    "sessions": (SELF, {}),
    "list_checkpoints": (VIEWER, AT),
    "get_checkpoint_info": (VIEWER, {**AT, "checkpoint": "main#1"}),
    "tool_track": (VIEWER, AT),
    "branches": (VIEWER, AT),
    "tree": (VIEWER, AT),
    "diff": (VIEWER, {**AT, "a": "main#1"}),
    "search": (VIEWER, {**AT, "text": "chair"}),
    "operations": (VIEWER, AT),
    "plan_rollback": (VIEWER, {**AT, "checkpoint": "main#2"}),
    "plan_switch": (VIEWER, {**AT, "branch": "main"}),
    "create_checkpoint": (EDITOR, {**AT, "name": "more"}),
    "fork": (EDITOR, {**AT, "checkpoint": "main#1", "name": "more"}),
    "delete_checkpoint": (EDITOR, {**AT, "checkpoint": "before the table"}),
    "cleanup_auto_checkpoints": (EDITOR, AT),
    "rollback_to_checkpoint": (EDITOR, {**AT, "checkpoint": "main#2", "plan": "x", "force": True}),
    "switch": (EDITOR, {**AT, "branch": "main"}),
    "resume": (EDITOR, {**AT, "operation": None}),
}
"""Each tool of the MCP server with its required role and its arguments."""


async def test_every_mcp_tool_declares_its_required_role(house):
    assert set(await offered(house.repo)) == set(TOOLS)


@pytest.mark.parametrize("who", ["eve", "vic", "read"])
async def test_every_mcp_tool_refuses_a_role_that_is_too_low(house, who):
    """The tools obey the role of the user who started the server, and change nothing if it is too low."""
    repo = house.repo.authenticate(house.keys[who])
    with changing_nothing(house) as wrong:
        for name, (needs, given) in TOOLS.items():
            here = {"session": AT["session"] if who in PEOPLE else "support-42"} if given else {}
            arguments = {**given, **here, **({"operation": house.ids["operation_id"]} if "operation" in given else {})}
            async with connected(repo, may_force=True) as client:
                answer = await client.call_tool(name, arguments)
            said = answer.content[0].text
            kind = answer.structuredContent["error"] if answer.isError else None
            may, hidden = is_enough(who, needs), is_hidden(who, needs)
            refused = "NotFound" if hidden else "NotAllowed"
            if (kind == "NotAllowed") if may else (kind != refused or (hidden and "chair" in said)):
                wrong[name] = (kind, said[:200])


# -- commands

ELSEWHERE = "elsewhere"
"""The requirement of commands that act on no session but on local files or the schema, or start something."""
AT_S = "ada/support-42"
COMMANDS = {
    "accept": (SELF, ["no-link"]),
    "annotate": (EDITOR, [AT_S, "main#1", "--name", "renamed"]),
    "audit": (ADMIN, []),
    "branches": (VIEWER, [AT_S]),
    "chat": (EDITOR, None),
    "checkpoint create": (EDITOR, [AT_S, "more"]),
    "checkpoint delete": (EDITOR, [AT_S, "main#2", "--yes"]),
    "checkpoint delete --auto": (EDITOR, [AT_S]),
    "checkpoint delete --all": (OWNER, [AT_S, "--yes"]),
    "db check": (ELSEWHERE, None),
    "db grant": (ELSEWHERE, None),
    "db rotate": (ADMIN, []),
    "db upgrade": (ELSEWHERE, None),
    "delete": (OWNER, [AT_S, "--yes"]),
    "demo": (ELSEWHERE, None),
    "diff": (VIEWER, [AT_S, "main#1", "main#2"]),
    "diff --since-fork": (VIEWER, [AT_S, "main", "main-2"]),
    "events": (VIEWER, [AT_S]),
    "explore": (EDITOR, None),
    "export": (VIEWER, [AT_S, "out.jsonl"]),
    "export --trajectories": (VIEWER, [AT_S, "out.jsonl"]),
    "fork": (EDITOR, [AT_S, "main#1"]),
    "fork --session": (VIEWER, ["mine", AT_S, "main#1"]),
    "rename": (EDITOR, [f"{AT_S}@main", "main"]),
    "rerun": (EDITOR, None),
    "fsck": (ADMIN, []),
    "gc": (ADMIN, ["--dry-run"]),
    "import": (ELSEWHERE, None),
    "keys create": (ADMIN, ["more", "--for", "gus"]),
    "keys list": (ADMIN, ["--for", "gus"]),
    "keys revoke": (SELF, ["{key_id}"]),
    "log": (VIEWER, [AT_S]),
    "mcp": (ELSEWHERE, None),
    "merge": (EDITOR, None),
    "plan": (VIEWER, [f"{AT_S}@main#2"]),
    "recover": (EDITOR, [AT_S]),
    "redo": (EDITOR, [AT_S, "--yes"]),
    "resolve": (EDITOR, ["{invocation_id}", "happened"]),
    "resume": (EDITOR, ["{operation_id}"]),
    "retention": (OWNER, [AT_S, "--max", "50"]),
    "rewind-files": (EDITOR, [AT_S, "main#2", "--yes"]),
    "rollback": (EDITOR, [AT_S, "main#2", "--yes", "--force"]),
    "search": (VIEWER, [AT_S, "chair"]),
    "serve": (ELSEWHERE, None),
    "sessions": (SELF, []),
    "share": (OWNER, [AT_S, "gus"]),
    "share --remove": (OWNER, [AT_S, "olga"]),
    "share --link": (OWNER, [AT_S]),
    "share --links": (OWNER, [AT_S]),
    "share --revoke": (OWNER, ["{link_id}", AT_S]),
    "share ": (VIEWER, [AT_S]),
    "show": (VIEWER, [f"{AT_S}@main#1"]),
    "stats": (VIEWER, [AT_S]),
    "status": (VIEWER, [AT_S]),
    "status --operations": (VIEWER, [AT_S]),
    "switch": (EDITOR, [AT_S, "main", "--yes"]),
    "tag": (EDITOR, [AT_S, "main#1", "v2"]),
    "tool-track": (VIEWER, [AT_S]),
    "tree": (VIEWER, [AT_S]),
    "undo": (EDITOR, [AT_S, "--yes", "--force"]),
    "users add": (ADMIN, ["new"]),
    "users delete": (ADMIN, ["gus", "--yes"]),
    "users disable": (ADMIN, ["gus"]),
    "users enable": (ADMIN, ["gus"]),
    "users list": (ADMIN, []),
    "users link": (ADMIN, ["gus"]),
    **{
        f"workspace {name}": (ELSEWHERE, None) for name in ("delete", "diff", "list", "restore", "save", "show", "undo")
    },
}
"""Each command with its required role and its arguments; None if it needs a graph or concerns only its caller."""


def commands(group, above=()):
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*above, name))
        else:
            yield " ".join((*above, name))


def test_every_command_declares_its_required_role():
    assert set(commands(every_command())) == {name.partition(" -")[0].rstrip() for name in COMMANDS}


@pytest.mark.long
@pytest.mark.parametrize("who", ["eve", "vic", "ed"])
def test_every_command_refuses_a_role_that_is_too_low(house, who, monkeypatch):
    """With --user a command has that user's rights: it exits with 3 (not found) or 5 (not allowed)."""
    monkeypatch.chdir(house.path.parent)
    for name in ("AGENTGIT_USER", "AGENTGIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with changing_nothing(house) as wrong:
        for name, (needs, words) in COMMANDS.items():
            if words is None or needs == ELSEWHERE or is_enough(who, needs):
                continue
            done = run("--user", who, *name.split(), *(word.format(**house.ids) for word in words))
            said = done.out + done.err
            if done.code not in ({3} if is_hidden(who, needs) else {3, 5}) or "chair" in said:
                wrong[name] = (done.code, said[:200])


# -- consent

MOVED = ("RollbackReport", "RollbackAgent", "FileChanges")
"""What a verb returns that reverses calls, runs them again or restores files."""
MOVES = {
    name: inspect.signature(method).parameters
    for kind in (agentgit.Session, agentgit.RollbackAgent)
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if inspect.signature(method).return_annotation in MOVED and "force" in inspect.signature(method).parameters
} | {"resume": inspect.signature(agentgit.Repository.resume).parameters}
"""The verbs that act on the world, each with its parameters."""

UNPLANNED = {
    "stack.undo": "the files of one directory, without a session; it has shown its own plan and asked",
    "branch_agent.switch": "the world stays as it is",
    "self._context.engine().resume": "nobody can be asked, so it refuses to do more than was begun",
}
"""The calls of faces that need no plan, each with the reason."""


def unplanned(source):
    """Return the verbs that a module calls without the confirmed plan, which `run_confirmed` gives to a partial."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    partials = [call for call in calls if ast.unparse(call.func) == "partial" and "run_confirmed" not in source]
    called = [call.func for call in calls if not any(word.arg in ("plan", None) for word in call.keywords)]
    verbs = [*called, *(call.args[0] for call in partials)]
    return {ast.unparse(verb) for verb in verbs if isinstance(verb, ast.Attribute) and verb.attr in MOVES}


def test_every_verb_that_acts_on_the_world_takes_the_confirmed_plan():
    assert {"rollback", "undo", "redo", "switch", "rewind_files", "edit", "promote", "resume"} <= MOVES.keys()
    assert [name for name, given in MOVES.items() if "plan" not in given] == []


def test_every_face_passes_the_confirmed_plan(house):
    faces = [Path(agentgit.__file__).parent / face for face in ("cli", "mcp", "notebook", "web", "agents/graph")]
    found = {name for face in faces for path in face.rglob("*.py") for name in unplanned(path.read_text("utf-8"))}
    assert found == UNPLANNED.keys()
    assert unplanned("session.undo(force=True); partial(session.redo)") == {"session.undo", "session.redo"}
    schemas = asked(house, "GET /openapi.json", None).json()["components"]["schemas"]
    given = {name: schema.get("properties", {}) for name, schema in schemas.items()}
    assert {name for name, fields in given.items() if "force" in fields and "plan" not in fields} == set()


async def test_every_mcp_tool_that_acts_takes_the_plan(house):
    given = {name: tool.inputSchema["properties"] for name, tool in (await offered(house.repo)).items()}
    found = {name for name, fields in given.items() if "force" in fields and "plan" not in fields}
    assert found == {"plan_rollback", "plan_switch"}
