"""Connections: retries after failures, exhausted pools, forks and poolers lose no work, and errors name the cause."""

import asyncio
import os
import random
import shutil
import socket
import socketserver
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress

import backend
import points
import postgres_databases
import processes
import psycopg
import pytest
from echo_graph import echoing, said, talk, texts, whole
from langchain_core.messages import AIMessage
from saver_checkpoints import on, put, values
from scripted import ScriptedModel, call, tool_node_graph
from sqlalchemy import text
from web_servers import free_port

import agentgit
from agentgit import InvalidInput, SQLModelSaver
from agentgit.errors import Unavailable
from agentgit.store.database import Database
from agentgit.store.sql import postgres

TIME = 60
POOLER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def process(transaction):
    return transaction.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()


@pytest.fixture
def server(postgres_url):
    """Open a PostgreSQL database with an additional table `counted`, and drop the table afterwards."""
    with closing(Database(postgres_url)) as database:
        database.write(lambda c: c.connection.exec_driver_sql("CREATE TABLE counted (n int)"))
        yield database
        database.write(lambda c: c.connection.exec_driver_sql("DROP TABLE counted"))


def cut(server):
    backend.disconnect(backend.address(server), [])


def counted(server):
    with server.reading() as transaction:
        return transaction.connection.exec_driver_sql("SELECT count(*) FROM counted").scalar_one()


def count(transaction):
    transaction.connection.exec_driver_sql("INSERT INTO counted VALUES (1)")


@pytest.mark.parametrize("breaks", [1, 2])
def test_work_is_retried_once_if_its_connection_breaks_before_the_commit(server, breaks):
    runs = []

    def work(transaction):
        count(transaction)
        runs.append(process(transaction))
        if len(runs) <= breaks:
            cut(server)
            count(transaction)

    with nullcontext() if breaks == 1 else pytest.raises(Unavailable, match="cannot be reached"):
        server.write(work)
    assert (len(set(runs)), counted(server)) == (2, 2 - breaks)


@pytest.fixture
def idle(postgres_url):
    with closing(Database(postgres_url)) as database:
        saver = SQLModelSaver(database)
        put(saver, "idle", {"a": 1})
        yield saver


async def test_a_closed_idle_connection_is_replaced(idle, monkeypatch):
    await idle.aget_tuple(on("idle"))
    cut(idle.database)
    monkeypatch.setattr(*points.IDLE_SECONDS.place, 0.0)
    assert values(idle, on("idle")) == {"a": 1}
    assert (await idle.aget_tuple(on("idle"))).checkpoint["channel_values"] == {"a": 1}


def test_a_recently_used_broken_connection_is_not_reused(idle, monkeypatch):
    monkeypatch.setattr(*points.IDLE_SECONDS.place, 3600.0)  # however slow this machine is
    cut(idle.database)
    with pytest.raises(Unavailable):
        values(idle, on("idle"))
    assert values(idle, on("idle")) == {"a": 1}


class Between(socketserver.ThreadingTCPServer):
    """A proxy that, once it is deaf, discards answers of the server, and breaks the connection when work is stored."""

    def __init__(self, server, stored):
        super().__init__(("127.0.0.1", 0), None)
        self.server, self.stored, self.deaf = server, stored, False

    def finish_request(self, client, _address):
        with socket.create_connection(self.server) as server, ThreadPoolExecutor(1) as pool:
            pool.submit(self._pass, server, client, False)
            self._pass(client, server, True)

    def _pass(self, source, target, is_client):
        with suppress(OSError):
            while data := source.recv(65536):
                if self.deaf and not is_client:
                    continue
                target.sendall(data)
                if self.deaf and b"COMMIT" in data:
                    until = time.monotonic() + TIME
                    while not self.stored() and time.monotonic() < until:
                        pass
                    source.shutdown(socket.SHUT_RDWR)
            target.shutdown(socket.SHUT_RDWR)


def test_a_commit_with_a_lost_answer_is_not_retried(server):
    runs = []

    def work(transaction):
        runs.append(1)
        count(transaction)
        way.deaf = True

    real = (server.url.host or "127.0.0.1", server.url.port or 5432)
    with Between(real, lambda: counted(server) == 1) as way, ThreadPoolExecutor(1) as pool:
        pool.submit(way.serve_forever)
        lossy = Database(server.url.set(host="127.0.0.1", port=way.server_address[1]))
        try:
            with closing(lossy), pytest.raises(Unavailable, match="may or may not be stored"):
                lossy.write(work)
        finally:
            way.shutdown()
    assert (runs, counted(server)) == ([1], 1)


