# ruff: noqa: S608  # the names in the statements are our own
"""`audit verify` and `fsck` after edits of any column with any value, past triggers and constraints."""

import io
import json
import sqlite3
from contextlib import closing, suppress

import backend
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from scripted import World, obedient, tool_node_graph
from sqlalchemy import Boolean, DateTime, Integer, LargeBinary
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator
from typer.testing import CliRunner

from agentgit import Corrupt
from agentgit.cli.app import app
from agentgit.store.sql.tables import METADATA

NESTED = b"[" * 100_000
SQLITE = [
    "NULL", "0", "-1", "7", "9223372036854775807", "-9223372036854775808", "1.5", "9e999", "''", "'abc'",
    "'2026-13-45'", "'2026-01-01'", "x''", "x'ff'", "x'7b7d'", "x'5b5d'", "x'6e756c6c'", "CAST(x'ff41' AS TEXT)",
    "'a' || char(0)", "'\\u12'", "'\\'", "zeroblob(31)", "zeroblob(33)", "CAST(zeroblob(100000) AS TEXT)",
    f"x'{NESTED.hex()}'",
]  # fmt: skip
"""The literals to write into a column of SQLite, which accepts any of them."""
SERVER = {
    Integer: ["NULL", "0", "-1", "7", "2147483647", "-2147483648"],
    LargeBinary: ["NULL", "''", "'\\xff'", "'{}'", "'[]'", "'null'", "'\\x00'", f"'{NESTED.decode()}'"],
    DateTime: ["NULL", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'12026-01-01'", "'2026-01-01'"],
    Boolean: ["NULL", "true", "false"],
}
WORDS = ["NULL", "''", "'abc'", "'\\u12'", "'\\'", "'\\uzzzz'"]

TABLES = [table for table in METADATA.sorted_tables if "tenant_id" in table.c and table.name != "encryption_key"]
OPTIONS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # an example is one edit, so there is nothing to shrink
)  # fmt: skip


def live(repo):
    """Create sessions with branches, calls, a rollback, tags, users and an erasure."""
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    for n in range(3):
        agent.run(f"add i{n}")
    agent.checkpoint("named", data={"a": 1})
    agent.tag("named", "v1")
    agent.rollback("main#3").run("add x")
    repo.session("s").sharing.share(repo.users.add("ann"), "viewer")
    repo.session("s").sharing.create_link("viewer")
    repo.keys.create("k", user="ann")
    repo.session("gone", create=True)
    repo.session("gone").delete()
    repo.session().search("i1")
    assert repo.maintenance.fsck(level=3).findings == ()


@pytest.fixture
def lived(lived_through):
    """Open a database filled by `live`, without NOT NULL constraints, and on SQLite without triggers."""
    repo = lived_through(live)
    database = backend.database(repo)
    if database.is_sqlite:
        with closing(sqlite3.connect(str(database.url.database))) as raw:
            raw.execute("PRAGMA writable_schema=ON")
            raw.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'")
            raw.execute("DELETE FROM sqlite_master WHERE type = 'trigger'")
            raw.commit()
        yield repo
        return
    columns = [(table.name, c.name) for table in TABLES for c in table.c if not (c.nullable or c.primary_key)]
    _owner(database, *(f'ALTER TABLE "{table}" ALTER "{name}" DROP NOT NULL' for table, name in columns))
    yield repo
    _owner(database, f"TRUNCATE {', '.join(_quoted(table.name) for table in METADATA.sorted_tables)}")
    _owner(database, *(f'ALTER TABLE "{table}" ALTER "{name}" SET NOT NULL' for table, name in columns))


def _quoted(name):
    return f'"{name}"'


