"""The folder of the migrations, and Alembic's commands on a connection. `alembic/env.py` is their environment."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from agentgit.store.sql.tables import METADATA

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "agentgit_version"

FTS_TABLE = "search_words"
"""The name of SQLite's full-text index. FTS5 stores it in tables whose names begin with this name."""

TABLE_NAMES = frozenset({*METADATA.tables, FTS_TABLE, VERSION_TABLE})
"""The names of all tables that agentgit creates."""

_lock = threading.RLock()
"""A lock for one command at a time in this process, because Alembic's `context` and `op` belong to one at a time."""


def folder() -> Path:
    """Return the folder of the migrations: inside the installed package or, in a checkout, beside it."""
    package = Path(__file__).parents[2]
    packaged = package / "migrations"
    return packaged if packaged.is_dir() else package.parent / "alembic"


def is_known(revision: str) -> bool:
    from alembic.script import ScriptDirectory

    return any(one.revision == revision for one in ScriptDirectory(str(folder())).walk_revisions())


@contextmanager
def configured(connection: Connection) -> Iterator[Config]:
    """Yield the configuration for a command of Alembic, which runs in the transaction of a connection."""
    from alembic.config import Config

    config = Config(stdout=io.StringIO(), attributes={"connection": connection})
    config.set_main_option("script_location", str(folder()).replace("%", "%%"))
    with _lock:
        yield config


def include_object(object: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """Exclude agentgit's tables from another application's Alembic, as `include_object` of its `context.configure`.

    Example:
        >>> include_object(None, "event", "table", True, None)
        False
        >>> include_object(None, "invoice", "table", True, None)
        True
    """
    is_extra_table = kind == "table" and reflected and compare_to is None
    return not (is_extra_table and name is not None and (name in TABLE_NAMES or name.startswith(FTS_TABLE)))
