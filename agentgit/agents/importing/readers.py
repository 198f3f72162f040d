"""Read-only sources of threads: a LangGraph saver, sync or async, or its database."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import ormsgpack
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import EXT_NUMPY_ARRAY
from sqlalchemy import URL

from agentgit.errors import AgentGitError, Corrupt, InvalidInput, NotFound, SchemaMismatch, Unavailable
from agentgit.langgraph_internals import set_task_path_column
from agentgit.next_steps import Next
from agentgit.saver.config import config_of
from agentgit.saver.leaf_codec import type_names
from agentgit.saver.serializer import SAFE_TYPES, StrictSerializer
from agentgit.store.objects.lru import LRUCache
from agentgit.store.objects.plain_values import MSGPACK
from agentgit.store.sql.postgres import driver_url
from agentgit.store.sql.url import parse_url, redacted_url
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.lifecycle import CHECKPOINTS_COLUMNS

CACHED_MESSAGES = 10_000
"""The number of messages in the cache."""

READABLE_FORMATS = ("null", "bytes", "bytearray", "json", MSGPACK)


class UnknownTypeSerializer(SerializerProtocol):
    """LangGraph's serializer, restricted to messages and other types that are known to be safe.

    A value of any other type, such as a dataclass, model or enum of the program that wrote it, stays an
    `ormsgpack.Ext` with its bytes. Serialized again it has the same bytes, so that the program can read its own
    objects later. The data in the source cannot choose what is imported or called. The exception are values in
    LangGraph's older format `json`: they name LangChain classes, which are instantiated as LangGraph does.

    Example:
        >>> serde = UnknownTypeSerializer()
        >>> serde.loads_typed(serde.dumps_typed({"seats": {7}}))
        {'seats': {7}}
    """

    def __init__(self) -> None:
        self._strict = StrictSerializer()
        # Every later graph checkpoint of a thread repeats its messages; deserializing one again takes 50 µs.
        self._messages: LRUCache[bytes, BaseMessage] = LRUCache(CACHED_MESSAGES)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self._strict.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, body = data
        if kind not in READABLE_FORMATS:
            raise InvalidInput(
                f"It has values in the format {kind!r}, which only the program's own serializer can read. Import it "
                "in that program, with its own saver."
            )
        if kind != MSGPACK:
            return self._strict.loads_typed(data)
        return ormsgpack.unpackb(body, ext_hook=self._unpack_ext, option=ormsgpack.OPT_NON_STR_KEYS)

    def _unpack_ext(self, code: int, payload: bytes) -> Any:
        key = bytes((code % 256,)) + payload
        cached = self._messages.get(key)
        if cached is not None:
            return cached
        ext = ormsgpack.Ext(code, payload)
        packed = ormsgpack.packb(ext)
        if code == EXT_NUMPY_ARRAY or not type_names(packed) <= SAFE_TYPES:
            return ext
        value = self._strict.loads_typed((MSGPACK, packed))
        if isinstance(value, BaseMessage):
            self._messages.add([(key, value)])
        return value


T = TypeVar("T")

ASYNC_TIMEOUT = 60
"""The timeout for one call of an async saver, in seconds."""

_UNAVAILABLE_WORDS = ("locked", "busy", "unable to open", "connection", "timeout", "terminat", "event loop")
"""Words in error messages that point to the database being unavailable, and not to damaged data."""


class ThreadEntry(NamedTuple):
    """A graph checkpoint in the source: its namespace, its id, and the id of its parent."""

    ns: str
    id: str
    parent: str | None


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert the errors of a damaged or unreachable source to agentgit errors that name what was read."""
    try:
        yield
    except AgentGitError as error:
        if isinstance(error, InvalidInput):
            raise InvalidInput(f"{name} cannot be read. {error}") from error
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, (OSError, TimeoutError)) or any(word in message.lower() for word in _UNAVAILABLE_WORDS):
            raise Unavailable(
                f"{name} cannot be read now ({message}). Try again; what was imported is kept."
            ) from error
        raise Corrupt(f"{name} is damaged and was not imported ({message}).", row=name) from error


