"""Closed connections: an idle one is replaced, and a recently used one fails once with Unavailable."""

import points
import pytest
from saver_checkpoints import on, put, values
from sqlalchemy import create_engine, text

from agentgit import SQLModelSaver
from agentgit.errors import Unavailable
from agentgit.store.database import Database


def close_others(url):
    engine = create_engine(url)
    with engine.begin() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        connection.execute(text(query + " AND pid <> pg_backend_pid()"))
    engine.dispose()


@pytest.fixture
def saver(postgres_url):
    database = Database(postgres_url)
    saver = SQLModelSaver(database)
    put(saver, "idle", {"a": 1})
    yield saver
    saver.delete_thread("idle")
    database.close()


async def test_a_closed_idle_connection_is_replaced(saver, monkeypatch):
    await saver.aget_tuple(on("idle"))
    close_others(saver.database.url)
    monkeypatch.setattr(*points.IDLE_SECONDS.place, 0.0)
    assert values(saver, on("idle")) == {"a": 1}
    assert (await saver.aget_tuple(on("idle"))).checkpoint["channel_values"] == {"a": 1}


def test_a_recently_used_broken_connection_is_not_reused(saver, monkeypatch):
    monkeypatch.setattr(*points.IDLE_SECONDS.place, 3600.0)  # however slow this machine is
    close_others(saver.database.url)
    with pytest.raises(Unavailable):
        values(saver, on("idle"))
    assert values(saver, on("idle")) == {"a": 1}
