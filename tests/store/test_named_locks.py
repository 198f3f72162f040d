"""Locks by name exclude the threads, tasks and processes that use one database."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from agentgit import Unavailable
from agentgit.store.database import Database
from agentgit.store.sql import named_locks


@pytest.fixture
def other(database):
    with closing(Database(database.url)) as other:
        yield other


def test_a_name_has_one_holder_at_a_time(database, other, monkeypatch):
    monkeypatch.setattr(named_locks, "TIMEOUT_SECONDS", 0.1)
    for second in (database, other):
        with (
            database.named_locks.hold(["a", "b"]),
            pytest.raises(Unavailable, match="same memory"),
            second.named_locks.hold(["b", "c"]),
        ):
            pass
        with second.named_locks.hold(["b", "c"]), second.named_locks.hold(["a"]):
            pass


def test_a_busy_process_leaves_the_lock_to_others(database, other, monkeypatch):
    monkeypatch.setattr(named_locks, "SHARE_SECONDS", 0.1)
    monkeypatch.setattr(named_locks, "TIMEOUT_SECONDS", 5)
    is_over = threading.Event()

    def write(name):
        while not is_over.is_set():
            with database.named_locks.hold([name]):
                time.sleep(0.01)

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write, name) for name in "abcd"]
        try:
            for _ in range(3):
                with other.named_locks.hold(["other"]):
                    pass
        finally:
            is_over.set()
        for writer in writers:
            writer.result()


async def test_a_cancelled_waiter_holds_nothing(database, other):
    keys = await database.named_locks.acquire(["a"])
    waiting = asyncio.ensure_future(other.named_locks.acquire(["a"]))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    database.named_locks.release(keys)
    other.named_locks.release(await asyncio.wait_for(other.named_locks.acquire(["a"]), 10))


def test_a_pool_of_one_connection_is_left_to_the_holder(postgres_url):
    with (
        closing(Database(postgres_url, pool_size=1)) as database,
        database.named_locks.hold(["a"]),
        database.reading() as transaction,
    ):
        assert transaction.connection.exec_driver_sql("SELECT 1").scalar() == 1
