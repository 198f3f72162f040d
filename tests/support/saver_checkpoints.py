"""Helpers for the tests of the saver: they store checkpoints by hand and inspect the database."""

import dataclasses

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from sqlalchemy import func, select

from agentgit.store.sql.tables import BLOB


@dataclasses.dataclass
class Cart:
    """A dataclass in a graph's state."""

    items: list[str]


def on(thread, **more):
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
    return saver.get_tuple(config).checkpoint["channel_values"]


def total(state, writes):
    """Append the lists of all writes to the state, as the reducer of a DeltaChannel."""
    return [*state, *(item for write in writes for item in write)]


def count(database, table):
    query = select(func.count()).select_from(table)
    with database.reading() as transaction:
        return transaction.execute(
            query.where(~table.c.external_session_id.between(-64, -1)) if table.name == "blob" else query
        ).scalar()


def blob_bytes(database):
    with database.reading() as transaction:
        return transaction.execute(select(func.sum(func.length(BLOB.c.data)))).scalar()


def work_in_next_put(saver, work):
    """Call a function at the end of the transaction of the next put of a saver.

    It receives the id of the checkpoint, and True if the transaction can read it.
    """
    store, put = saver.store, saver.store.put
    saver.store.newest_checkpoints.after_fork()  # so that the put reads first

    def put_and_work(transaction, new):
        del store.put
        stored = put(transaction, new)
        work(new.key.checkpoint_id, store.find(transaction, new.key) is not None)
        return stored

    store.put = put_and_work
