"""The database refuses a row that is wrong: an unknown word, a value of another type, and a reference to nothing."""

import sqlite3
from contextlib import closing

import backend
import pytest
from scripted import World, obedient, tool_node_graph
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Integer,
    LargeBinary,
    Text,
    null,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy.types import TypeDecorator

import agentgit
from agentgit.errors import AgentGitError
from agentgit.store.sql.columns import Flag, UTCDateTime
from agentgit.store.sql.tables import BLOB, METADATA

TABLES = [table for table in METADATA.sorted_tables if table.name != "event"]  # its triggers refuse every change

WITHOUT_KEY = {
    "external_session.thread_id": "an id of LangGraph",
    "session_member.link_id": "0 stands for a role that no link granted",
    "internal_session.thread_id": "an id of LangGraph",
    "checkpoint.user_id": "the author may have been erased",
    "checkpoint.graph_checkpoint_id": "an id of LangGraph, on the thread of the branch",
    "tag.user_id": "the author may have been erased",
    "search_text.row_id": "a call or a checkpoint",
    "tool_invocation.made_on": "a branch of the database that the call was imported from",
    "tool_invocation.tool_call_id": "an id of the model's provider",
    "operation.user_id": "the author may have been erased",
    "operation.request_id": "an id of the caller",
    "graph_checkpoint.thread_id": "an id of LangGraph",
    "graph_checkpoint.checkpoint_id": "an id of LangGraph",
    "graph_checkpoint.external_session_id": "a thread without a session has its family here",
    "graph_checkpoint.parent_id": "an id of LangGraph, whose checkpoint may be deleted",
    "graph_checkpoint.root_id": "an id of LangGraph; a copied thread may lack it",
    "graph_checkpoint.run_id": "an id of the host",
    "graph_write.thread_id": "an id of LangGraph",
    "graph_write.checkpoint_id": "an id of LangGraph; a write may come before its checkpoint",
    "graph_write.task_id": "an id of LangGraph",
    "graph_write.external_session_id": "a thread without a session has its family here",
    "blob.external_session_id": "a thread without a session has its family here",
    "event.ordinal": "a place in the feed",
    "event.internal_session_id": "what an event names may go",
    "event.owner_id": "what an event names may go",
    "event.user_id": "what an event names may go",
}
"""The columns with the id of something that are no foreign keys, each with the reason."""


def test_every_id_refers_to_a_row_or_has_a_reason():
    found = {
        f"{table.name}.{column.name}"
        for table in METADATA.sorted_tables
        for column in table.c
        if (column.name.endswith("_id") or isinstance(column.type, BigInteger))
        and column.name != "id"
        and not column.foreign_keys
    }
    assert found == WITHOUT_KEY.keys()


@pytest.fixture
def lived(repo, tmp_path):
    """Live until each table has a row."""
    world = World()
    agent = repo.wrap(
        tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(), workspace=tmp_path / "w"
    )
    agent.run("add chair")
    agent.checkpoint("named")
    agent.session.tag("named", "v1", branch=agent.branch_id)
    agent.run("add table")
    agent.rollback("named").run("add sofa")
    list(repo.session("s").search("chair"))
    repo.session("s").sharing.share(repo.users.add("ann"), "viewer")
    repo.session("s").sharing.create_link("viewer")
    repo.keys.create("k", user="ann")
    return repo


def refused(repo, table, **values):
    """Return whether the database refuses new values in one row of a table."""
    with backend.reading(repo) as transaction:
        row = transaction.execute(select(*table.primary_key).limit(1)).first()
    assert row is not None or table.name in ("encryption_key", "graph_write"), table.name
    is_row = [key == value for key, value in zip(table.primary_key, row or (), strict=bool(row))]
    if row is None:
        return True
    try:
        backend.write(repo, lambda c: c.execute(update(table).where(*is_row).values(**values)))
    except AgentGitError:
        return True
    return False


def test_an_unknown_word_is_refused(lived):
    checked = [
        (table, str(one.name).removeprefix(f"ck_{table.name}_"))
        for table in TABLES
        for one in table.constraints
        if isinstance(one, CheckConstraint) and " IN ('" in str(one.sqltext)
    ]
    assert len(checked) >= 12
    assert [(table.name, name) for table, name in checked if not refused(lived, table, **{name: "nonsense"})] == []
    assert refused(lived, METADATA.tables["blob"], codec=4)
    assert refused(lived, METADATA.tables["checkpoint"], kind="named")  # the first one is automatic
    event = METADATA.tables["event"]  # its triggers refuse changes, so a row is added
    with backend.reading(lived) as transaction:
        row = transaction.execute(select(event).limit(1)).one()._asdict() | {"id": 7, "kind": "nonsense"}
    with pytest.raises(AgentGitError, match="ck_event_kind"):
        backend.write(
            lived, lambda c: c.execute(event.insert().values({k: v for k, v in row.items() if k != "ordinal"}))
        )


