# ruff: noqa: S608  # the names in the statements are our own
"""What `fsck` names, and what is refused, after edits of stored data past triggers and constraints."""

import io
import sqlite3
from contextlib import closing, contextmanager, suppress

import backend
import pytest
from scripted import World, obedient, tool_node_graph
from sqlalchemy import Boolean, DateTime, Integer, LargeBinary, Text, select, true, tuple_, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator
from test_encryption import ONE, flipped, story
from typer.testing import CliRunner

import agentgit
from agentgit import Corrupt, Keyring
from agentgit.cli.app import app
from agentgit.demo import EFFECTS, build
from agentgit.store.objects.blobs import BlobStore
from agentgit.store.records.encryption_keys import raw_table, sealed_columns
from agentgit.store.sql.rows import update_rows
from agentgit.store.sql.tables import LIST, METADATA

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

TABLES = [table for table in METADATA.sorted_tables if table.name != "encryption_key"]


def live(repo):
    """Create sessions with branches, calls, a rollback, tags, users and an erasure."""
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    for n in range(3):
        agent.run(f"add i{n}")
    agent.checkpoint("named", data={"a": 1})
    agent.session.tag("named", "v1", branch=agent.branch_id)
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
    """Open a database filled by `live`, on SQLite without the triggers that refuse changes to events."""
    repo = lived_through(live)
    if backend.is_sqlite(repo):
        with closing(sqlite3.connect(str(backend.url(repo).database))) as raw:
            for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                raw.execute(f"DROP TRIGGER {name}")
            raw.commit()
    return repo


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
        """Return the places of the rows of a table, without those that only writers lock."""
        where = "WHERE external_session_id NOT BETWEEN -64 AND -1" if table.name == "blob" else ""
        return [row[0] for row in self._run(f'SELECT {self.place} FROM "{table.name}" {where} ORDER BY {order}')]

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
    if database.is_sqlite:
        return SQLITE
    plain = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    found = next((values for kind, values in SERVER.items() if isinstance(plain, kind)), WORDS)
    return [value for value in found if value != "NULL" or not column.primary_key]


# -- any cell


@pytest.mark.long
def test_fsck_completes_after_any_edit_of_any_column_that_no_constraint_refuses(lived):
    edits = 0
    for table in TABLES:
        for number, column in enumerate(table.c):
            odd = values_for(column, backend.database(lived))
            for value in odd[number % len(odd) :][:2]:
                with Hand(lived) as hand:
                    rows = hand.rows(table)
                    at = hand.write(table, rows[-(number % 2)], column.name, value) if rows else None
                    if at is not None:
                        edits += 1
                        lived.maintenance.fsck(level=3)
    assert edits > 60
    assert lived.maintenance.fsck(level=3).findings == ()


# -- stored JSON


JSON_COLUMNS = [
    "external_session.meta", "internal_session.meta", "checkpoint.data", "tool_invocation.args",
    "tool_invocation.result", "tool_invocation.answers", "operation.request", "operation.report",
    "graph_checkpoint.meta", "graph_checkpoint.header",
]  # fmt: skip
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
    "events": lambda repo, session: repo.events.newest(limit=1000),
}
WRITERS = {
    "checkpoint, created": lambda repo, session: session.checkpoint("another"),
    "fork": lambda repo, session: session.fork("named"),
    "rollback": lambda repo, session: session.rollback("main#1", force=True),
    "template": lambda repo, session: repo.wrap(
        tool_node_graph(obedient(), World().tools()), "t", template=session.get_checkpoint("named")
    ),
    "collection": lambda repo, session: repo.maintenance.gc(),
    "erasure": lambda repo, session: session.delete(force=True),
}
"""Verbs that read stored JSON, and those that change the database too."""


UNREADABLE = ("ff", "5b315d", "7b")
"""Bytes that are no JSON object: no text, a list, and an incomplete object."""

