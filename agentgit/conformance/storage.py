"""Rules about the schema, and about values: each value is read back exactly as it was written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

from sqlalchemy import Connection, UniqueConstraint, delete, func, insert, inspect, select, update

from agentgit.conformance.rules import CheckContext, NotCheckable, Rule, breach, expect, require_error
from agentgit.errors import AgentGitError, Corrupt, NotAllowed
from agentgit.store.objects.blobs import Blobs, Leaf, family_of, leaf
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.schema import schema
from agentgit.store.schema.introspection import is_distributed
from agentgit.store.sql.ids import ID_LIMIT, new_id
from agentgit.store.sql.postgres import ALL_USERS
from agentgit.store.sql.tables import AUDIT_EVENT, BLOB, BRANCH, CHECKPOINT, METADATA, SESSION
from agentgit.store.store import Store


def is_newest(trial: CheckContext) -> None:
    """The database has the schema of this library."""
    revision = schema.current_revision(trial.repo.context.store.database)
    expect(revision == schema.REVISION, f"The database has schema {revision}; this library needs {schema.REVISION}.")


def has_tables(trial: CheckContext) -> None:
    """Every table is there with its columns, its primary key and its unique keys."""
    with trial.repo.context.store.database.reading() as connection:
        for name, table in METADATA.tables.items():
            actual = _inspect_table(connection, name)
            expect(actual["columns"] >= set(table.columns.keys()), f"Table {name} lacks columns.")
            primary = [column.name for column in table.primary_key]
            expect(actual["primary"] == primary, f"The primary key of {name} is not {primary}.")
            for key in (key for key in table.constraints if isinstance(key, UniqueConstraint)):
                columns = tuple(column.name for column in key.columns)
                expect(columns in actual["unique"], f"Nothing keeps {columns} of {name} unique.")


def _inspect_table(connection: Connection, name: str) -> dict[str, Any]:
    inspector = inspect(connection)
    unique: list[Any] = [
        *inspector.get_unique_constraints(name),
        *(i for i in inspector.get_indexes(name) if i["unique"]),
    ]
    return {
        "columns": {column["name"] for column in inspector.get_columns(name)},
        "primary": inspector.get_pk_constraint(name)["constrained_columns"],
        "unique": {tuple(key["column_names"]) for key in unique},
    }


def refuses_doubles(trial: CheckContext) -> None:
    """A second row with the same unique key is refused, and its transaction stores nothing."""
    trial.branch()
    store, user = trial.repo.context.store, trial.repo.user.id
    require_error(
        lambda: store.database.write(lambda c: store.sessions.create(c, user, trial.name)),
        AgentGitError,
        "Two sessions of one user have the same name.",
    )
    expect(len([s for s in trial.repo.sessions() if s.session_name == trial.name]) == 1, "The refused row was stored.")


def refuses_orphans(trial: CheckContext) -> None:
    """A row cannot refer to a row that does not exist."""
    store = trial.repo.context.store
    require_error(
        lambda: store.database.write(lambda c: store.sessions.create_branch(c, new_id(), "main")),
        AgentGitError,
        "A branch belongs to a session that does not exist.",
    )


def keeps_tenants_apart(trial: CheckContext) -> None:
    """Two tenants may use the same id, and a tenant never reads the other's rows."""
    branch_id, store = trial.branch(), trial.repo.context.store
    other_tenant_id, other_name = store.tenant_id + 1, f"{trial.name}-theirs"

    session_id = trial.repo.session(trial.name).id
    with store.database.reading() as connection:
        session, branch = store.sessions.load_row(connection, session_id), store.sessions.branch(connection, branch_id)

    def copy_rows(connection: Connection) -> None:
        for table, row, name_column in ((SESSION, session, "session_name"), (BRANCH, branch, "name")):
            connection.execute(
                insert(table),
                {**row._asdict(), "tenant_id": other_tenant_id, name_column: other_name, **_other_thread_id(row)},
            )

    store.database.limited_to(other_tenant_id, ALL_USERS).write(copy_rows)
    expect(trial.repo.session(trial.name).name == trial.name, "A session of another tenant was read.")
    expect(
        [branch.name for branch in trial.repo.session(trial.name).branches()] == ["main"],
        "A branch of another tenant was read.",
    )


def _other_thread_id(row: Any) -> dict[str, str]:
    return {"thread_id": f"{row.thread_id}-theirs"} if "thread_id" in row._fields else {}


def _execute_and_fail(statement: Any, connection: Connection) -> None:
    connection.execute(statement)
    breach("The audit trail can be changed.")  # which also undoes the change