@pytest.mark.parametrize("state", ["serializable", "deadlock", "lock timeout"])
def test_a_conflicting_transaction_is_retried(server, state):
    raised = {"serializable": "40001", "deadlock": "40P01", "lock timeout": "55P03"}[state]
    runs = []

    def work(transaction):
        runs.append(1)
        count(transaction)
        if len(runs) < 3:
            transaction.connection.exec_driver_sql(
                f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{raised}'; END $$"
            )

    server.write(work)
    assert (len(runs), counted(server)) == (3, 1)


def test_a_conflicting_transaction_fails_after_24_attempts(server, monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda least, most: 0)
    runs = []

    def work(transaction):
        runs.append(1)
        transaction.connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")

    with pytest.raises(Unavailable, match="Try again"):
        server.write(work)
    assert (len(runs), counted(server)) == (24, 0)


def test_an_exhausted_pool_mentions_pool_size(postgres_url, monkeypatch):
    monkeypatch.setattr(*points.POOL_SECONDS.place, 0.05)
    with closing(Database(postgres_url, pool_size=1)) as database:
        with database.reading(), ThreadPoolExecutor(1) as pool:
            other = pool.submit(database.write, process)
            assert isinstance(other.exception(TIME), Unavailable)
        assert "pool_size" in str(other.exception())
        assert database.write(process)


def test_no_connection_is_held_during_a_model_or_tool_call(postgres_url):
    used = []
    with agentgit.open(postgres_url, pool_size=1) as repo:

        def look(*_) -> None:
            used.append(repo.sessions()[0].session_name)  # fails if the turn holds the only connection

        def add(item: str) -> str:
            """Add an item."""
            look()
            return item

        replies = iter([call("add", item="chair"), call("add", item="table"), "done", "done"])

        def rule(_messages):
            look()
            reply = next(replies)
            return AIMessage(reply) if isinstance(reply, str) else AIMessage("", tool_calls=[reply])

        effects = {"add": agentgit.reversible(look)}
        agent = repo.wrap(tool_node_graph(ScriptedModel(rule=rule), [add]), "s", effects=effects)
        agent.run("a chair and a table")
        agent.rollback("main#1")
        assert [one.status for one in agent.tool_track()] == ["reversed", "reversed"]
    assert used == ["s"] * 7  # three replies, two calls, two undos


async def test_an_exhausted_pool_on_an_event_loop_raises_unavailable(postgres_url, monkeypatch):
    with closing(Database(postgres_url, pool_size=1)) as database:
        assert len(await asyncio.gather(*(database.run(database.write, process) for _ in range(8)))) == 8
    monkeypatch.setattr(*points.POOL_SECONDS.place, 0.05)
    with closing(Database(postgres_url)) as other, closing(Database(postgres_url, pool_size=1)) as database:
        lock = "SELECT pg_advisory_xact_lock(1)"
        with other.reading() as holds:
            holds.connection.exec_driver_sql(lock)
            work = [
                asyncio.create_task(
                    database.run(database.write, lambda transaction: transaction.connection.exec_driver_sql(lock))
                )
                for _ in range(2)
            ]
            (refused,), (waiting,) = await asyncio.wait(work, timeout=TIME, return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(refused.exception(), Unavailable)
        await waiting


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_size_below_one_is_refused(postgres_url, size):
    with pytest.raises(InvalidInput, match="pool_size"):
        Database(postgres_url, pool_size=size)


@pytest.mark.parametrize("said", ["", "0", "-1", "many"])
def test_an_invalid_prepare_threshold_is_refused(postgres_url, said):
    with pytest.raises(InvalidInput, match="prepare_threshold"):
        Database(postgres_url.update_query_dict({"prepare_threshold": said}))


FORK = """
import os, sys, warnings
import agentgit
from echo_graph import echoing, said

repo = agentgit.open(sys.argv[1])
graph = echoing()
repo.wrap(graph, session="parent").invoke(said("parent", 0))
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
child = os.fork()
if child == 0:
    repo.wrap(graph, session="child").invoke(said("child", 0))
    repo.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
repo.wrap(graph, session="parent").invoke(said("parent", 1))
repo.close()
"""


def test_a_process_may_fork_after_it_opened_the_database(database):
    done = processes.run(FORK, backend.address(database))
    assert (done.returncode, done.stderr) == (0, "")
    with agentgit.open(database.url) as repo:
        for name, turns in (("parent", 2), ("child", 1)):
            assert texts(repo.wrap(echoing(), session=name).get_state().values) == whole(name, turns)


# -- behind a pooler


SETTINGS = """
[databases]
{name} = host={host} port={port} dbname={name}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {free}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
max_client_conn = 200
"""


@contextmanager
def pooler(*urls):
    """Start PgBouncer in transaction mode with few connections, and yield the URL of each role behind it."""
    if POOLER is None:
        pytest.skip("left out: pgbouncer is not installed")
    url, free = urls[0], free_port()
    behind = [one.set(host="127.0.0.1", port=free) for one in urls]
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    with tempfile.TemporaryFile("w+") as users, tempfile.TemporaryFile("w+") as said:
        users.write("".join(f'"{one.username or "postgres"}" "{one.password or ""}"\n' for one in urls))
        said.write(
            SETTINGS.format(
                name=url.database, host=url.host or "127.0.0.1", port=url.port or 5432, free=free,
                users=f"/proc/self/fd/{users.fileno()}",
            )
        )  # fmt: skip
        for file in (users, said):
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # PgBouncer refuses root, and nobody cannot read our directories
        command = [*as_nobody, POOLER, f"/proc/self/fd/{said.fileno()}"]
        handed = [users.fileno(), said.fileno()]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "pass_fds": handed}
        with subprocess.Popen(command, **quiet) as bouncer:  # noqa: S603  # our own
            try:
                until = time.monotonic() + TIME
                while not answers(behind[0]):
                    assert bouncer.poll() is None, "pgbouncer did not start"
                    assert time.monotonic() < until, "pgbouncer does not answer"
                yield behind
            finally:
                bouncer.terminate()


