"""Rules about the schema, and about values: each value is read back exactly as it was written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

from sqlalchemy import Connection, UniqueConstraint, func, insert, inspect, select, update

from agentgit.conformance.rules import CheckContext, Rule, expect, expect_error
from agentgit.errors import AgentGitError, Corrupt, NotAllowed
from agentgit.store.objects.blobs import leaf
from agentgit.store.records.checkpoints import Label, Snapshot
from agentgit.store.schema import schema
from agentgit.store.sql.ids import ID_LIMIT, new_id
from agentgit.store.sql.postgres import EVERYBODY
from agentgit.store.sql.tables import BLOB, BRANCH, CHECKPOINT, METADATA, SESSION


def is_newest(trial: CheckContext) -> None:
    """The database has the schema of this library."""
    found = schema.current(trial.repo.context.store.database)
    expect(found == schema.REVISION, f"The database has schema {found}; this library needs {schema.REVISION}.")


def has_tables(trial: CheckContext) -> None:
    """Every table is there with its columns, its primary key and its unique keys."""
    with trial.repo.context.store.database.reading() as connection:
        for name, table in METADATA.tables.items():
            found = _keys(connection, name)
            expect(found["columns"] >= set(table.columns.keys()), f"Table {name} lacks columns.")
            primary = [column.name for column in table.primary_key]
            expect(found["primary"] == primary, f"The primary key of {name} is not {primary}.")
            for key in (key for key in table.constraints if isinstance(key, UniqueConstraint)):
                columns = tuple(column.name for column in key.columns)
                expect(columns in found["unique"], f"Nothing keeps {columns} of {name} unique.")


def _keys(connection: Connection, name: str) -> dict[str, Any]:
    look = inspect(connection)
    unique: list[Any] = [*look.get_unique_constraints(name), *(i for i in look.get_indexes(name) if i["unique"])]
    return {
        "columns": {column["name"] for column in look.get_columns(name)},
        "primary": look.get_pk_constraint(name)["constrained_columns"],
        "unique": {tuple(key["column_names"]) for key in unique},
    }


def refuses_doubles(trial: CheckContext) -> None:
    """A second row with the same unique key is refused, and its transaction stores nothing."""
    trial.branch()
    store, user = trial.repo.context.store, trial.repo.user.id
    expect_error(
        lambda: store.database.write(lambda c: store.sessions.create(c, user, trial.name)),
        AgentGitError,
        "Two sessions of one user have the same name.",
    )
    expect(len([s for s in trial.repo.sessions() if s.session_name == trial.name]) == 1, "The refused row was stored.")


def refuses_orphans(trial: CheckContext) -> None:
    """A row cannot refer to a row that does not exist."""
    store = trial.repo.context.store
    expect_error(
        lambda: store.database.write(lambda c: store.sessions.create_branch(c, new_id(), "main")),
        AgentGitError,
        "A branch belongs to a session that does not exist.",
    )


def keeps_tenants_apart(trial: CheckContext) -> None:
    """Two tenants may use the same id, and a tenant never reads the other's rows."""
    branch_id, store = trial.branch(), trial.repo.context.store
    other, theirs = store.tenant_id + 1, f"{trial.name}-theirs"

    session_id = trial.repo.session(trial.name).id
    with store.database.reading() as connection:
        session, branch = store.sessions.one(connection, session_id), store.sessions.branch(connection, branch_id)

    def copy(connection: Connection) -> None:
        for table, row, changed in ((SESSION, session, "session_name"), (BRANCH, branch, "name")):
            connection.execute(insert(table), {**row._asdict(), "tenant_id": other, changed: theirs, **_thread(row)})

    store.database.bound(other, EVERYBODY).write(copy)
    expect(trial.repo.session(trial.name).name == trial.name, "A session of another tenant was read.")
    expect(
        [branch.name for branch in trial.repo.session(trial.name).branches()] == ["main"],
        "A branch of another tenant was read.",
    )


def _thread(row: Any) -> dict[str, str]:
    return {"thread_id": f"{row.thread_id}-theirs"} if "thread_id" in row._fields else {}


def _run(statement: str, connection: Connection) -> None:
    connection.exec_driver_sql(statement)


def keeps_the_trail(trial: CheckContext) -> None:
    """Rows of the audit trail can be neither changed nor deleted."""
    trial.branch()
    write = trial.repo.context.store.database.write
    for statement in ("UPDATE audit_event SET kind = 'x'", "DELETE FROM audit_event"):
        expect_error(
            partial(write, partial(_run, statement)),
            NotAllowed,
            "The audit trail can be changed.",
        )


_SCHEMA = (is_newest, has_tables, refuses_doubles, refuses_orphans, keeps_tenants_apart, keeps_the_trail)
SCHEMA_RULES = tuple(Rule("schema", run) for run in _SCHEMA)

