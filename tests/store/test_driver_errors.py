"""Driver errors raise the right exception: only conflicts are retried, and permanent errors surface at once."""

from contextlib import closing
from types import SimpleNamespace

import backend
import pytest
from sqlalchemy import bindparam, insert, text, update

import agentgit
from agentgit import Conflict, InvalidInput, NotAllowed, NotFound
from agentgit.errors import AgentGitError, Corrupt, SchemaMismatch, Unavailable
from agentgit.store.database import Database
from agentgit.store.sql.driver_errors import TransactionConflict
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import BRANCH, SESSION


def row(transaction):
    return dict(transaction.execute(SESSION.select()).mappings().first())


NEVER = {
    "not null": lambda c: c.execute(update(SESSION).values(session_name=None)),
    "unique": lambda c: c.execute(insert(SESSION), row(c)),
    "foreign key": lambda c: c.execute(update(BRANCH).values(external_session_id=77)),
    "syntax": lambda c: c.execute(text("SELEC 1")),
}
"""Statements that fail however often they are tried."""


@pytest.fixture
def session(repo):
    repo.session("s", create=True)
    return repo


@pytest.mark.parametrize("why", NEVER)
def test_t_a_permanent_database_error_is_not_a_conflict(session, why):
    runs = []

    def once(transaction):
        runs.append(1)
        NEVER[why](transaction)

    with pytest.raises(AgentGitError, match="Retrying does not help") as raised:
        backend.write(session, once)
    assert not isinstance(raised.value, Unavailable | Conflict | NotFound)
    assert "interfered" not in str(raised.value)
    assert type(raised.value.__cause__).__module__.startswith(("sqlalchemy", "sqlite3", "psycopg"))
    # A concurrent transaction may cause such a violation, so the work is tried exactly once more.
    may_race = why == "unique" or (why == "foreign key" and not backend.is_sqlite(session))
    assert len(runs) == (2 if may_race else 1)


def test_t_a_write_is_retried_after_each_different_rejected_row(postgres_url):
    with agentgit.open(postgres_url) as repo:
        taken = [repo.session(name, create=True).name for name in ("s1", "s2", "s3")]
        names = iter([*taken, "free"])

        def next_one(transaction):
            found = row(transaction) | {"id": 5, "session_name": next(names), "current_branch_id": None}
            transaction.execute(insert(SESSION), found)
            return found["session_name"]

        assert backend.write(repo, next_one) == "free"


def test_t_a_value_the_database_cannot_store_is_invalid_input(session):
    if backend.is_sqlite(session):
        statement, value = text("SELECT zeroblob(:n)"), 2**31
    else:
        statement, value = text("SELECT CAST(:n AS integer)"), "many"
    with pytest.raises(InvalidInput, match="cannot store a value"):
        backend.write(session, lambda c: c.execute(statement.bindparams(bindparam("n", value))))


@pytest.mark.parametrize("statement", ["SELECT * FROM nowhere", "SELECT no_such_column FROM external_session"])
def test_t_a_missing_table_or_column_is_a_schema_mismatch(session, statement):
    with pytest.raises(SchemaMismatch, match="agentgit db check"):
        backend.write(session, lambda c: c.execute(text(statement)))
    with pytest.raises(SchemaMismatch, match="agentgit db check"), backend.reading(session) as transaction:
        transaction.execute(text(statement))


SQLSTATES = {
    "40001 40P01 55P03": (TransactionConflict, "interfered"),
    "23502 23514 P0001": (AgentGitError, "does not help"),
    "22P05 54000": (InvalidInput, "cannot store"),
    "42501": (NotAllowed, "grant"),
    "42P01": (SchemaMismatch, "db check"),
    "XX001": (Corrupt, "damaged"),
    "53100": (Unavailable, "Free some space"),
    "25006": (Unavailable, "cannot be written"),
    "57014": (Unavailable, "statement_timeout"),
}


def test_t_each_sqlstate_maps_to_an_exception(postgres_url):
    """The SQLSTATE of a PostgreSQL error, not its message, decides which exception is raised."""
    with closing(Database(postgres_url)) as database:
        for states, (kind, said) in SQLSTATES.items():
            for state in states.split():
                with pytest.raises(kind, match=said) as raised, database.reading() as transaction:
                    transaction.connection.exec_driver_sql(
                        f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$"
                    )
                assert kind is not AgentGitError or type(raised.value) is AgentGitError


def test_t_a_missing_row_is_not_reported_as_deleted(repo):
    branch_id = new_id()
    for work in (
        lambda c: repo.context.store.sessions.branch(c, branch_id),
        lambda c: repo.context.store.sessions.merge_metadata(c, branch_id, {"a": 1}),
        lambda c: repo.context.store.checkpoints.load(c, 7),
        lambda c: repo.context.store.operations.end(c, 7, "done", {}),
        lambda c: repo.context.store.sessions.load_row(c, 7),
        lambda c: repo.context.store.sessions.touch(c, SimpleNamespace(id=7, external_session_id=7))(),
        lambda c: repo.context.store.journal.move(c, 7, "reversed"),
    ):
        with pytest.raises(NotFound, match=r"There is no [a-z ]+ \d+ in this database\..*agentgit fsck") as raised:
            backend.write(repo, work)
        assert "somebody has deleted" not in str(raised.value)
