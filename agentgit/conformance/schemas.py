"""Rules about the schema: its tables, their keys, and what the keys keep out."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, UniqueConstraint, insert, inspect

from agentgit.conformance.rules import Rule, Trial, expect, refused
from agentgit.errors import AgentGitError, NotAllowed
from agentgit.store.schema import schema
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.row_level_security import EVERYBODY
from agentgit.store.sql.tables import BRANCH, METADATA, SESSION


def is_newest(trial: Trial) -> None:
    """The database has the schema of this library."""
    found = schema.current(trial.repo.context.store.database)
    expect(found == schema.REVISION, f"It has schema {found}; this library needs {schema.REVISION}.")


def has_tables(trial: Trial) -> None:
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


def refuses_doubles(trial: Trial) -> None:
    """A second row with the same unique key is refused, and the transaction that brought it leaves nothing."""
    trial.branch()
    store, user = trial.repo.context.store, trial.repo.user.id
    refused(
        lambda: store.database.write(lambda c: store.sessions.create(c, user, trial.name)),
        AgentGitError,
        "Two sessions of one user have the same name.",
    )
    expect(len([s for s in trial.repo.sessions() if s.session_name == trial.name]) == 1, "The refused row is there.")


def refuses_orphans(trial: Trial) -> None:
    """A row cannot refer to one that is not there."""
    store = trial.repo.context.store
    refused(
        lambda: store.database.write(lambda c: store.sessions.create_branch(c, new_id(), "main")),
        AgentGitError,
        "A branch belongs to a session that does not exist.",
    )


def keeps_tenants_apart(trial: Trial) -> None:
    """The same id may be used by two tenants, and what is read of one is never the other's."""
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
        "Another tenant's branch is there.",
    )


def _thread(row: Any) -> dict[str, str]:
    return {"thread_id": f"{row.thread_id}-theirs"} if "thread_id" in row._fields else {}


def keeps_the_trail(trial: Trial) -> None:
    """Rows of the audit trail can be neither changed nor deleted."""
    trial.branch()
    write = trial.repo.context.store.database.write
    for statement in ("UPDATE audit_event SET kind = 'x'", "DELETE FROM audit_event"):
        refused(
            lambda said=statement: write(lambda c: c.exec_driver_sql(said)),  # type: ignore[misc]  # bound now
            NotAllowed,
            "The audit trail can be changed.",
        )


_RULES = (is_newest, has_tables, refuses_doubles, refuses_orphans, keeps_tenants_apart, keeps_the_trail)
RULES = tuple(Rule("schema", run) for run in _RULES)
