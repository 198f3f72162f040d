"""SQLite connections are kept between transactions, separate for concurrent ones, and clean after failures."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import text

from agentgit.errors import Unavailable
from agentgit.store.database import Database
from agentgit.store.sql.sqlite import MAX_IDLE


@pytest.fixture(params=["file", ":memory:"])
def database(request, tmp_path):
    with closing(Database(tmp_path / "x.db" if request.param == "file" else ":memory:")) as database:
        database.write(lambda transaction: transaction.execute(text("CREATE TABLE t (n INTEGER)")))
        yield database


def count(database) -> int:
    with database.reading() as transaction:
        return transaction.execute(text("SELECT count(*) FROM t")).scalar_one()


@pytest.mark.parametrize("way", ["SQLAlchemy", "driver"])
def test_a_failed_transaction_is_rolled_back(database, way):
    def add(transaction, fails):
        if way == "SQLAlchemy":
            transaction.execute(text("INSERT INTO t VALUES (1)"))
        else:
            transaction.connection.connection.dbapi_connection.execute("INSERT INTO t VALUES (1)")
        if fails:
            raise LookupError

    for fails in (True, False, True):
        try:
            database.write(lambda transaction: add(transaction, fails))  # noqa: B023  # it runs at once
        except LookupError:
            assert fails
    assert count(database) == 1


def test_only_durable_transactions_wait_for_the_disk(database):
    def asked(transaction):
        return transaction.execute(text("PRAGMA synchronous")).scalar_one()

    assert [database.write(asked, durable=durable) for durable in (False, True, True, False)] == [1, 2, 2, 1]


def test_concurrent_readers_do_not_wait_for_each_other(tmp_path):
    readers = 3 * MAX_IDLE
    together = threading.Barrier(readers, timeout=60)

    def read(_):
        with database.reading() as transaction:
            together.wait()
            return transaction, transaction.execute(text("SELECT 1")).scalar_one()

    with closing(Database(tmp_path / "x.db")) as database:
        with ThreadPoolExecutor(readers) as threads:
            read_by = list(threads.map(read, range(readers)))
        assert len({id(transaction.connection) for transaction, _ in read_by}) == readers
        assert sum(not transaction.connection.closed for transaction, _ in read_by) == MAX_IDLE
    assert all(transaction.connection.closed for transaction, _ in read_by)


def test_an_older_sqlite_is_refused_by_its_version(monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(Unavailable, match=r"SQLite 3\.37 or newer"):
        Database(":memory:")