def _owner(database, *statements):
    """Run statements as the owner of a PostgreSQL database, past its triggers, and return the rows of the last one."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for statement in statements:
            done = connection.exec_driver_sql(statement)
        return done.fetchall() if done.returns_rows else []


class Hand:
    """A writer into single cells, which restores the old values at the end of its block."""

    def __init__(self, repo):
        self.database = backend.database(repo)
        self.place = "rowid" if self.database.is_sqlite else "ctid"
        self._undo = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for table, row, column, before in reversed(self._undo):
            self._set(table, row, column, before)

    def rows(self, table, order="1"):
        """Return the places of all rows of a table."""
        return [row[0] for row in self._run(f'SELECT {self.place} FROM "{table.name}" ORDER BY {order}')]

    def key(self, table, row):
        """Return the key that names a row in findings."""
        keys = [c.name for c in table.primary_key if c.name != "tenant_id"]
        return self._run(f'SELECT {", ".join(keys)} FROM "{table.name}" WHERE {self.place} = {self._at(row)}')[0]

    def write(self, table, row, column, value):
        """Write a literal into a cell, and return the new place of the row, or None if the database refuses it."""
        if self.database.is_sqlite:
            quoted = f'SELECT typeof("{column}"), quote("{column}") FROM "{table.name}" WHERE rowid = {row}'
            kind, before = self._run(quoted)[0]
            before = f"CAST({before} AS TEXT)" if kind == "text" else before
        else:
            query = f'SELECT quote_nullable("{column}") FROM "{table.name}" WHERE ctid = {self._at(row)}'
            before = self._run(query)[0][0]
        at = self._set(table, row, column, value)
        if at is not None:
            self._undo.append((table, at, column, before))
        return at

    def _set(self, table, row, column, value):
        statement = f'UPDATE "{table.name}" SET "{column}" = {value} WHERE {self.place} = {self._at(row)}'
        try:
            found = self._run(statement + f" RETURNING {self.place}")
        except (DBAPIError, sqlite3.IntegrityError):  # an index or the type of the column refuses the value
            return None
        return found[0][0]

    def _at(self, row):
        return row if self.database.is_sqlite else f"'{row}'"

    def _run(self, statement):
        if not self.database.is_sqlite:
            return _owner(self.database, statement.replace("%", "%%"))
        with closing(sqlite3.connect(str(self.database.url.database))) as raw:
            raw.text_factory = lambda data: data.decode(errors="surrogateescape")
            found = raw.execute(statement).fetchall()
            raw.commit()
        return found


def values_for(column, database):
    """Return the literals to write into a column."""
    if database.is_sqlite:
        return SQLITE
    plain = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    found = next((values for kind, values in SERVER.items() if isinstance(plain, kind)), WORDS)
    return [value for value in found if value != "NULL" or not column.primary_key]


EVENT = METADATA.tables["audit_event"]


@pytest.mark.long
@OPTIONS
@given(data=st.data())
def test_any_edit_of_the_audit_trail_is_reported_by_row(lived, data):
    """An edit of any column of any event is reported by its row, and so is a later edit."""
    column = data.draw(st.sampled_from([c for c in EVENT.c if c.name != "tenant_id"]))
    value = data.draw(st.sampled_from(values_for(column, backend.database(lived))))
    with Hand(lived) as hand:
        rows = hand.rows(EVENT, "external_session_id, seq")
        number = data.draw(st.integers(0, len(rows) - 4))
        before, after = hand.key(EVENT, rows[number]), hand.key(EVENT, rows[number + 1])
        later = hand.key(EVENT, rows[number + 2])
        assume(before[0] == after[0] == later[0])
        as_text = "" if backend.is_sqlite(lived) else "::text"
        raw = hand._run(
            f'SELECT "{column.name}"{as_text} FROM audit_event WHERE {hand.place} = {hand._at(rows[number])}'
        )
        at = hand.write(EVENT, rows[number], column.name, value)
        assume(at is not None)
        now = hand._run(f'SELECT "{column.name}"{as_text} FROM audit_event WHERE {hand.place} = {hand._at(at)}')
        assume(repr(now) != repr(raw))
        hand.write(EVENT, rows[number + 2], "user_id", "77")
        for found in (lived.events.verify().findings, lived.maintenance.fsck(level=2).findings):
            named = {one.row for one in found if one.row.startswith("audit_event")}
            moved = column.name in ("external_session_id", "seq")
            assert f"audit_event {before[0]}/{before[1]}" in named or moved, (column.name, value, found)
            assert not moved or f"audit_event {after[0]}/{after[1]}" in named, (column.name, value, found)
            assert f"audit_event {later[0]}/{later[1]}" in named, (column.name, value, found)
    assert lived.events.verify().is_sound


@pytest.mark.long
def test_verify_and_fsck_name_an_edited_event_and_exit_with_12(lived):
    """The command line names the edited row and exits with the code of findings, whatever the row holds."""
    is_sqlite = backend.is_sqlite(lived)
    column, wrong = ("kind", "CAST(x'ff1b41' AS TEXT)") if is_sqlite else ("created_at", "'infinity'")
    with Hand(lived) as hand:
        row = hand.rows(EVENT, "external_session_id, seq")[2]
        session_id, seq = hand.key(EVENT, row)
        hand.write(EVENT, row, column, wrong)
        url = backend.address(lived)
        done = [CliRunner().invoke(app, [*words, "--db", url]) for words in (["audit", "verify", "--json"], ["fsck"])]
    assert [one.exit_code for one in done] == [12, 12]
    assert json.loads(done[0].stdout)["is_sound"] is False
    for one in done:
        assert f"audit_event {session_id}/{seq}" in one.stdout
        assert one.stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize("value", ["'[1]'", "'{'", "x'ff'"])
def test_listing_an_unreadable_event_raises_corrupt_with_its_row(lived, value):
    """Listing the events of an edited trail raises Corrupt and names the row that cannot be read."""
    is_sqlite = backend.is_sqlite(lived)
    literal = value if not is_sqlite or value.startswith("x") else f"CAST({value} AS BLOB)"
    with Hand(lived) as hand:
        row = hand.rows(EVENT, "external_session_id, seq")[-2]
        session_id, seq = hand.key(EVENT, row)
        hand.write(EVENT, row, "detail", literal if is_sqlite else value.replace("x'ff'", "'\\xff'"))
        with pytest.raises(Corrupt, match=f"audit_event {session_id}/{seq}"):
            list(lived.events.list(session="s"))


def expect_named(repo, hand, table, column, value, row):
    """Edit one cell, run each level of fsck, and assert that it reports a value that the column cannot hold."""
    at = hand.write(table, row, column.name, value)
    if at is None:
        return
    for level in (1, 2, 3):
        found = repo.maintenance.fsck(level=level).findings
    if is_misfit(backend.database(repo), hand, table, column, at):
        assert any(one.row.startswith(f"{table.name} ") for one in found), (table.name, column.name, value, found)


def is_misfit(database, hand, table, column, at):
    """Return whether a cell holds a value that its column cannot hold."""
    if not database.is_sqlite:
        query = f'SELECT "{column.name}" IS NULL FROM "{table.name}" WHERE ctid = {hand._at(at)}'
        return hand._run(query)[0][0] and not column.nullable
    kind = hand._run(f'SELECT typeof("{column.name}") FROM "{table.name}" WHERE rowid = {at}')[0][0]
    plain = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    good = "integer" if isinstance(plain, Integer | Boolean) else "blob" if isinstance(plain, LargeBinary) else "text"
    return kind != good and not (kind == "null" and column.nullable) and column.name != "tenant_id"


@pytest.mark.long
@OPTIONS
@given(data=st.data())
def test_fsck_completes_after_any_edit_of_any_table(lived, data):
    """After any edit of any table each level of fsck completes, and the last reports a value that does not fit."""
    with Hand(lived) as hand:
        table = data.draw(st.sampled_from([table for table in TABLES if hand.rows(table)]))
        column = data.draw(st.sampled_from(list(table.c)))
        value = data.draw(st.sampled_from(values_for(column, backend.database(lived))))
        expect_named(lived, hand, table, column, value, data.draw(st.sampled_from(hand.rows(table))))


def test_fsck_reports_an_unreadable_time_at_every_checkpoint(lived):
    """Fsck reports an unreadable time at each checkpoint, also at those that heads are compared with."""
    table = METADATA.tables["checkpoint"]
    value = "'2026-13-45'" if backend.is_sqlite(lived) else "'-infinity'"
    with Hand(lived) as hand:
        written = [hand.write(table, row, "created_at", value) for row in hand.rows(table)]
        named = {one.row for one in lived.maintenance.fsck(level=3).findings if "created_at" in one.what}
        assert len(named) == len(written) > 5


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_fsck_completes_after_sampled_edits_of_each_table(lived, table):
    """Fsck completes for every tenth pair of a column and a value, in the first or the last row."""
    pairs = [(column, value) for column in table.c for value in values_for(column, backend.database(lived))]
    for number, (column, value) in enumerate(pairs[::10]):
        with Hand(lived) as hand:
            if rows := hand.rows(table):
                expect_named(lived, hand, table, column, value, rows[-(number % 2)])


JSON_COLUMNS = [
    "external_session.meta",
    "internal_session.meta",
    "checkpoint.data",
    "tool_invocation.args",
    "tool_invocation.result",
    "tool_invocation.answers",
    "operation.request",
    "operation.report",
    "graph_checkpoint.meta",
    "graph_checkpoint.header",
]
READERS = {
    "sessions": lambda repo, session: repo.sessions(),
    "tree": lambda repo, session: str(session.tree()),
    "folded tree": lambda repo, session: str(session.folded_tree()),
    "log": lambda repo, session: [point.metadata for point in session.log()],
    "checkpoint": lambda repo, session: session.get_checkpoint("named").session_state,
    "tool track": lambda repo, session: session.tool_track(),
    "compare": lambda repo, session: str(session.compare("main#1", "named")),
    "plan of a rollback": lambda repo, session: str(session.plan_rollback("main#1")),
    "plan of a switch": lambda repo, session: str(session.plan_switch("main")),
    "operations": lambda repo, session: session.operations(),
    "stats": lambda repo, session: session.stats(),
    "export": lambda repo, session: session.export(io.BytesIO()),
    "trajectories": lambda repo, session: list(session.trajectories()),
    "search": lambda repo, session: repo.session().search("i1"),
    "events": lambda repo, session: list(repo.events.list()),
    "checkpoint, created": lambda repo, session: session.checkpoint("another"),
    "fork": lambda repo, session: session.fork("named"),
    "rollback": lambda repo, session: session.rollback("main#1", force=True),
    "template": lambda repo, session: repo.wrap(
        tool_node_graph(obedient(), World().tools()), "t", template=session.get_checkpoint("named")
    ),
    "collection": lambda repo, session: repo.maintenance.gc(),
    "erasure": lambda repo, session: session.delete(),
}
"""Verbs that read stored JSON; those that change the database come last."""


@pytest.mark.parametrize("value", ["ff", "5b315d", "7b"], ids=["no text", "a list", "incomplete"])
@pytest.mark.parametrize("name", JSON_COLUMNS)
def test_reading_unreadable_json_raises_corrupt(lived, name, value):
    """Fsck names a row with unreadable JSON, and each verb works without it or raises Corrupt."""
    table, _, column = name.partition(".")
    literal = f"x'{value}'" if backend.is_sqlite(lived) else f"'\\x{value}'"
    hand = Hand(lived)  # restores nothing, because the verbs change and delete rows
    for row in hand.rows(METADATA.tables[table]):
        hand.write(METADATA.tables[table], row, column, literal)
    is_valid = value == "5b315d" and column in ("data", "result")  # these may hold any JSON
    named = [finding.row for finding in lived.maintenance.fsck(level=2).findings]
    assert is_valid or any(row.startswith(f"{table} ") for row in named)
    for read in READERS.values():
        with suppress(Corrupt):
            read(lived, lived.session("s"))
