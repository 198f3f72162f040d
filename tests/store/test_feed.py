"""The feed of events: every reader sees every committed event exactly once, in one order."""

import json
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby, islice
from pathlib import Path
from typing import ClassVar

import backend
import processes
import psycopg
import pytest

import agentgit
from agentgit import AgentGitError, Conflict, InvalidInput, NotFound
from agentgit.sessions.events import match_kinds
from agentgit.store.audit.trail import record_event

PAGE = Path(__file__).parents[2] / "docs/events.md"
WRITERS, ROUNDS, LONG, KILLS = 6, 12, 10, 5


def write_events(url, number):
    """Write events in transactions of very different length, and print the id and the session of those committed."""
    chance = random.Random(number)  # noqa: S311  # no secret
    with agentgit.open(url, lease_seconds=600) as repo:
        store = repo.context.store
        repo.events.on("*", lambda event: print(event.id, event.session_id))  # noqa: T201  # for the test

        def slowly(transaction, session_id):
            record_event(transaction, "tag.created", session_id=session_id, name="slow")
            record_event(transaction, "tag.created", session_id=session_id, name="slower")
            if not store.database.is_sqlite:
                transaction.connection.exec_driver_sql(
                    "SELECT pg_current_xact_id()"
                )  # so that it has a number while it lasts
                time.sleep(chance.random() * 0.2)

        for one in range(ROUNDS):
            with suppress(AgentGitError):  # the newest session is sometimes erased
                own = repo.session(f"{number} {one}", create=True)
                shared = repo.session(f"shared {one % 2}")
                shared.checkpoint(f"{number} {one}")
                shared.fork(name=f"{number} {one}")
                store.database.write(lambda transaction, own=own: slowly(transaction, own.id))
                own.checkpoint("two")
                own.rename(f"{number} {one} again")


def read_feed(url, file):
    """Append the id and the cursor of each event to a file; what a kill has left of the last line is cut off."""
    path = Path(file)
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    path.write_text(whole)
    last = whole.split()[-1] if whole else None
    with agentgit.open(url) as repo, path.open("a") as out:
        while True:
            for event in repo.events.list(after=last):
                out.write(f"{event.id} {event.cursor}\n")
                out.flush()
                last = event.cursor
            time.sleep(0.01)


def in_a_process(function, *arguments):
    code = f"import sys; from test_feed import {function.__name__} as run; run(*sys.argv[1:])"
    return processes.Started(code, *arguments)


def long_transactions(repo, over):
    """Run ten transactions of somebody else on the server; on SQLite they hold the write lock."""
    chance = random.Random(0)  # noqa: S311  # no secret
    for _ in range(LONG):
        if over.is_set():
            return
        if backend.is_sqlite(repo):
            with suppress(AgentGitError):
                backend.write(repo, lambda _: time.sleep(chance.random() * 0.3))
            continue
        url = backend.url(repo)
        with closing(psycopg.connect(host=url.host, port=url.port, user=url.username, dbname="postgres")) as other:
            other.execute("SELECT pg_current_xact_id()")
            time.sleep(chance.random())


def read_until(is_over, repo, **how):
    """Call `list` again and again with the last event, and return all events."""
    got = []
    while True:
        is_last = is_over.is_set()
        got += repo.events.list(after=got[-1] if got else None, **how)
        if is_last:
            return got


def erase_newest(repo, over):
    """Erase the newest session now and then, and return the ids of those that were erased."""
    erased = set()
    while not over.is_set():
        time.sleep(random.random() * 0.1)  # noqa: S311  # no secret
        for newest in [one for one in repo.sessions(limit=3) if not one.session_name.startswith("shared")][:1]:
            with suppress(AgentGitError):  # it is just being written
                repo.session(newest.id).delete()
                erased.add(newest.id)
    return erased


def kill_and_restart(database, file, times):
    """Run a reader that writes to a file, kill it again and again, and return the last one."""
    for _ in range(times):
        reader = in_a_process(read_feed, backend.address(database), file)
        time.sleep(1 + random.random())  # noqa: S311  # no secret
        reader.process.kill()
        reader.wait()
    return in_a_process(read_feed, backend.address(database), file)


