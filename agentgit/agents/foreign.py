"""Opening the database of LangGraph's SqliteSaver, AsyncSqliteSaver or PostgresSaver: it is read, never changed."""

from __future__ import annotations

import importlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from agentgit.agents.kept_types import KeptTypes
from agentgit.agents.sources import Entry, Source, reading
from agentgit.errors import InvalidInput, NotFound, SchemaMismatch, Unavailable
from agentgit.store.database import read_url

COLUMNS = {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"}
"""What the table `checkpoints` of LangGraph's savers has, on SQLite and on PostgreSQL."""


class DatabaseSource(Source):
    """The threads in a database of LangGraph's savers.

    The names of threads and graph checkpoints come from columns; what is in them from the saver.

    Args:
        saver: one that reads from the connection.
        connection: sqlite3's or psycopg's; it is closed at the end.
        mark: how the driver writes a parameter.
    """

    def __init__(self, saver: Any, connection: Any, mark: str) -> None:
        super().__init__(saver)
        self._connection, self._mark = connection, mark

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def threads(self) -> list[str]:
        """List the threads, in the order of their first graph checkpoints."""
        query = "SELECT thread_id AS one, min(checkpoint_id) AS two FROM checkpoints GROUP BY thread_id ORDER BY 2, 1"
        with reading("The list of threads"):
            return [thread for thread, _ in self._rows(query)]

    def index(self, thread: str) -> list[Entry]:
        """List the graph checkpoints of a thread, in any order."""
        query = "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = "
        with reading(f"Thread {thread!r}"):
            return [Entry(ns, id, parent or None) for ns, id, parent in self._rows(query + self._mark, thread)]

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(query, values)
            return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in cursor.fetchall()]


def open_database(where: str | Path | URL) -> DatabaseSource:
    """Open a database of LangGraph's savers for reading only.

    Args:
        where: a path or a URL of SQLite or PostgreSQL.

    Raises:
        NotFound: there is no such file.
        SchemaMismatch: it is not a database of LangGraph's savers; the text says what it is.
        InvalidInput: it is no such URL, or the package of its saver is missing.
        Unavailable: it is out of reach.
    """
    url = _url(where)
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    if url.get_backend_name() in ("postgresql", "postgres"):
        return _postgres(url)
    raise InvalidInput(f"{url.drivername} is not supported; LangGraph's savers keep threads in SQLite and PostgreSQL.")


def _url(where: str | Path | URL) -> URL:
    if isinstance(where, URL):
        return where
    text = str(where)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    return read_url("postgresql" + text.removeprefix("postgres") if text.startswith("postgres:") else text)


def _saver(module: str, name: str, package: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InvalidInput(f"Reading this database needs LangGraph's own saver. Run: pip install {package}") from error


# -- SQLite


def _sqlite(url: URL) -> DatabaseSource:
    path = Path(url.database or "")
    if not url.database or url.database == ":memory:" or not path.exists():
        raise NotFound(f"There is no file {url.database}. Name the file that SqliteSaver writes.")
    if path.is_dir():
        raise SchemaMismatch(f"{path} is a directory. Name the file in it that SqliteSaver writes.")
    kind = _saver("langgraph.checkpoint.sqlite", "SqliteSaver", "langgraph-checkpoint-sqlite")
    connection = _read_only(path)
    try:
        tables = _sqlite_tables(connection, path)
        _expect(tables, f"{path} is a SQLite database")
        saver = kind(connection, serde=KeptTypes())
        saver.is_setup = True  # its setup would write
        saver._has_task_path = "task_path" in tables.get("writes", ())
        return DatabaseSource(saver, connection, "?")
    except BaseException:
        connection.close()
        raise


def _read_only(path: Path) -> sqlite3.Connection:
    """Open a file so that SQLite itself refuses to change it.

    In a folder where nothing may be made, a file in WAL mode that no program has open is read as it lies there.
    """
    wal = path.with_name(path.name + "-wal")
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, check_same_thread=False)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            sealed = any(said in str(error) for said in ("unable to open", "readonly"))
            if sealed and "immutable" not in mode and not wal.exists():
                continue
            raise _refused(path, error) from error
        return connection
    raise AssertionError("unreachable: the second way returns or raises")


def _refused(path: Path, error: sqlite3.DatabaseError) -> Exception:
    if "not a database" in str(error):
        with path.open("rb") as file:
            start = file.read(16)
        return SchemaMismatch(f"{path} is not a SQLite database; it begins with {start!r}. Nothing was read.")
    return Unavailable(f"{path} cannot be read ({error}). May this user read it, and is no other program holding it?")


def _sqlite_tables(connection: sqlite3.Connection, path: Path) -> dict[str, set[str]]:
    with reading(f"{path}"):
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = "SELECT name FROM pragma_table_info(?)"
        return {name: {column for (column,) in connection.execute(columns, (name,))} for name in names}


# -- PostgreSQL


def _postgres(url: URL) -> DatabaseSource:
    kind = _saver("langgraph.checkpoint.postgres", "PostgresSaver", "langgraph-checkpoint-postgres")
    psycopg = importlib.import_module("psycopg")
    rows = importlib.import_module("psycopg.rows")
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    shown = url.set(drivername="postgresql").render_as_string(hide_password=True)
    try:
        connection = psycopg.connect(address, autocommit=True, prepare_threshold=0, row_factory=rows.dict_row)
    except psycopg.Error as error:
        raise Unavailable(f"{shown} is out of reach: {str(error).strip()}") from error
    try:
        with reading(shown):
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")  # the server itself refuses
            tables = _postgres_tables(connection)
        _expect(tables, f"{shown} is a PostgreSQL database")
        return DatabaseSource(kind(connection, serde=KeptTypes()), connection, "%s")
    except BaseException:
        connection.close()
        raise


def _postgres_tables(connection: Any) -> dict[str, set[str]]:
    query = (
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = ANY (current_schemas(false)) ORDER BY table_name"
    )
    tables: dict[str, set[str]] = {}
    for row in connection.execute(query).fetchall():
        tables.setdefault(row["table_name"], set()).add(row["column_name"])
    return tables


def _expect(tables: dict[str, set[str]], what: str) -> None:
    """Refuse a database that LangGraph's savers did not make, and say what it has.

    Raises:
        SchemaMismatch: it is another one.
    """
    if tables.get("checkpoints", set()) >= COLUMNS and {"writes", "checkpoint_writes"} & tables.keys():
        return
    if "graph_checkpoint" in tables and "internal_session" in tables:
        raise SchemaMismatch(f"{what} of agentgit's own: there is nothing to import. Open it: agentgit sessions --db …")
    if "checkpoints" in tables:
        missing = ", ".join(sorted(COLUMNS - tables["checkpoints"])) or "the table of pending writes"
        raise SchemaMismatch(
            f"{what} with a table `checkpoints` that is not SqliteSaver's or PostgresSaver's: {missing} is missing. "
            "Nothing was read."
        )
    has = f"the tables {', '.join(sorted(tables)[:8])}" if tables else "no tables"
    raise SchemaMismatch(f"{what} with {has}, not one of LangGraph's savers. Nothing was read.")