class Source:
    """The threads of a saver."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what this source has opened; the saver stays open."""

    def threads(self) -> list[str]:
        with reading("The list of threads"):
            return list(dict.fromkeys(str(one.config["configurable"]["thread_id"]) for one in self._list(None)))

    def index(self, thread: str) -> list[ThreadEntry]:
        with reading(f"Thread {thread!r}"):
            return [_entry(one) for one in self._list({"configurable": {"thread_id": thread}})]

    def newest(self, thread: str) -> CheckpointTuple | None:
        with reading(f"Thread {thread!r}"):
            return self._get({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})

    def read(self, thread: str, entry: ThreadEntry) -> CheckpointTuple:
        name = f"Graph checkpoint {entry.id!r} of thread {thread!r}"
        with reading(name):
            checkpoint_tuple = self._get(config_of(GraphKey(thread, entry.ns, entry.id)))
            if checkpoint_tuple is None or not _is_complete(checkpoint_tuple, entry):
                raise Corrupt(f"{name} is damaged, and the thread was not imported.", row=name)
            return checkpoint_tuple

    def _list(self, config: RunnableConfig | None) -> Iterator[CheckpointTuple]:
        return self.saver.list(config)

    def _get(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.saver.get_tuple(config)


class AsyncSource(Source):
    """The threads of an async saver, called on its loop if that runs in another thread, else on a loop of its own."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(saver)
        loop = getattr(saver, "loop", None)
        self._loop: asyncio.AbstractEventLoop | None = (
            loop if loop and loop.is_running() and not _is_current_loop(loop) else None
        )
        if self._loop is None and "Pool" in type(getattr(saver, "conn", None)).__name__:
            raise InvalidInput(
                f"{type(saver).__name__} has a connection pool that works only while its event loop runs. Use "
                "await repo.awrap(…) or await repo.aimport_langgraph(…), or give the URL of its database."
            )
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentgit-import")
        self._runner = asyncio.Runner() if self._loop is None else None

    def close(self) -> None:
        if self._runner is not None:
            self._executor.submit(self._runner.close).result()
        self._executor.shutdown()

    def _await_result(self, awaitable: Awaitable[T]) -> T:
        async def wait_with_timeout() -> T:
            return await asyncio.wait_for(awaitable, ASYNC_TIMEOUT)

        coroutine: Coroutine[Any, Any, T] = wait_with_timeout()
        if self._loop is not None:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        assert self._runner is not None  # noqa: S101  # one of the two is set, see __init__
        return self._executor.submit(self._runner.run, coroutine).result()

    def _list(self, config: RunnableConfig | None) -> Iterator[CheckpointTuple]:
        iterator = self.saver.alist(config)
        while (checkpoint_tuple := self._await_result(_next(iterator))) is not None:
            yield checkpoint_tuple

    def _get(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._await_result(self.saver.aget_tuple(config))


def source_of(saver: BaseCheckpointSaver[Any]) -> Source:
    is_async = isinstance(getattr(saver, "loop", None), asyncio.AbstractEventLoop)
    return AsyncSource(saver) if is_async or _is_async_only(saver) else Source(saver)


def _is_async_only(saver: BaseCheckpointSaver[Any]) -> bool:
    return type(saver).get_tuple is BaseCheckpointSaver.get_tuple or type(saver).list is BaseCheckpointSaver.list


def _is_current_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _next(iterator: AsyncIterator[CheckpointTuple]) -> CheckpointTuple | None:
    return await anext(iterator, None)


def _entry(checkpoint_tuple: CheckpointTuple) -> ThreadEntry:
    configurable = checkpoint_tuple.config["configurable"]
    parent = get_checkpoint_id(checkpoint_tuple.parent_config) if checkpoint_tuple.parent_config else None
    return ThreadEntry(configurable.get("checkpoint_ns") or "", configurable["checkpoint_id"], parent)


def _is_complete(checkpoint_tuple: CheckpointTuple, entry: ThreadEntry) -> bool:
    """Return whether a graph checkpoint has the parts that LangGraph writes."""
    checkpoint: Any = checkpoint_tuple.checkpoint
    return (
        isinstance(checkpoint, dict)
        and checkpoint.get("id") == entry.id
        and isinstance(checkpoint.get("v"), int)
        and isinstance(checkpoint.get("ts"), str)
        and all(isinstance(checkpoint.get(p), dict) for p in ("channel_values", "channel_versions", "versions_seen"))
        and isinstance(checkpoint_tuple.metadata, dict)
        and all(isinstance(name, str) for name in checkpoint["channel_values"])
        and _is_id(entry.id)
        and (entry.parent is None or _is_id(entry.parent))
        and all(_is_id(task) and isinstance(channel, str) for task, channel, _ in checkpoint_tuple.pending_writes or ())
    )


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isascii() and value.isprintable()


class DatabaseSource(Source):
    """The threads in a database of LangGraph's savers: ids from columns, contents through the saver."""

    def __init__(self, saver: Any, connection: Any, placeholder: str) -> None:
        super().__init__(saver)
        self._connection, self._placeholder = connection, placeholder

    def close(self) -> None:
        self._connection.close()

    def threads(self) -> list[str]:
        query = "SELECT thread_id AS one, min(checkpoint_id) AS two FROM checkpoints GROUP BY thread_id ORDER BY 2, 1"
        with reading("The list of threads"):
            return [thread for thread, _ in self._rows(query)]

    def index(self, thread: str) -> list[ThreadEntry]:
        query = "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = "
        with reading(f"Thread {thread!r}"):
            return [
                ThreadEntry(ns, id, parent or None) for ns, id, parent in self._rows(query + self._placeholder, thread)
            ]

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(query, values)
            return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in cursor.fetchall()]


