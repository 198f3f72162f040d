"""The statements of docs/sql.md read conversations, calls, states and tokens on SQLite and PostgreSQL."""

import ast
import json
import re
from pathlib import Path

import pandas
import pytest
from postgres_databases import as_role
from scripted import World, call, scripted, tool_node_graph
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

import agentgit

PAGE = (Path(__file__).parents[2] / "docs/sql.md").read_text()
FORMS = dict(re.findall(r"^\| `(.+)` \| `(.+)` \|$", PAGE, flags=re.MULTILINE))
"""The expressions on SQLite that the page replaces on PostgreSQL."""

NO_NUL = re.search(r"`(AND position[^`]+)`", PAGE)[1]
"""The condition that leaves out messages with a NUL character on PostgreSQL."""

LONG = "long " * 2000
"""A text of more than 4 KiB, which is compressed."""

READABLE, TOO_LONG = 255 * 1024, 256 * 1024
"""Lengths of a message that SQL reads without compression, and of one that is stored in chunks."""


def statements():
    """Return the statements of the page by name: `conversation` of SQLModel, and the texts of the others."""
    nodes = [node for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) for node in ast.parse(block).body]
    needed = [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        or (isinstance(node, ast.Assign) and node.targets[0].id in {"conversation", "words", "calls", "states"})
    ]
    names = {}
    exec(compile(ast.Module(needed, type_ignores=[]), "docs/sql.md", "exec"), names)  # noqa: S102  # our own page
    return names


SQL = {name: statements()[name] for name in ("words", "calls", "states")}


def on_postgresql(sql):
    for on_sqlite, form in FORMS.items():
        sql = sql.replace(on_sqlite, form)
    return sql


def converse(repo, *words):
    world, model = World(), scripted(call("add", item="chair"), *["done"] * 9)
    agent = repo.wrap(tool_node_graph(model, world.tools()), "demo", effects=world.effects())
    for said in ("a chair", *words):
        agent.run(said)
    agent.fork(name="side").run("on the fork")
    agent.session.search("chair")


def check(transaction, form, *words, nul=""):
    """Compare what each statement of the page returns, in a form for the database, with what `converse` has stored.

    `words` are the readable messages of a person on the branch `main`; `nul` is a condition for the conversation.
    """
    sql = form(SQL["words"]).replace("ORDER BY", f"{nul} ORDER BY")
    rows = transaction.execute(text(sql)).all()
    said = [(row.name, row.content) for row in rows if row.role == "human"]
    assert said == [*(("main", one) for one in words), ("side", "on the fork")]
    data = [json.loads(row.data) for row in Session(transaction).exec(statements()["conversation"])]
    if not nul:
        assert [(one["type"], one["data"]["content"]) for one in data] == [(row.role, row.content) for row in rows]
    (made,) = transaction.execute(text(form(SQL["calls"])))
    assert (made.branch, made.tool_name, json.loads(made.args)) == ("main", "add", {"item": "chair"})
    assert pandas.read_sql(text(form(SQL["calls"])), transaction)["effect"].tolist() == ["reversible"]
    last = transaction.execute(text(form(SQL["states"]))).all()[-1]
    assert last.reference.startswith("demo/side#")
    assert last.saved_at.startswith("20")


WORDS = {
    "short": (("and more",), "and more", "auto"),
    "long": ((LONG, "and more"), "and more", "auto"),
    "up to the size of a chunk": (("x" * READABLE, "x" * TOO_LONG), "x" * READABLE, "none"),
}


@pytest.mark.parametrize("length", WORDS)
def test_the_page_reads_the_messages_of_a_file_that_are_not_compressed_or_cut(length, tmp_path):
    words, readable, compression = WORDS[length]
    with agentgit.open(tmp_path / "agentgit.db", compression=compression) as repo:
        converse(repo, *words)
    with create_engine(f"sqlite:///{tmp_path}/agentgit.db").connect() as connection:
        check(connection, str, "a chair", readable)


@pytest.mark.parametrize("words", [("and more",), (LONG, "and more")])
def test_the_page_reads_postgresql(words, postgres_url):
    with agentgit.open(postgres_url) as repo:
        converse(repo, *words)
    with as_role(postgres_url) as somebody:
        for url in (postgres_url, somebody):
            with create_engine(url, poolclass=NullPool).begin() as connection:
                check(connection, on_postgresql, "a chair", "and more")


def test_a_message_with_a_nul_character_can_be_left_out_on_postgresql(postgres_url):
    with agentgit.open(postgres_url) as repo:
        converse(repo, "a \0 b", "and more")
    with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
        with pytest.raises(DBAPIError, match="u0000"), connection.begin_nested():
            check(connection, on_postgresql, "a chair", "and more")
        check(connection, on_postgresql, "a chair", "and more", nul=NO_NUL)
