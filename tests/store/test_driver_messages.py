"""Database error messages are for the operator: no SQL, row or parameter reaches a user."""

import logging
import re
import sqlite3

import backend
import faults
import points
import psycopg
import pytest
from fastapi.testclient import TestClient
from langchain_core.tools import tool
from mcp_clients import connected
from scripted import call, calls, scripted, tool_node_graph
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError, OperationalError
from web_visitors import Visitor

import agentgit
from agentgit import AgentGitError, Corrupt, SchemaMismatch, Unavailable
from agentgit.web import app

HUSH = "hush-7f3a"
"""A secret text in rows and parameters."""

WORDS = (HUSH, "INSERT", "SELECT", "UPDATE", "DETAIL", "Key (", "Failing row", "VALUES", "parameters", "[SQL")

UNIQUE = "CREATE UNIQUE INDEX uq_of_somebody ON tag (name)"
TRIGGER_ON_SQLITE = f"""
    CREATE TRIGGER t BEFORE INSERT ON tag WHEN NEW.name = 'v1'
    BEGIN SELECT RAISE(ABORT, 'INSERT of {HUSH}'); END"""
TRIGGER_ON_POSTGRESQL = f"""
    CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        RAISE EXCEPTION 'INSERT of {HUSH}' USING ERRCODE = '23514', DETAIL = 'Failing row contains ({HUSH})';
    END $$;
    CREATE TRIGGER t BEFORE INSERT ON tag FOR EACH ROW WHEN (NEW.name = 'v1') EXECUTE FUNCTION f()"""
AFTERWARDS = {"unique": "DROP INDEX uq_of_somebody", "trigger": "DROP TRIGGER t ON tag; DROP FUNCTION f()"}

UNTRANSLATED = IntegrityError("INSERT INTO tag VALUES (?)", {"name": HUSH}, sqlite3.IntegrityError(f"Key ({HUSH})"))


def foreign(*_, **__):
    raise UNTRANSLATED


@pytest.fixture(params=["unique", "trigger"])
def bob(request, database):
    """Yield bob's repository, where a foreign rule of the database refuses the tag `v1`; ada has such a tag."""
    rules = {"unique": UNIQUE, "trigger": TRIGGER_ON_SQLITE if database.is_sqlite else TRIGGER_ON_POSTGRESQL}
    with agentgit.open(database.url, user="ada") as ada, agentgit.open(database.url, user="bob") as bob:
        for repo in (ada, bob):
            repo.session("s", create=True)
            repo.session("s").checkpoint("x")
        ada.session("s").tag("HEAD", "v1", description=HUSH)
        backend.write(bob, lambda c: c.execute(text(rules[request.param])))
        yield bob
        if not database.is_sqlite:  # a SQLite file belongs to this test alone
            backend.write(bob, lambda c: c.execute(text(AFTERWARDS[request.param])))


def expect_silent(said):
    assert [word for word in WORDS if word in said] == []


def test_a_database_refusal_is_logged_and_not_shown_to_users(bob, caplog):
    with pytest.raises(AgentGitError, match="Retrying does not help") as caught:
        bob.session("s").tag("HEAD", "v1", description=HUSH)
    expect_silent(str(caught.value))
    assert isinstance(caught.value.__cause__, IntegrityError)
    key, session = bob.keys.create("k", scopes=("write",)).secret, bob.session("s")
    client = TestClient(app(bob), base_url="https://git.example", headers={"authorization": f"Bearer {key}"})
    answer = client.post(f"/api/v1/sessions/{session.id}/tags", json={"name": "v1", "ref": "HEAD", "description": HUSH})
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:agentgit:error:AgentGitError")
    expect_silent(answer.text)
    assert "IntegrityError" in caplog.text
    browser = Visitor(bob)
    page = browser.get(f"/sessions/{session.id}/checkpoints/{session.get_checkpoint('HEAD').id}")
    tag = {"ref": "HEAD", "name": "v1", "description": "mine"}
    answer = browser.post(page, f"/sessions/{session.id}/tags", 500, **tag)
    assert "refused the request" in answer.text
    expect_silent(answer.text)


