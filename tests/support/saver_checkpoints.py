"""Helpers for the tests of the saver: they store checkpoints by hand and inspect the database."""

import dataclasses
from contextlib import nullcontext
from functools import partial

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from sqlalchemy import func, select

from agentgit.saver.recorded_turn import PutHook
from agentgit.store.sql.tables import BLOB


@dataclasses.dataclass
class Cart:
    """A dataclass in a graph's state."""

    items: list[str]


def on(thread, **more):
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread, **more}}


def put(saver, thread, values, *, parent=None, changed=None, id=None, meta=None, ns="", version=1, config=None):
    """Store a checkpoint by hand, and return its config."""
    checkpoint = empty_checkpoint()
    checkpoint["id"] = id or str(uuid6())
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, version)
    where = {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": parent}, **(config or {})}
    new = dict.fromkeys(values if changed is None else changed, version)
    return saver.put(where, checkpoint, {"source": "loop", "step": 0, "parents": {}, **(meta or {})}, new)


def values(saver, config):
    """Return the channel values of a checkpoint."""
    return saver.get_tuple(config).checkpoint["channel_values"]


def count(database, table):
    """Count the rows of a table."""
    with database.reading() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar()


def blob_bytes(database):
    """Return the total size of all values in bytes."""
    with database.reading() as connection:
        return connection.execute(select(func.sum(func.length(BLOB.c.data)))).scalar()


class PutTurn:
    """A turn that observes each put of a saver.

    Args:
        on_put: A function that returns the context manager around a put.
    """

    def __init__(self, on_put):
        self.on_put = on_put

    def on_read(self, thread, ns, found):
        """Ignore reads."""


def work_in_next_put(saver, work):
    """Call a function at the end of the transaction of the next put of a saver.

    Args:
        saver: The saver.
        work: The function; it receives the id of the checkpoint, and True if the transaction can read it.
    """

    def inside(place, connection):
        saver.turn = None
        work(place.checkpoint_id, saver.store.find(connection, place) is not None)

    saver.turn = PutTurn(lambda place: nullcontext(PutHook(lambda connection: partial(inside, place, connection))))