WRONG_SHAPES = {
    "graph_checkpoint.header": ["{}"],
    "graph_checkpoint.meta": ['{"parents": 5}'],
    "external_session.meta": ['{"retention": 5}', '{"retention": {"keep_last": "x"}}'],
    "internal_session.meta": [
        '{"rerun": 5}', '{"rerun": {"status": [], "verdict": {}}}', '{"exploration": true}',
        '{"exploration": {"name": "x", "of": 1, "choices": [1], "end": [1]}}', '{"world_drift": 3}',
        '{"world_note": []}', '{"template": {}}',
    ],
    "operation.request": ["{}", '{"steps": [{}]}', '{"steps": [], "accepted": 3}', '{"steps": [], "files": {"x": 1}}'],
    "operation.report": ['{"kept": [3]}', '{"kept": [{"invocation": 1, "reason": 7}]}', '{"files": {"changes": 5}}',
        '{"kept": [{"invocation": 1, "reason": "a", "next": [{"verb": "unheard of"}]}]}', '{"calls": [{}]}',
    ],
}  # fmt: skip
"""Objects that agentgit never writes into these columns."""


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_SHAPES.items() for value in values]
)
def test_verbs_on_a_session_with_json_of_a_wrong_shape_work_or_raise_corrupt_and_fsck_names_it(lived, name, value):
    damage_column(Hand(lived), name, value.encode().hex())
    assert any(finding.row.startswith(f"{name.partition('.')[0]} ") for finding in lived.maintenance.fsck(2).findings)
    for verb in (READERS | WRITERS).values():
        with suppress(Corrupt):
            verb(lived, lived.session("s"))


@pytest.mark.parametrize("name", ["graph_checkpoint.header", "external_session.meta", "blob.data"])
def test_a_damaged_session_can_be_erased_and_hinders_no_other(lived, name):
    damage_column(Hand(lived), name, "ff")
    other = lived.session("other", create=True)
    assert {one.session_name for one in lived.sessions()} == {"s", "other"}
    with suppress(Corrupt):
        lived.maintenance.gc()
    lived.session("s").delete(force=True)
    assert [one.session_name for one in lived.sessions()] == ["other"]
    assert not other.checkpoints()
    assert lived.maintenance.fsck(level=3).findings == ()


def test_reading_unreadable_json_raises_corrupt(lived):
    for number, name in enumerate(JSON_COLUMNS):
        value = UNREADABLE[(number + backend.is_sqlite(lived)) % 3]  # another one on each database
        with Hand(lived) as hand:
            damage_column(hand, name, value)
            named = [finding.row for finding in lived.maintenance.fsck(level=2).findings]
            is_valid = value == "5b315d" and name in ("checkpoint.data", "tool_invocation.result")  # any JSON
            assert is_valid or any(row.startswith(f"{name.partition('.')[0]} ") for row in named), name
            for verb in READERS.values():
                with suppress(Corrupt):
                    verb(lived, lived.session("s"))


@pytest.mark.parametrize("name", JSON_COLUMNS)
def test_changing_a_session_with_unreadable_json_raises_corrupt(lived, name):
    damage_column(Hand(lived), name, UNREADABLE[JSON_COLUMNS.index(name) % 3])
    for change in WRITERS.values():
        with suppress(Corrupt):
            change(lived, lived.session("s"))


def damage_column(hand, name, value):
    table, _, column = name.partition(".")
    literal = f"x'{value}'" if hand.database.is_sqlite else f"'\\x{value}'"
    for row in hand.rows(METADATA.tables[table]):
        hand.write(METADATA.tables[table], row, column, literal)


@pytest.mark.parametrize("value", UNREADABLE)
def test_listing_an_unreadable_event_raises_corrupt_with_its_row(lived, value):
    with Hand(lived) as hand:
        damage_column(hand, "event.detail", value)
        with pytest.raises(Corrupt, match="event "):
            lived.events.newest(session="s")


def test_fsck_on_the_command_line_names_an_unreadable_row_and_exits_with_12(lived):
    with Hand(lived) as hand:
        damage_column(hand, "internal_session.meta", UNREADABLE[0])
        done = CliRunner().invoke(app, ["fsck", "--db", backend.address(lived)])
    assert done.exit_code == 12
    assert "internal_session " in done.stdout
    assert done.stdout.replace("\n", "").isprintable()


# -- encrypted values


ENCRYPTED_EDITS = {
    "a changed bit": "does not decrypt",
    "in clear": "is not encrypted",
    "from another row": "does not decrypt",
    "from another column": "does not decrypt",
    "from another table": "does not decrypt",
}
"""The edits of an encrypted value, each with what fsck says."""