@pytest.mark.long
def test_every_reader_sees_every_event_once_and_in_one_order(database, tmp_path):
    """Six processes, long transactions of others, a killed reader and erasures: nothing missed, nothing twice."""
    file, over, is_read = tmp_path / "read", threading.Event(), threading.Event()
    with agentgit.open(database.url, pool_size=20) as repo:
        shared = [repo.session(f"shared {n}", create=True) for n in range(2)]
        first = [(event.id, event.session_id) for event in repo.events.newest()]
        writers = [in_a_process(write_events, backend.address(database), number) for number in range(WRITERS)]
        with ThreadPoolExecutor(5) as pool:
            others = pool.submit(long_transactions, repo, over)
            erasing = pool.submit(erase_newest, repo, over)
            readers = [pool.submit(read_until, is_read, repo, **how) for how in ({}, {}, {"session": shared[0]})]
            killed = kill_and_restart(database, file, KILLS)
            written = [writer.wait() for writer in writers]
            over.set()
            others.result()
            erased = erasing.result()
            backend.wait_for_the_feed(repo)
            is_read.set()
        events = [reader.result() for reader in readers]
        one, two, of_session = ([event.id for event in found] for found in events)
        kept = [event.id for event in repo.events.list()]
        while not re.search(rf"^{kept[-1]} .*\n", file.read_text(), re.MULTILINE):
            time.sleep(0.05)
        killed.process.kill()
        killed.wait()
        killed_reader = [int(line.split()[0]) for line in file.read_text().splitlines()]
        lines = [line for one in written for line in one.stdout.splitlines()]
        committed = dict(first) | dict(tuple(map(int, line.split())) for line in lines)
        of_erased = {event for event, session in committed.items() if session in erased}
        assert [one.returncode for one in written] == [0] * WRITERS
        assert len(committed) > WRITERS * ROUNDS * 3
        assert erased
        for got in (one, two, killed_reader):
            assert len(got) == len(set(got))
            assert committed.keys() - set(got) <= of_erased
            assert [event for event in got if event in set(kept)] == kept
        for got in (one, killed_reader):
            assert [event for event in got if event in set(two)] == [event for event in two if event in set(got)]
        assert of_session == [event.id for event in repo.events.list(session=shared[0])]
        assert {event.detail["erased"] for event in events[1] if event.kind == "session.erased"} == erased
        assert repo.maintenance.fsck().findings == ()