def open_database(path_or_url: str | Path | URL) -> DatabaseSource:
    """Open a database of LangGraph's savers for reading only."""
    url = parse_url(path_or_url)
    return _open_sqlite(url) if url.get_backend_name() == "sqlite" else _open_postgres(url)


def _import_saver(module: str, name: str, package: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            "Reading this database needs LangGraph's own saver.", Next("install", package=package)
        ) from error


# -- SQLite


def _open_sqlite(url: URL) -> DatabaseSource:
    path = Path(url.database or "")
    if not url.database or url.database == ":memory:" or not path.exists():
        raise NotFound(f"There is no file {url.database}. Name the file that SqliteSaver writes.")
    if path.is_dir():
        raise SchemaMismatch(f"{path} is a directory. Name the file in it that SqliteSaver writes.")
    saver_class = _import_saver("langgraph.checkpoint.sqlite", "SqliteSaver", "langgraph-checkpoint-sqlite")
    connection = _open_read_only(path)
    try:
        tables = _sqlite_tables(connection, path)
        _require_saver_tables(tables, f"{path} is a SQLite database")
        saver = saver_class(connection, serde=UnknownTypeSerializer())
        saver.is_setup = True  # its `setup` would write
        set_task_path_column(saver, exists="task_path" in tables.get("writes", ()))
        return DatabaseSource(saver, connection, "?")
    except BaseException:
        connection.close()
        raise


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open a file so that SQLite rejects writes; in WAL mode in a folder that is not writable, as immutable."""
    wal = path.with_name(path.name + "-wal")
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, check_same_thread=False)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            is_write_needed = any(text in str(error) for text in ("unable to open", "readonly"))
            if is_write_needed and "immutable" not in mode and not wal.exists():
                continue
            raise _open_error(path, error) from error
        return connection
    raise AssertionError("unreachable: the second way returns or raises")


def _open_error(path: Path, error: sqlite3.DatabaseError) -> Exception:
    if "not a database" in str(error):
        with path.open("rb") as file:
            header = file.read(16)
        return SchemaMismatch(f"{path} is not a SQLite database; it begins with {header!r}. Nothing was read.")
    return Unavailable(f"{path} cannot be read ({error}). Check its permissions and locks.")


def _sqlite_tables(connection: sqlite3.Connection, path: Path) -> dict[str, set[str]]:
    with reading(f"{path}"):
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = "SELECT name FROM pragma_table_info(?)"
        return {name: {column for (column,) in connection.execute(columns, (name,))} for name in names}


# -- PostgreSQL


def _open_postgres(url: URL) -> DatabaseSource:
    saver_class = _import_saver("langgraph.checkpoint.postgres", "PostgresSaver", "langgraph-checkpoint-postgres")
    psycopg = importlib.import_module("psycopg")
    psycopg_rows = importlib.import_module("psycopg.rows")
    url = driver_url(url).set(drivername="postgresql")
    address, display_url = url.render_as_string(hide_password=False), redacted_url(url)
    try:
        connection = psycopg.connect(address, autocommit=True, prepare_threshold=0, row_factory=psycopg_rows.dict_row)
    except psycopg.Error as error:
        raise Unavailable(f"Cannot connect to {display_url}: {str(error).strip()}") from error
    try:
        with reading(display_url):
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")  # the server rejects writes
            tables = _postgres_tables(connection)
        _require_saver_tables(tables, f"{display_url} is a PostgreSQL database")
        return DatabaseSource(saver_class(connection, serde=UnknownTypeSerializer()), connection, "%s")
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


def _require_saver_tables(tables: dict[str, set[str]], description: str) -> None:
    """Check that LangGraph's savers created the database."""
    if tables.get("checkpoints", set()) >= CHECKPOINTS_COLUMNS and {"writes", "checkpoint_writes"} & tables.keys():
        return
    if "graph_checkpoint" in tables and "internal_session" in tables:
        raise SchemaMismatch(f"{description} of agentgit: there is nothing to import. Open it instead.")
    if "checkpoints" in tables:
        missing = ", ".join(sorted(CHECKPOINTS_COLUMNS - tables["checkpoints"])) or "the table of pending writes"
        raise SchemaMismatch(
            f"{description} with a table `checkpoints` that is not SqliteSaver's or PostgresSaver's: {missing} is "
            "missing. Nothing was read."
        )
    contents = f"the tables {', '.join(sorted(tables)[:8])}" if tables else "no tables"
    raise SchemaMismatch(f"{description} with {contents}; no LangGraph saver wrote it. Nothing was read.")
