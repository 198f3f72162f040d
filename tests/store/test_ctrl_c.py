"""Ctrl-C at any point of a write leaves nothing locked, even while its traceback is kept."""

import gc
import sys
import threading
from itertools import count
from traceback import format_exception

import backend
import pytest
from sqlalchemy import text

from agentgit.store.sql.named_locks import NamedLocks

EVENTS = ("call", "c_return")
"""Where CPython raises what a signal asks for: when a function begins, and when one that is written in C has ended."""


def interrupted(action, point):
    """Run an action with Ctrl-C at its n-th point; return the error, and whether the action has that many points."""
    points = count()

    def watch(frame, event, argument):
        if event in EVENTS and next(points) == point:
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        action()
    except BaseException as error:  # noqa: BLE001  # SQLAlchemy makes an AssertionError of it when it comes inside a commit
        return error, True
    finally:
        sys.setprofile(None)
    return None, next(points) > point


def ends_in_thread(action):
    """Run an action in another thread; return whether it ends without waiting for a lock."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C in a finalizer
def test_an_interrupted_write_leaves_nothing_locked(repo):
    database, kept = backend.database(repo), []
    table = text("UPDATE tenant SET id = id")

    def write():
        database.write(lambda connection: connection.execute(table))

    write()
    for point in count(step=1 if database.is_sqlite else 5):
        error, is_reached = interrupted(write, point)
        if not is_reached:
            break
        kept.append(error)
        assert ends_in_thread(write), "".join(format_exception(error))
        write()
    assert len(kept) > 50
    kept.clear()
    gc.collect()  # connections whose owners Ctrl-C has interrupted
    assert repo.maintenance.fsck().findings == ()


def test_an_interrupted_lock_by_name_is_free(tmp_path):
    locks = NamedLocks(path=str(tmp_path / "agentgit.db"))

    def hold():
        with locks.hold(["a name"]):
            pass

    for point in count():
        if not interrupted(hold, point)[1]:
            break
        assert ends_in_thread(hold), point
    assert point > 20
