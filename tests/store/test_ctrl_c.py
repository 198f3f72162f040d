"""Ctrl-C at any point of a write leaves nothing locked, even while its traceback is kept."""

import concurrent.futures
import gc
import sys
import threading
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from traceback import format_exception

import backend
import faults
import points
import pytest
from scripted import obeying
from sqlalchemy import text

from agentgit.store.database import Database
from agentgit.store.sql.named_locks import NamedLocks
from agentgit.store.sql.process import LeasedRow, Leases
from agentgit.store.sql.tables import BRANCH
from agentgit.workspace.catalog import Catalog, Folder, Index

EVENTS = ("call", "c_return")
"""Where CPython raises what a signal asks for: when a function begins, and when one that is written in C has ended."""


def is_in_a_lock_of_python(frame):
    """Return whether a lock of Python that agentgit does not use is taken: CPython may leave it locked."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame is not None and Path(frame.f_code.co_filename).is_relative_to(Path(concurrent.futures.__file__).parent)


def interrupted(action, point):
    """Run an action with Ctrl-C at its n-th point; return the error, and whether the action has that many points."""
    points, is_throw = count(), False

    def watch(frame, event, argument):
        nonlocal is_throw
        if event in EVENTS and not is_throw and next(points) >= point and not is_in_a_lock_of_python(frame):
            raise KeyboardInterrupt
        is_throw = event == "c_call" and argument.__name__ == "throw"  # the handler of a generator runs at once

    gc.disable()  # finalizers of what other tests left are no points of this action
    sys.setprofile(watch)
    try:
        action()
    except BaseException as error:  # noqa: BLE001  # SQLAlchemy makes an AssertionError of it when it comes inside a commit
        return error, True
    finally:
        sys.setprofile(None)
        gc.enable()
    return None, next(points) > point


UNRAISABLE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C in a finalizer


def ends_in_thread(action):
    """Run an action in another thread; return whether it ends without waiting for a lock."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(5)
    return not thread.is_alive()


@UNRAISABLE
@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupted_write_leaves_nothing_locked(repo, fails):
    database, kept = backend.database(repo), []
    table = text('UPDATE "user" SET id = id RETURNING id')  # its cursor is still in use when it has been executed

    def write(fails=False):
        def work(transaction):
            transaction.execute(table).all()
            if fails:
                raise LookupError

        with suppress(LookupError):
            database.write(work)

    write()
    for point in count(step=1 if database.is_sqlite else 2):
        error, is_reached = interrupted(lambda: write(fails), point)
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


def test_an_interrupted_write_keeps_the_rows_of_a_database_in_memory():
    rows = text("INSERT INTO row VALUES (:point) RETURNING point")
    with closing(Database("sqlite://")) as database:
        database.write(lambda transaction: transaction.execute(text("CREATE TABLE row (point)")))

        def write(point):
            database.write(lambda transaction: transaction.execute(rows, {"point": point}).all())

        for point in count():
            write(point)
            if not interrupted(lambda: write(None), point)[1]:
                break
        with database.reading() as transaction:
            found = transaction.execute(text("SELECT point FROM row WHERE point IS NOT NULL ORDER BY point"))
            assert found.scalars().all() == [*range(point + 1)]


@UNRAISABLE
@pytest.mark.parametrize("use", [lambda catalog: catalog.set({"a": 1}), lambda catalog: catalog.load_index(None)])
def test_an_interrupted_use_of_a_catalog_leaves_nothing_locked(tmp_path, use):
    catalog, other, kept = (*(Catalog(str(tmp_path / "catalog.db")) for _ in range(2)), [])
    folders = {bytes([name]): Folder(0) for name in range(9)}
    catalog.store_index(Index(folders=folders, dirty={*folders}))
    for point in count():
        error, is_reached = interrupted(lambda: use(catalog), point)
        if not is_reached:
            break
        kept.append(error)
        value = {"b": point}
        assert ends_in_thread(lambda value=value: other.set(value)), "".join(format_exception(error))
        assert ends_in_thread(lambda: catalog.get("b")), "".join(format_exception(error))
        assert catalog.get("b") == point
        catalog.set({"c": point})
    assert len(kept) > 10


def test_an_interrupted_lease_does_not_stop_the_renewals():
    def renewed():
        leases.start_renewing("owner", row)
        leases.stop_renewing("owner")

    row = LeasedRow(BRANCH, 1)
    for point in count():
        leases = Leases(lambda write: None)
        error, is_reached = interrupted(renewed, point)
        if not is_reached:
            break
        assert ends_in_thread(renewed), "".join(format_exception(error))
        assert ends_in_thread(leases.close)
    assert point > 20


@UNRAISABLE
@pytest.mark.parametrize("step", [997, pytest.param(61, marks=pytest.mark.soak)])
def test_a_turn_interrupted_anywhere_gives_its_branch_back(repo, world, tmp_path, step):
    """The next turn runs at once, and the agent that was interrupted knows that nobody else has moved the branch."""
    kept, answers = [], []
    for point in count(1, step):
        agent = obeying(repo, world, f"s{point}", workspace=tmp_path)
        agent.run("add chair")
        with faults.on_another_machine():  # for what runs outside of this block, whose owner seems alive
            error, is_reached = interrupted(lambda: agent.run("add table"), point)  # noqa: B023  # it runs now
        if not is_reached:
            break
        kept.append(error)

        def run(agent=agent):
            answers.append(agent.run("look"))

        assert ends_in_thread(run), "".join(format_exception(error))
        assert len(answers) == len(kept), "".join(format_exception(error))
        assert obeying(repo, world, f"s{point}", workspace=tmp_path).run("add sofa") == "done"
    assert point > 5000
    del kept, error
    gc.collect()
    assert repo.maintenance.fsck().findings == ()


@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_interrupted_rollback_gives_its_session_back(repo, world, is_resumed):
    agent = obeying(repo, world)
    agent.run("add chair")
    operations = repo.session("s").operations
    with faults.on_another_machine(), faults.interrupted(points.PUBLISH_OPERATION):
        with pytest.raises(KeyboardInterrupt):
            agent.undo()
        if is_resumed:
            with pytest.raises(KeyboardInterrupt):
                repo.resume(operations()[0])
    (operation,) = operations()
    assert operation.status == "partial"
    repo.resume(operation)
    assert world.items == []