TEXTS = (
    "plain",
    "",
    " spaces ",
    "'quotes\" and \\ and \\u0041",
    "%s %(a)s :a ? {0}",
    "line\nand\ttab\rand",
    "nul \0 in it",
    "a lone \ud83d surrogate",
    "é and e\u0301",
    "\U0001f600 \u202e \u2028",
    "x" * 100_000,
)
"""Texts that some database or driver has changed or refused."""

HUGE = 3 * 2**20
"""The size in bytes of a value that is stored in several rows."""

NOTHING = Snapshot(graph_checkpoint_id=None, state_hash=b"", position=0, message_count=0)


def _point(trial: CheckContext, branch_id: int, label: Label) -> int:
    """Create a checkpoint without a conversation on a branch; return its id."""
    store = trial.repo.context.store
    return store.database.write(lambda c: store.checkpoints.add(c, branch_id, NOTHING, label))


def keep_text(trial: CheckContext) -> None:
    """Any text is read back unchanged, including U+0000, lone surrogates, backslashes and long texts."""
    branch_id, user = trial.branch(), trial.repo.user.id
    for text in TEXTS:
        made = _point(trial, branch_id, Label(kind="named", user_id=user, name="t", description=text, data={"t": text}))
        found = trial.open_again().session(trial.name).get_checkpoint(made)
        expect(found.metadata["description"] == text, f"The text {text[:20]!r} came back changed.")
        expect(found.metadata["data"] == {"t": text}, f"Data with the text {text[:20]!r} came back changed.")


def keep_times(trial: CheckContext) -> None:
    """A time is read back as an aware datetime in UTC, and is the same moment to the microsecond."""
    branch_id, user = trial.branch(), trial.repo.user.id
    for at in (
        datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999999, UTC),
        datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    ):
        made = _point(trial, branch_id, Label(kind="named", user_id=user, name="t", made_at=at))
        found = trial.open_again().session(trial.name).get_checkpoint(made).created_at
        expect(found == at, f"{at} came back as {found}.")
        offset = found.utcoffset() if found is not None else None
        expect(offset == timedelta(0), f"{at} came back with the offset {offset}.")


def keep_ids(trial: CheckContext) -> None:
    """Ids up to 2^53 - 1 are read back exactly, and rows are listed in the order of their ids."""
    branch_id, user = trial.branch(), trial.repo.user.id
    wanted = sorted([new_id(), new_id(), ID_LIMIT - 1 - new_id() % 1000])
    for made in reversed(wanted):
        _point(trial, branch_id, Label(kind="named", user_id=user, name="i", id=made))
    store = trial.open_again().context.store
    with store.database.reading() as connection:
        found = [row.id for row in store.checkpoints.find(connection, CHECKPOINT.c.id.in_(wanted))]
    expect(found == wanted, f"{wanted} came back as {found}.")


def are_stored_once(trial: CheckContext) -> None:
    """Equal values share one row, however often they are stored, and a huge value is read back complete."""
    value = leaf("bytes", trial.name.encode() + bytes(range(256)) * (HUGE // 256))
    for repo in (trial.repo, trial.open_again()):
        for _ in range(2):
            blobs = repo.context.store.graphs.content.blobs
            repo.context.store.database.write(partial(blobs.put_many, leaves=[value]))
    store = trial.open_again().context.store
    with store.database.reading() as connection:
        rows = connection.execute(select(func.count()).where(BLOB.c.hash == value.hash)).scalar_one()
        found = store.graphs.content.blobs.get_many(connection, [value.hash])[value.hash]
    expect(rows == 1, f"One value takes {rows} rows.")
    expect(found.data == value.data, "A huge value came back changed.")


def are_checked(trial: CheckContext) -> None:
    """A stored value that no longer matches its hash raises an error, and is never returned."""
    value = leaf("bytes", trial.name.encode())

    def damage(connection: Connection) -> None:
        trial.repo.context.store.graphs.content.blobs.put_many(connection, [value])
        connection.execute(update(BLOB).where(BLOB.c.hash == value.hash).values(data=b"\0damaged"))

    trial.repo.context.store.database.write(damage)
    fresh = trial.open_again().context.store

    def read() -> object:
        with fresh.database.reading() as connection:
            return fresh.graphs.content.blobs.get_many(connection, [value.hash])

    try:
        expect_error(read, Corrupt, "A damaged value was returned.")
    finally:
        trial.repo.context.store.database.write(lambda c: c.execute(BLOB.delete().where(BLOB.c.hash == value.hash)))


_VALUES = (keep_text, keep_times, keep_ids, are_stored_once, are_checked)
VALUE_RULES = tuple(Rule("values", run) for run in _VALUES)