def test_the_feed_continues_after_a_given_event(repo):
    repo.session("s", create=True).checkpoint("x")
    repo.session("other", create=True)
    backend.wait_for_the_feed(repo)
    first, *rest = repo.events.list()
    assert list(repo.events.list(after=first)) == rest == list(repo.events.list(after=first.cursor))
    assert [event.kind for event in repo.events.list(session="s", after=first)] == ["checkpoint.created"]
    assert [event.session_name for event in repo.events.list(kinds="session.*")] == ["s", "other"]
    assert list(repo.events.list(since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert list(repo.events.list(after=repo.events.end())) == []
    assert repo.events.newest(limit=1) == [rest[-1]]
    for wrong in ({"kinds": "chekpoint.created"}, {"since": datetime.now()}, {"after": "x"}, {"after": first.id}):
        with pytest.raises(InvalidInput):
            list(repo.events.list(**wrong))
    with pytest.raises(InvalidInput, match=r"checkpoint\.created"):
        match_kinds("checkpoint.creatd")
    with pytest.raises(NotFound):
        list(repo.events.list(session="nobody"))


def test_an_event_of_a_callback_is_no_place_in_the_feed(repo):
    """The feed may not have reached the event that a callback gets, so it cannot be continued from there."""
    got = []
    with repo.events.on("*", got.append):
        repo.session("s", create=True)
    assert got == repo.events.newest()
    with pytest.raises(InvalidInput, match="callback"):
        repo.events.list(after=got[0])


def test_a_paged_feed_returns_each_event_once(repo, monkeypatch):
    monkeypatch.setattr("agentgit.repository.events.PAGE", 7)
    sessions = [repo.session(f"s{n}", create=True) for n in range(3)]

    def work(transaction):
        for n in range(10):
            for session in sessions:
                record_event(transaction, "tag.created", session_id=session.id, name=str(n))

    backend.write(repo, work)
    backend.wait_for_the_feed(repo)
    found = [event.id for event in repo.events.list()]
    assert (len(found), len(set(found))) == (33, 33)
    assert [event.detail.get("name") for event in repo.events.list(session="s1")][1:] == [str(n) for n in range(10)]
    assert found == [event.id for event in repo.events.newest(limit=100)]


def test_a_follower_receives_the_events_of_other_handles(repo):
    repo.session("s", create=True)
    with ThreadPoolExecutor(1) as pool, agentgit.open(backend.url(repo)) as other:
        got = pool.submit(lambda: list(islice(repo.events.follow(poll=0.01), 4)))
        for name in ("a", "b", "last"):
            other.session("s").checkpoint(name)
        assert [event.detail.get("name") for event in got.result(60)] == [None, "a", "b", "last"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_transaction_that_runs_delays_the_feed_and_not_what_people_see(repo):
    url = backend.url(repo)
    with closing(psycopg.connect(host=url.host, port=url.port, user=url.username, dbname="postgres")) as other:
        other.execute("SELECT pg_current_xact_id()")
        repo.session("s", create=True)
        (newest,) = repo.events.newest()
        assert (newest.kind, list(repo.events.list())) == ("session.created", [])
        assert list(repo.events.list(after=newest)) == []
    backend.wait_for_the_feed(repo)
    assert list(repo.events.list()) == list(repo.events.list(after=newest)) == [newest]


def test_an_erased_newest_event_gives_its_place_to_nobody(repo):
    repo.session("kept", create=True)
    gone = repo.session("gone", create=True)
    backend.wait_for_the_feed(repo)
    last = list(repo.events.list())[-1]
    assert last.session_name == "gone"
    gone.delete()
    repo.session("new", create=True)
    backend.wait_for_the_feed(repo)
    assert [event.kind for event in repo.events.list(after=last)] == ["session.erased", "session.created"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_restore_into_another_server_begins_a_new_epoch(repo):
    repo.session("s", create=True)

    def renumber(transaction):  # the event has a number of another server, as in a restored dump
        transaction.connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        transaction.connection.exec_driver_sql("UPDATE event SET ordinal = 1000000000000 + mod(id, 1000)")

    backend.write(repo, renumber)
    with backend.reading(repo) as transaction:
        (row,) = transaction.connection.exec_driver_sql("SELECT ordinal, id FROM event").all()
    last = f"0.{row.ordinal}.{row.id}"
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: agentgit.open(backend.url(repo)).close(), range(3)))
    assert [event.kind for event in repo.events.audit()] == ["feed.restarted"]
    repo.session("t", create=True)
    backend.wait_for_the_feed(repo)
    assert [event.session_name for event in repo.events.list(after=last)] == ["t"]
    assert [event.session_name for event in repo.events.list()] == ["s", "t"]


def test_a_reader_ahead_of_the_feed_is_told(repo):
    repo.session("s", create=True)
    backend.wait_for_the_feed(repo)
    epoch, ordinal, event_id = list(repo.events.list())[-1].cursor.split(".")
    with pytest.raises(Conflict, match="older backup"):
        list(repo.events.list(after=f"{epoch}.{int(ordinal) + 10**9}.{event_id}"))


def test_a_reader_of_a_file_that_went_back_is_told(tmp_path):
    """SQLite gives the numbers of lost events again; a reader that has seen such a number gets a Conflict."""
    with agentgit.open(tmp_path / "a.db") as repo:
        repo.session("kept", create=True)
        with closing(sqlite3.connect(tmp_path / "a.db")) as raw:
            raw.execute("VACUUM INTO ?", [str(tmp_path / "backup.db")])
        repo.session("lost", create=True)
        after = list(repo.events.list())[-1]
    with agentgit.open(tmp_path / "backup.db") as repo:
        for name in ("new", "newer"):
            repo.session(name, create=True)
        with pytest.raises(Conflict, match="older backup"):
            list(repo.events.list(after=after))
        assert [event.session_name for event in repo.events.list()] == ["kept", "new", "newer"]


class Receiver(BaseHTTPRequestHandler):
    """A receiver of events that is slow, and sometimes answers with an error."""

    got: ClassVar[list] = []

    def do_POST(self):
        event = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.headers["idempotency-key"] == str(event["id"])
        self.got.append(event["id"])
        time.sleep(random.random() * 0.05)  # noqa: S311  # no secret
        self.send_response(500 if random.random() < 0.1 else 204)  # noqa: S311
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


@pytest.mark.long
def test_the_recipe_that_posts_events_survives_kills(repo, tmp_path):
    """The loop of the page on events, killed at any time, posts every event in order; only the last one again."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    block = next(one for one in blocks if "def post_events" in one)
    loop = f"{block}\nimport agentgit, sys\npost_events(agentgit.open(sys.argv[1]), sys.argv[2])\n"
    Receiver.got.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        arguments = [sys.executable, "-c", loop, backend.address(repo), f"http://127.0.0.1:{server.server_port}/"]
        for number in range(30):
            repo.session(str(number), create=True)
        backend.wait_for_the_feed(repo)
        wanted = [event.id for event in repo.events.list()]
        while Receiver.got[-1:] != wanted[-1:]:
            enough = len(Receiver.got) + random.randint(1, 12)  # noqa: S311  # no secret
            with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as poster:  # noqa: S603  # our own program
                while poster.poll() is None and len(Receiver.got) < enough and Receiver.got[-1:] != wanted[-1:]:
                    time.sleep(0.01)
                time.sleep(random.random() * 0.05)  # noqa: S311  # no secret
                has_ended = poster.poll() is not None
                poster.kill()
                assert not has_ended or "HTTP Error 500" in poster.stderr.read()
        server.shutdown()
        thread.join()
    assert list(dict.fromkeys(Receiver.got)) == wanted
    assert [event for event, _ in groupby(Receiver.got)] == wanted
