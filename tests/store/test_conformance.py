"""The conformance kit: SQLite and PostgreSQL keep every rule, and a broken backend fails the rule that it breaks."""

import sqlite3
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import bindparam, update

import agentgit
from agentgit.conformance import RULES, NotCheckable, __main__, check
from agentgit.store import database
from agentgit.store.objects.blobs import Blobs, Leaf
from agentgit.store.queries.lookup import Lookup
from agentgit.store.records import checkpoints, journal, sessions
from agentgit.store.records.sessions import SessionStore
from agentgit.store.sql.columns import SafeText, UTCDateTime
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.sqlite import SQLiteConnections
from agentgit.store.sql.tables import BRANCH

BY_NAME = {str(rule): rule for rule in RULES}


def url(found):
    return found.url.render_as_string(hide_password=False)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_sqlite_and_postgresql_keep_every_rule(rule, database):
    """Each rule of the contract is kept on SQLite and PostgreSQL."""
    rule.check(lambda: agentgit.open(url(database)))


def test_an_in_memory_database_keeps_the_schema_rules():
    """An in-memory database keeps the schema rules, which need no second handle."""
    with agentgit.open(":memory:") as repo:
        rules = [BY_NAME["schema-is_newest"], BY_NAME["schema-has_tables"]]
        assert check(lambda: agentgit.open(":memory:"), rules).has_passed
        assert repo.sessions() == []


ONE_HANDLE = (
    "schema-refuses_doubles", "schema-refuses_orphans", "schema-keeps_tenants_apart", "schema-keeps_the_trail",
    "concurrency-late_ones_are_fenced", "users-see_only_their_own", "users-may_have_the_same_names",
    "users-do_what_their_role_allows", "saver-is_a_whole_saver", "whole-leaves_all_sound",
)  # fmt: skip


@pytest.mark.parametrize("name", ONE_HANDLE)
def test_an_in_memory_database_keeps_the_rules_of_one_handle(name):
    """An in-memory database keeps each rule whose check opens the database once."""
    with agentgit.open(":memory:") as repo:
        handles = iter([repo])
        BY_NAME[name].check(lambda: next(handles))


def test_every_rule_is_a_distinct_sentence():
    """Each rule has a distinct name and a readable sentence, and the docs state their number."""
    assert all(rule.text.endswith(".") and len(rule.text) > 20 for rule in RULES)
    assert len(BY_NAME) == len(RULES)
    page = (Path(__file__).parents[2] / "docs/postgresql.md").read_text()
    assert f"{len(RULES)} rules: {len(RULES)} ok, 0 FAILED, 0 left out" in page


# -- broken backends


def commits_always(monkeypatch, path):
    """Commit transactions that fail."""
    plain = SQLiteConnections.transaction

    @contextmanager
    def transaction(self, mode):
        failure = None
        with plain(self, mode) as connection:
            try:
                yield connection
            except Exception as error:  # noqa: BLE001  # that is what is broken
                failure = error
        if failure is not None:
            raise failure

    monkeypatch.setattr(SQLiteConnections, "transaction", transaction)


def swallows(monkeypatch, path):
    """Swallow the exceptions of transactions."""
    plain = database.Database.write

    def write(self, work, **how):
        try:
            return plain(self, work, **how)
        except Exception:  # noqa: BLE001  # that is what is broken
            return None

    monkeypatch.setattr(database.Database, "write", write)


def never_again(monkeypatch, path):
    """Fail a transaction at its first conflict with another one."""
    monkeypatch.setattr(database, "ATTEMPTS", 1)


def everybody_takes(monkeypatch, path):
    """Hand a branch to every caller, even while another one holds it."""
    always = update(BRANCH).where(BRANCH.c.tenant_id == bindparam("tenant"), BRANCH.c.id == bindparam("branch"))
    always = always.values(status="running", owner=bindparam("by"), epoch=BRANCH.c.epoch + 1).returning(BRANCH)
    monkeypatch.setattr(sessions, "_ACQUIRE", dict.fromkeys((False, True), CompiledStatement(always)))


def no_epochs(monkeypatch, path):
    """Accept writes of runs that no longer hold their branch."""
    monkeypatch.setattr(SessionStore, "require_held", lambda *a: None)


def reads_then_writes(monkeypatch, path):
    """Write metadata over a stale copy, as if they had been read in an earlier transaction."""
    plain = SessionStore.merge_metadata

    def note(self, connection, branch_id, facts):
        stale = getattr(self, "stale", "{}")
        self.stale = '{"lost": 1}'
        connection.exec_driver_sql("UPDATE internal_session SET meta = ? WHERE id = ?", (stale.encode(), branch_id))
        plain(self, connection, branch_id, facts)

    monkeypatch.setattr(SessionStore, "merge_metadata", note)


def any_status(monkeypatch, path):
    """Allow any status to follow any other."""

    def moving(status, columns):
        new = {name: bindparam(f"new_{name}") for name in columns}
        changed = update(journal.TOOL_INVOCATION).where(*journal._is_invocation).values(status=status, **new)
        return CompiledStatement(changed.returning(journal.TOOL_INVOCATION))

    monkeypatch.setattr(journal, "_moving", moving)


