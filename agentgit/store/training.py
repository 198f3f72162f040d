"""Training a dictionary from what is stored."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from agentgit.errors import InvalidInput
from agentgit.store.blobs import BLOB, LIST, RECORD, Blobs
from agentgit.store.chunks import CHUNK
from agentgit.store.compression import train
from agentgit.store.database import Database

DICTIONARY_BYTES = 64 * 1024
"""Twice as much makes chat messages smaller by less than a hundredth (measured)."""

FEWEST, MOST = 100, 10_000
"""How many values it is trained from."""

SIZES = (64, 8192)
"""Their smallest and greatest size in bytes."""


class Trained(NamedTuple):
    """A dictionary that was made.

    Args:
        id: its id.
        bytes: its size.
        samples: how many stored values it was made from.
    """

    id: int
    bytes: int
    samples: int


def train_dictionary(database: Database, blobs: Blobs) -> Trained:
    """Make a dictionary from a sample of a tenant's short values, store it, and pack new values with it from now on.

    Args:
        database: where.
        blobs: the values of the tenant.

    Raises:
        InvalidInput: there are too few of them.
        Corrupt: one does not match its hash.
    """
    with database.reading() as connection:
        samples = _sample(connection, blobs)
    if len(samples) < FEWEST:
        raise InvalidInput(
            f"There are {len(samples)} values of {SIZES[0]} to {SIZES[1]} bytes; a dictionary needs {FEWEST}. Train it "
            "when there are more messages."
        )
    made = train(samples, DICTIONARY_BYTES)  # takes a second, so in no transaction
    database.write(lambda connection: blobs.dictionaries.add(connection, made), durable=True)
    blobs.dictionaries.use(made)
    return Trained(made.id, len(made.data), len(samples))


def _sample(connection: Connection, blobs: Blobs) -> list[bytes]:
    short = (BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.size.between(*SIZES))
    plain = BLOB.c.type.not_in((LIST, RECORD, CHUNK))
    # In the order of their hashes, which is no order at all.
    query = select(BLOB.c.hash).where(*short, plain).order_by(BLOB.c.hash).limit(MOST)
    return [value.data for value in blobs.get_many(connection, connection.execute(query).scalars()).values()]