def test_a_reference_to_nothing_is_refused(lived):
    keys = [(table, one) for table in TABLES for one in table.foreign_key_constraints]
    assert len(keys) >= 24
    wrong = [
        (table.name, key.column_keys)
        for table, key in keys
        if not refused(lived, table, **{name: 7 for name in key.column_keys if name != "id"})
    ]
    assert wrong == []


def test_a_branch_with_half_an_origin_is_refused(lived):
    with backend.reading(lived) as transaction:
        table = METADATA.tables["internal_session"]
        root, fork = transaction.execute(select(table).order_by(table.c.id)).all()
    wrong = [
        (root, {"branch_point_id": root.head_id}),
        (root, {"branch_point_id": 7}),
        (root, {"parent_id": root.id, "branch_point_id": root.head_id}),
        (fork, {"parent_id": None}),
        (fork, {"branch_point_id": None}),
        (fork, {"parent_id": fork.id, "branch_point_id": fork.head_id}),
    ]
    for row, values in wrong:
        with pytest.raises(AgentGitError):
            backend.change(lived, "internal_session", row.id, **values)


def test_a_number_below_the_first_is_refused(lived):
    numbers = [(table, column.name) for table in TABLES for column in table.c if type(column.type) is Integer]
    assert len(numbers) > 12
    assert [(table.name, name) for table, name in numbers if not refused(lived, table, **{name: -1001})] == []
    assert refused(lived, METADATA.tables["checkpoint"], number=0)


ODD_TIMES = ["infinity", "-infinity", "0044-03-15 BC", "12026-01-01", "0000-01-01 00:00:00.000000"]


@pytest.mark.parametrize("time", ODD_TIMES)
def test_a_time_that_python_cannot_have_is_refused(lived, time):
    times = [(table, column.name) for table in TABLES for column in table.c if isinstance(column.type, UTCDateTime)]
    value = text(f"'{time}'")
    assert [(table.name, name) for table, name in times if not refused(lived, table, **{name: value})] == []


def test_a_value_of_another_type_is_refused(lived):
    is_sqlite, wrong = backend.is_sqlite(lived), []
    for table in TABLES:
        for column in table.c:
            kind = column.type.dialect_impl(backend.database(lived).engine.dialect)
            kind = kind.impl if isinstance(kind, TypeDecorator) else kind
            values = [null()] if not column.nullable else []
            if is_sqlite and not isinstance(kind, Text):
                values.append(text("'text'"))
            if is_sqlite and not isinstance(kind, LargeBinary):
                values.append(text("x'00ff'"))
            if not is_sqlite and isinstance(kind, Integer | DateTime):
                values.append(type_coerce("text", Text))
            wrong += [
                (table.name, column.name, str(value))
                for value in values
                if not refused(lived, table, **{column.name: value})
            ]
    assert wrong == []


def test_a_session_goes_with_all_its_rows_in_one_statement(lived):
    lived.session("s").delete(force=True)
    with backend.reading(lived) as transaction:
        queries = {table: select(table).limit(1) for table in METADATA.sorted_tables}
        queries[BLOB] = queries[BLOB].where(BLOB.c.size > 0)  # not the rows that writers to other threads lock
        left = {table.name for table, query in queries.items() if transaction.execute(query).first()}
    assert left == {"user", "api_key", "event"}


def test_a_file_of_sqlite_whose_references_were_broken_by_hand_is_found(tmp_path):
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        repo.session("s", create=True)
        with closing(sqlite3.connect(tmp_path / "agentgit.db")) as connection, connection:
            connection.execute("UPDATE internal_session SET external_session_id = 7")  # nobody asked it to refuse that
        assert not repo.maintenance.fsck(1).is_sound


def test_the_migration_makes_the_constraints_of_the_models(database):
    """Alembic does not compare them."""
    if database.is_sqlite:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
    else:
        query = "SELECT conrelid::regclass::text, string_agg(conname, ' ') FROM pg_constraint GROUP BY 1"
    with database.reading() as transaction:
        made = {name.strip('"'): text for name, text in transaction.connection.exec_driver_sql(query)}
    for table in METADATA.sorted_tables:
        flags = {column.name for column in table.c if isinstance(column.type, Flag)}
        for one in (one for one in table.constraints if isinstance(one, CheckConstraint)):
            name = str(one.name).removeprefix(f"ck_{table.name}_")
            is_sqlite_only = name in flags or name.endswith("_form")
            if database.is_sqlite and table.name != "event":
                assert f"CONSTRAINT {one.name} CHECK ({one.sqltext})" in made[table.name], one.name
            elif not database.is_sqlite and not is_sqlite_only:
                assert str(one.name) in made[table.name].split()