def test_an_edited_or_moved_encrypted_value_is_named_by_fsck_and_never_returned(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the demo's graph creates its shop in the current folder
    with agentgit.open(database.url, keyring=Keyring({"a": ONE})) as repo:
        cells = {place: fill(repo, *place) for place in fill_tables(repo, tmp_path)}
        wrong = []
        for (name, column), ((key, _), _) in cells.items():
            edits = edits_of(cells, name, column)
            for edit, value in edits.items():
                with edited(repo, name, column, key, value):
                    with backend.reading(repo) as transaction, pytest.raises(Corrupt):
                        read(repo, transaction, name, column, key)
                    found = [one.what for one in repo.maintenance.fsck(2).findings if one.row.startswith(f"{name} ")]
                    if (name != "blob" and not [what for what in found if ENCRYPTED_EDITS[edit] in what]) or not found:
                        wrong.append((name, column, edit, found))
            with backend.reading(repo) as transaction:
                read(repo, transaction, name, column, key)
        assert wrong == []


def edits_of(cells, name, column):
    """Return the edits of the first of two cells of an encrypted column, each with the value to store."""
    (_, value), (_, other) = cells[name, column]
    of_type = {place: two[0][1] for place, two in cells.items() if isinstance(two[0][1], str) == isinstance(value, str)}
    edits = {
        "a changed bit": flipped(value),
        "in clear": "in clear" if isinstance(value, str) else b'{"in": "clear"}',
        "from another row": other,
        "from another table": next(stored for (table, _), stored in of_type.items() if table != name),
    }
    siblings = [stored for (table, there), stored in of_type.items() if table == name and there != column]
    return edits | ({"from another column": siblings[0]} if siblings else {})


def fill_tables(repo, tmp_path):
    """Create at least two rows in each table that has encrypted columns, and return the columns."""
    story(repo, tmp_path)
    agent = repo.wrap(build("shop.db"), session="files", workspace=tmp_path / "w", effects=EFFECTS)
    for name in ("one", "two"):
        (tmp_path / "w" / name).write_text(name)
        agent.checkpoint(name)
        repo.session("files").tag("HEAD", name)
    agent.rollback("one")
    return [(name, column) for name, columns in sealed_columns().items() for column in columns]


def fill(repo, name, column):
    """Write an encrypted column of two rows that have no value there, and return two keys with the stored values."""
    table, stored = METADATA.tables[name], raw_table(name)
    is_whole = stored.c.type != LIST if name == "blob" else true()  # lists of hashes are not encrypted
    with backend.reading(repo) as transaction:
        keys = [tuple(row) for row in transaction.execute(select(*stored.primary_key).where(is_whole).limit(2))]
    is_empty = table.c[column].is_(None)
    value = "told" if isinstance(stored.c[column].type, Text) else b"{}"
    for key in keys:
        condition = tuple_(*table.primary_key) == key
        backend.write(repo, lambda c, p=condition: update_rows(c, table, p, is_empty, **{column: value}))
    with backend.reading(repo) as transaction:
        return [
            (key, transaction.execute(select(stored.c[column]).where(tuple_(*stored.primary_key) == key)).scalar_one())
            for key in keys
        ]


@contextmanager
def edited(repo, name, column, key, value):
    """Write a stored value into a cell, and restore the cell's own value afterwards."""
    table = raw_table(name)
    is_row = tuple_(*table.primary_key) == key
    with backend.reading(repo) as transaction:
        before = transaction.execute(select(table.c[column]).where(is_row)).scalar_one()
    try:
        backend.write(repo, lambda c: c.execute(update(table).where(is_row).values({column: value})))
        yield
    finally:
        backend.write(repo, lambda c: c.execute(update(table).where(is_row).values({column: before})))


def read(repo, transaction, name, column, key):
    """Read an encrypted value as agentgit does."""
    if name == "blob":
        session_id, hash_ = key
        BlobStore().of(session_id).get_many(transaction, [hash_])
    table = METADATA.tables[name]
    return transaction.execute(select(table.c[column]).where(tuple_(*table.primary_key) == key)).one()