def local_times(monkeypatch, path):
    """Store times without time zone and microseconds."""

    def bound(self, value, dialect):
        return value.replace(tzinfo=None, microsecond=0) if value is not None else None

    monkeypatch.setattr(UTCDateTime, "process_bind_param", bound)
    for statement in (journal._ADD, checkpoints._ADD):  # drop what was compiled with the correct type
        monkeypatch.setattr(statement, "_compiled", {})


def plain_text(monkeypatch, path):
    """Cut text at U+0000, as C does, and replace a surrogate."""
    monkeypatch.setattr(
        SafeText,
        "process_bind_param",
        lambda self, value, dialect: value and value.split("\0")[0].replace("\ud83d", "?"),
    )


def unchecked(monkeypatch, path):
    """Return values without checking their hash."""
    monkeypatch.setattr(
        Blobs, "checked", lambda self, connection, key, type_, codec, data: Leaf(key, type_, bytes(data))
    )


def no_foreign_keys(monkeypatch, path):
    """Allow rows to refer to missing rows."""
    plain = SQLiteConnections.transaction

    @contextmanager
    def transaction(self, mode):
        connection = self._checkout()
        connection.connection.dbapi_connection.execute("PRAGMA foreign_keys=OFF")
        self._idle.append(connection)
        with plain(self, mode) as given:
            yield given

    monkeypatch.setattr(SQLiteConnections, "transaction", transaction)


def no_trail(monkeypatch, path):
    """Drop the triggers that protect the audit trail."""
    with sqlite3.connect(path) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")


def lost_column(monkeypatch, path):
    """Drop a column."""
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE tool_invocation DROP COLUMN answers")


def any_role(monkeypatch, path):
    """Allow every user who can see a session to do anything with it."""
    monkeypatch.setattr(Lookup, "_expect", lambda self, role, needs, session_id: None)


BREAKS = {
    any_role: "users-do_what_their_role_allows",
    commits_always: "transactions-leave_nothing_if_they_fail",
    swallows: "transactions-leave_nothing_if_they_fail",
    never_again: "transactions-run_again",
    everybody_takes: "concurrency-one_takes_a_branch",
    no_epochs: "concurrency-late_ones_are_fenced",
    reads_then_writes: "concurrency-no_fact_is_lost",
    any_status: "concurrency-one_reverses_a_call",
    local_times: "values-keep_times",
    plain_text: "values-keep_text",
    unchecked: "values-are_checked",
    no_foreign_keys: "schema-refuses_orphans",
    no_trail: "schema-keeps_the_trail",
    lost_column: "schema-has_tables",
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
def test_a_broken_backend_fails_the_rule_it_breaks(broken, sqlite_template, tmp_path, monkeypatch):
    """A rule that was kept fails with a reason once the backend is broken."""
    path = tmp_path / "broken.db"
    path.write_bytes(sqlite_template.read_bytes())
    rule = BY_NAME[BREAKS[broken]]
    opened = lambda: agentgit.open(path)  # noqa: E731  # as a backend's author would write it
    assert check(opened, [rule]).has_passed
    broken(monkeypatch, path)
    report = check(opened, [rule])
    assert not report.has_passed
    assert str(report).startswith("FAILED")
    assert report.results[0].why


def test_a_rule_that_cannot_be_checked_is_skipped(tmp_path, monkeypatch):
    """Without LangGraph's suite its rule is left out, and the report says what to install."""
    monkeypatch.setattr("agentgit.conformance.checkpoints.find_spec", lambda name: None)
    report = check(lambda: agentgit.open(tmp_path / "a.db"), [BY_NAME["saver-is_a_whole_saver"]])
    assert report.has_passed
    assert "pip install langgraph-checkpoint-conformance" in str(report)
    with pytest.raises(NotCheckable):
        BY_NAME["saver-is_a_whole_saver"].check(lambda: agentgit.open(tmp_path / "a.db"))


def test_the_conformance_kit_runs_as_a_command(tmp_path, monkeypatch, capsys):
    """`python -m agentgit.conformance URL` prints each rule, and its exit code says whether all are kept."""
    path = tmp_path / "new.db"
    monkeypatch.setattr(sys, "argv", ["conformance", str(path)])
    monkeypatch.setattr(__main__, "RULES", [BY_NAME["schema-is_newest"], BY_NAME["schema-keeps_the_trail"]])
    assert __main__.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 rules: 2 ok, 0 FAILED, 0 left out"
    no_trail(monkeypatch, path)
    assert __main__.main() == 1
    assert "FAILED    schema: Rows of the audit trail" in capsys.readouterr().out
    path.write_text("no database at all, only a text of some length")
    with pytest.raises(SystemExit) as refused:
        __main__.main()
    assert refused.value.code == agentgit.SchemaMismatch.exit_code
    assert "not a SQLite database" in capsys.readouterr().err