def keeps_the_trail(trial: CheckContext) -> None:
    """Rows of the audit trail can be neither changed nor deleted."""
    trial.branch()
    store = trial.repo.context.store
    with store.database.reading() as connection:
        if is_distributed(connection):
            raise NotCheckable("Citus has no triggers on distributed tables. fsck detects changes of the trail.")
    of_tenant = AUDIT_EVENT.c.tenant_id == store.tenant_id
    for statement in (update(AUDIT_EVENT).where(of_tenant).values(kind="x"), delete(AUDIT_EVENT).where(of_tenant)):
        require_error(
            partial(store.database.write, partial(_execute_and_fail, statement)),
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

HUGE_BYTES = 3 * 2**20
"""The size in bytes of a value that is stored in several rows."""

EMPTY_SNAPSHOT = CheckpointState(graph_checkpoint_id=None, state_hash=b"", position=0, message_count=0)


def _add_checkpoint(trial: CheckContext, branch_id: int, label: Label) -> int:
    """Create a checkpoint without a conversation on a branch; return its id."""
    store = trial.repo.context.store
    return store.database.write(lambda c: store.checkpoints.add(c, branch_id, EMPTY_SNAPSHOT, label))


def keep_text(trial: CheckContext) -> None:
    """Any text is read back unchanged, including U+0000, lone surrogates, backslashes and long texts."""
    branch_id, user = trial.branch(), trial.repo.user.id
    for text in TEXTS:
        checkpoint_id = _add_checkpoint(
            trial, branch_id, Label(kind="named", user_id=user, name="t", description=text, data={"t": text})
        )
        checkpoint = trial.open_again().session(trial.name).get_checkpoint(checkpoint_id)
        expect(checkpoint.metadata["description"] == text, f"The text {text[:20]!r} came back changed.")
        expect(checkpoint.metadata["data"] == {"t": text}, f"Data with the text {text[:20]!r} came back changed.")


def keep_times(trial: CheckContext) -> None:
    """A time is read back as an aware datetime in UTC, and is the same moment to the microsecond."""
    branch_id, user = trial.branch(), trial.repo.user.id
    for moment in (
        datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999999, UTC),
        datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    ):
        checkpoint_id = _add_checkpoint(
            trial, branch_id, Label(kind="named", user_id=user, name="t", created_at=moment)
        )
        created_at = trial.open_again().session(trial.name).get_checkpoint(checkpoint_id).created_at
        expect(created_at == moment, f"{moment} came back as {created_at}.")
        offset = created_at.utcoffset() if created_at is not None else None
        expect(offset == timedelta(0), f"{moment} came back with the offset {offset}.")


def keep_ids(trial: CheckContext) -> None:
    """Ids up to 2^53 - 1 are read back exactly, and rows are listed in the order of their ids."""
    branch_id, user = trial.branch(), trial.repo.user.id
    ids = sorted([new_id(), new_id(), ID_LIMIT - 1 - new_id() % 1000])
    for checkpoint_id in reversed(ids):
        _add_checkpoint(trial, branch_id, Label(kind="named", user_id=user, name="i", id=checkpoint_id))
    store = trial.open_again().context.store
    with store.database.reading() as connection:
        stored_ids = [row.id for row in store.checkpoints.find(connection, CHECKPOINT.c.id.in_(ids))]
    expect(stored_ids == ids, f"{ids} came back as {stored_ids}.")


def are_stored_once(trial: CheckContext) -> None:
    """Equal values of a session share one row, however often they are stored; a huge one is read back complete."""
    value = leaf("bytes", trial.name.encode() + bytes(range(256)) * (HUGE_BYTES // 256))
    for repo in (trial.repo, trial.open_again()):
        for _ in range(2):
            blobs = _blobs(trial, repo.context.store)
            repo.context.store.database.write(partial(blobs.put_many, leaves=[value]))
    store = trial.open_again().context.store
    with store.database.reading() as connection:
        row_count = connection.execute(select(func.count()).where(*_is_blob(trial, value))).scalar_one()
        stored = _blobs(trial, store).get_many(connection, [value.hash])[value.hash]
    expect(row_count == 1, f"One value takes {row_count} rows.")
    expect(stored.data == value.data, "A huge value came back changed.")


def are_checked(trial: CheckContext) -> None:
    """A stored value that no longer matches its hash raises an error, and is never returned."""
    value = leaf("bytes", trial.name.encode())

    def damage(connection: Connection) -> None:
        _blobs(trial, trial.repo.context.store).put_many(connection, [value])
        connection.execute(update(BLOB).where(*_is_blob(trial, value)).values(data=b"\0damaged"))

    trial.repo.context.store.database.write(damage)
    fresh_store = trial.open_again().context.store

    def read() -> object:
        with fresh_store.database.reading() as connection:
            return _blobs(trial, fresh_store).get_many(connection, [value.hash])

    try:
        require_error(read, Corrupt, "A damaged value was returned.")
    finally:
        trial.repo.context.store.database.write(lambda c: c.execute(delete(BLOB).where(*_is_blob(trial, value))))


def _blobs(trial: CheckContext, store: Store) -> Blobs:
    """Return the values of a thread that belongs to no session."""
    return store.graphs.blobs.of(family_of(trial.name))


def _is_blob(trial: CheckContext, value: Leaf) -> tuple[Any, Any]:
    return BLOB.c.tenant_id == trial.repo.context.store.tenant_id, BLOB.c.hash == value.hash


_VALUES = (keep_text, keep_times, keep_ids, are_stored_once, are_checked)
VALUE_RULES = tuple(Rule("values", run) for run in _VALUES)