@pytest.fixture
def pooled(postgres_url):
    with pooler(postgres_url) as (url,):
        yield url


def answers(url):
    with suppress(psycopg.OperationalError):
        psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False)).close()
        return True
    return False


@pytest.mark.long
async def test_concurrent_turns_of_threads_and_tasks_work_through_pgbouncer(pooled):
    names = [f"t{n}" for n in range(8)]
    address = pooled.render_as_string(hide_password=False)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: talk(address, "wrap", name, 2), names))
    with agentgit.open(pooled) as repo:
        agents = {name: repo.wrap(echoing(), session=name) for name in [*names, *(f"a{n}" for n in range(8))]}
        for turn in range(2):
            await asyncio.gather(*(agents[f"a{n}"].ainvoke(said(f"a{n}", turn)) for n in range(8)))
        for name, agent in agents.items():
            assert texts((await agent.aget_state()).values) == whole(name, 2)
        back = await agents["t0"].arollback("HEAD~1")
        await back.ainvoke(said("again", 0))
        assert repo.maintenance.fsck(3).is_sound


def test_each_role_is_its_own_tenant_behind_pgbouncer(empty_server):
    with (
        postgres_databases.tenants(empty_server, "acme", "beta") as tenants,
        pooler(*tenants.values()) as urls,
        ThreadPoolExecutor(8) as pool,
    ):
        addresses = [url.render_as_string(hide_password=False) for url in urls]
        list(pool.map(lambda n: talk(addresses[n % 2], "wrap", f"t{n}", 2), range(8)))
        for n, address in enumerate(addresses):
            with agentgit.open(address) as repo:
                assert {one.session_name for one in repo.sessions()} == {f"t{n + m}" for m in (0, 2, 4, 6)}
                assert repo.maintenance.fsck(3).is_sound


async def test_idle_connections_are_closed_and_opened_again(postgres_url, monkeypatch):
    monkeypatch.setattr(postgres, "CLOSE_SECONDS", 1.0)  # longer than a busy machine needs to count the connections
    monkeypatch.setattr(postgres, "_idle_pools", postgres._IdlePools())  # the thread of another test may be asleep

    def connections():
        with postgres_databases.on(postgres_url.set(database="postgres")) as engine, engine.connect() as connection:
            found = "SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND backend_type = 'client backend'"
            return connection.execute(text(found), {"name": postgres_url.database}).scalar_one()

    other = connections()
    with agentgit.open(postgres_url) as repo:
        for _ in range(2):
            assert [*repo.sessions(), *await repo.asessions()] == []
            assert connections() > other
            until = time.monotonic() + TIME
            while connections() > other:
                assert time.monotonic() < until
                await asyncio.sleep(0.1)


def prepares(url):
    """Return after how many runs a connection of a database prepares a statement; None is never."""
    with closing(Database(url)) as database, database.reading() as transaction:
        return transaction.connection.connection.driver_connection.prepare_threshold


def test_statements_are_prepared_except_behind_a_pooler(postgres_url, pooled):
    assert prepares(postgres_url) == 5
    assert prepares(pooled) is None
    assert prepares(pooled.update_query_dict({"prepare_threshold": "7"})) == 7
    assert prepares(postgres_url.update_query_dict({"prepare_threshold": "none"})) is None