async def test_mcp_tool_errors_contain_no_database_text(bob, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)

    def refused(*_, **__):
        bob.session("s").tag("HEAD", "v1", description=HUSH)

    for work, word in ((foreign, "Internal error"), (refused, "refused a statement")):
        monkeypatch.setattr(*points.LIST_CHECKPOINTS_TOOL.place, work)
        async with connected(bob, bob.session("s")) as client:
            answer = await client.call_tool("list_checkpoints", {})
        said = "".join(one.text for one in answer.content) + str(answer.structuredContent)
        assert (answer.isError, word in said) == (True, True)
        expect_silent(said)
    assert "IntegrityError" in caplog.text


def test_the_tool_track_stores_database_errors_without_sql(database):
    """Only their first line: the later lines of PostgreSQL quote the statement and the row."""
    engine = create_engine(database.url)

    @tool
    def pay() -> str:
        """Pay."""
        with engine.begin() as shop:
            shop.execute(text("CREATE TEMP TABLE card (number TEXT UNIQUE, pin TEXT NOT NULL)"))
            shop.execute(text("INSERT INTO card VALUES (:number, NULL)"), {"number": HUSH})
        return "paid"

    with agentgit.open(":memory:") as repo:
        graph = tool_node_graph(scripted(calls(call("pay", "c1"))), [pay])
        agent = repo.wrap(graph, "s", effects={"pay": "irreversible"})
        with pytest.raises(IntegrityError) as caught:
            agent.run("pay")
        assert HUSH in str(caught.value)
        (failed,) = repo.session("s").tool_track()
        assert re.fullmatch(r"IntegrityError: \(\w+[.\w]*\.\w+\) .*constraint.*", failed.error_message)
        expect_silent(str(repo.session("s").tool_track()))
    engine.dispose()


INSIDE = ("postgres", "127.0.0.1", "5432", "agentgit_test", ".db", "relation", "table", "constraint", "psycopg")
"""Words that name a database, its address or its contents."""

REACHED = "connection to server at 127.0.0.1, port 5432 failed"


def failures(url, driver):
    """Yield the errors of a failing database, some of them with the driver's error that caused them."""
    yield UNTRANSLATED
    kept = OperationalError("SELECT 1 FROM user", {}, driver.OperationalError(REACHED))
    for error in (
        Unavailable(f"{url} cannot be reached: {REACHED}"),
        AgentGitError(f"{url} refused a statement: CheckViolation (table user)"),
    ):
        error.__cause__ = kept
        yield error
    yield Corrupt("The row user 7 in postgres was changed.", row="user 7")
    yield SchemaMismatch("127.0.0.1:5432/agentgit_test lacks: relation user.")


def test_responses_do_not_name_a_failing_database(database, caplog):
    with agentgit.open(database.url, user="ada") as repo:
        site, key = app(repo), repo.keys.create("k").secret
        for error in failures(database.name, sqlite3 if database.is_sqlite else psycopg):
            for path, more in (
                ("/api/v1/me", {"headers": {"authorization": f"Bearer {key}"}}),
                ("/api/v1/me", {"headers": {"authorization": "Bearer agit_x_y_z"}}),
                ("/sessions", {"cookies": {"__Host-agentgit": key}}), ("/readyz", {}),
            ):  # fmt: skip
                client = TestClient(site, base_url="https://git.example", raise_server_exceptions=False, **more)
                with faults.fails(points.EVERY_READ, error), faults.fails(points.EVERY_WRITE, error):
                    answer = client.get(path)
                assert answer.status_code >= 500, path
                body = re.sub(r"<(style|head|script).*?</\1>", "", answer.text, flags=re.DOTALL)
                assert [word for word in (*INSIDE, *WORDS) if word in body] == [], (path, body)
            assert str(error) in caplog.text
