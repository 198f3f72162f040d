"""The example behind LangGraph's own `langgraph dev`, and a graph with slow tools, driven by LangGraph's SDK."""

import asyncio
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import APIStatusError
from web_servers import free_port, started

import agentgit

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / ".venv-host" / "bin" / "langgraph"
STREAM_MODES = (
    "values", "updates", "messages", "messages-tuple", "events", "debug", "custom", "tasks", "checkpoints"
)  # fmt: skip
FLUSH_INTERVAL = 10
"""The seconds after which the in-memory runtime has written its runs to a file."""


class Server:
    """A server on loopback: the folder of its langgraph.json, and the folder for its databases."""

    def __init__(self, source, folder):
        assert PROGRAM.exists(), "Run: make .venv-host/.ready"
        self.folder, self.app, self.log = folder, folder / "app", folder / "log"
        shutil.copytree(source, self.app)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        given = {"PYTHONPATH": str(ROOT), "SHOP_FOLDER": str(self.folder), "LANGSMITH_TRACING": "false"}
        command = [PROGRAM, "dev", "--no-browser", "--no-reload", "--port", str(self.port)]
        self.process = started(command, self.port, self.log, self.app, **given)

    def kill(self):
        """Kill it with all its threads, as a machine that loses its power."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def ledger(self):
        path = self.folder / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    async def wait_for(self, line):
        deadline = time.monotonic() + 30
        while line not in self.ledger:
            assert time.monotonic() < deadline, self.ledger
            await asyncio.sleep(0.02)

    @property
    def orders(self):
        """What the example's shop has been ordered, with its status."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            return connection.execute("SELECT item, status FROM orders ORDER BY rowid").fetchall()


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    server = Server(ROOT / "examples" / "server", tmp_path_factory.mktemp("shop"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    server = Server(ROOT / "tests" / "support" / "slow_server", tmp_path_factory.mktemp("slow"))
    yield server
    server.kill()


class Client:
    """A thread of a user on a server, in the SDK of LangGraph."""

    def __init__(self, server, graph, user="ada"):
        self.server, self.graph = server, graph
        self.sdk = get_client(url=server.address, headers={"authorization": f"Bearer {user}"})
        self.thread = None
        self.first_order, self.first_line = len(server.orders) if graph == "shop" else 0, len(server.ledger)

    async def __aenter__(self):
        self.thread = (await self.sdk.threads.create())["thread_id"]
        return self

    async def __aexit__(self, *error):
        await self.sdk.aclose()

    async def say(self, text, **more):
        return await self.sdk.runs.wait(self.thread, self.graph, input=said(text), **more)

    async def run(self, text):
        return (await self.sdk.runs.create(self.thread, self.graph, input=said(text)))["run_id"]

    async def checkpoint(self):
        state = await self.sdk.threads.get_state(self.thread)
        return {"checkpoint_id": state["checkpoint"]["checkpoint_id"]}

    async def messages(self):
        state = await self.sdk.threads.get_state(self.thread)
        return [message["content"] for message in state["values"].get("messages", ()) if message["content"]]

    @property
    def orders(self):
        return self.server.orders[self.first_order :]

    @property
    def ledger(self):
        return self.server.ledger[self.first_line :]


def said(text):
    return {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
async def buyer(shop):
    async with Client(shop, "shop") as client:
        yield client


@pytest.fixture
async def worker(slow):
    async with Client(slow, "slow") as client:
        yield client


def test_a_graph_that_shows_its_checkpointer_is_refused_with_the_form_to_export(tmp_path):
    (tmp_path / "app.py").write_text(
        "import agentgit\nfrom agentgit.demo import build, open_shop\n"
        "graph = agentgit.open('agentgit.db').graph(build(open_shop('shop.db')))\n"
    )
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["."], "graphs": {"shop": "./app.py:graph"}}')
    command = [PROGRAM, "dev", "--no-browser", "--no-reload", "--port", str(free_port())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LANGSMITH_TRACING": "false"}
    done = subprocess.run(  # noqa: S603  # our own command
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert "export repo.graph(...).copy({'checkpointer': None})" in done.stdout + done.stderr


# -- the example


async def test_runs_and_every_stream_mode_work(buyer):
    answer = await buyer.say("order two chairs")
    assert answer["messages"][-1]["content"].startswith("Ordered 2 chairs")
    for mode in STREAM_MODES:
        chunks = buyer.sdk.runs.stream(buyer.thread, "shop", input=said("hello"), stream_mode=mode)
        events = {chunk.event async for chunk in chunks}
        assert "error" not in events
        assert any(event.startswith(mode.partition("-")[0]) for event in events) or mode == "custom"
    assert buyer.orders == [("chair", "open")]


async def test_a_run_from_an_older_checkpoint_undoes_what_came_later(buyer):
    await buyer.say("order two chairs")
    before = await buyer.checkpoint()
    await buyer.say("order a table")
    await buyer.say("order a lamp", checkpoint=before)
    assert buyer.orders == [("chair", "open"), ("table", "cancelled"), ("lamp", "open")]
    history = await buyer.sdk.threads.get_history(buyer.thread, limit=100)
    last = [state["values"]["messages"][-1]["content"] for state in history if not state["next"]]
    assert [any(word in text for text in last) for word in ("chair", "table", "lamp")] == [True] * 3


async def test_consent_is_an_interrupt_of_the_server(buyer):
    await buyer.say("order two chairs")
    before = await buyer.checkpoint()
    await buyer.say("pay")
    await buyer.say("order a lamp", checkpoint=before)
    state = await buyer.sdk.threads.get_state(buyer.thread)
    assert "charge_card" in state["tasks"][0]["interrupts"][0]["value"]["message"]
    assert ("lamp", "open") not in buyer.orders
    await buyer.sdk.runs.wait(buyer.thread, "shop", command={"resume": True})
    assert buyer.orders[-1] == ("lamp", "open")


async def test_errors_of_a_run_are_readable_and_leave_the_thread_as_it_is(buyer, shop):
    """What cannot be undone, an unknown checkpoint, and one of another thread."""
    async with Client(shop, "shop") as other:
        await other.say("order a sofa")
        foreign = await other.checkpoint()
    await buyer.say("order a chair")
    before = await buyer.checkpoint()
    await buyer.say("mail a note to bob")
    messages = await buyer.messages()
    for checkpoint, said_why in (
        (before, "send_mail"),
        ({"checkpoint_id": "1f0d3b4e-0000-6000-8000-000000000000"}, "has no checkpoint"),
        (foreign, "has no checkpoint"),
    ):
        answer = await buyer.say("order a lamp", checkpoint=checkpoint, raise_error=False)
        assert said_why in json.dumps(answer["__error__"])
    assert buyer.orders == [("sofa", "open"), ("chair", "open")]
    assert await buyer.messages() == messages
    with pytest.raises(APIStatusError, match="not found"):
        await buyer.sdk.threads.get_state("00000000-0000-4000-8000-000000000000")


async def test_the_servers_own_verbs_reach_the_session(buyer, shop):
    """A copied thread continues by itself, a deleted run undoes nothing, and a deleted thread is erased."""
    await buyer.say("order a chair")
    copied = (await buyer.sdk.threads.copy(buyer.thread))["thread_id"]
    await buyer.sdk.runs.wait(copied, "shop", input=said("order a sofa"))
    await buyer.say("order a table")
    run = (await buyer.sdk.runs.list(buyer.thread))[0]["run_id"]
    await buyer.sdk.runs.delete(buyer.thread, run)
    assert buyer.orders == [("chair", "open"), ("sofa", "open"), ("table", "open")]
    assert len(await buyer.messages()) == 6
    await buyer.sdk.threads.delete(buyer.thread)
    with agentgit.open(shop.folder / "agentgit.db") as repo:
        threads = {session.session_name for session in repo.sessions()}
    assert copied in threads
    assert buyer.thread not in threads


async def test_agentgits_routes_are_part_of_the_server(buyer, shop):
    await buyer.say("order a chair")
    await buyer.say("order a table")
    with agentgit.open(shop.folder / "agentgit.db") as repo:
        session = repo.session(buyer.thread)
        editor = repo.users.add(f"editor-{session.id}")
        session.sharing.share(editor, role="editor")
        key = repo.keys.create("studio", user=editor, scopes=("write",)).secret
    token = re.findall(r"/agentgit/sign-in\?token=(\S+)", shop.log.read_text())[-1]
    with httpx.Client(follow_redirects=True) as browser:
        assert buyer.thread in browser.get(f"{shop.address}/agentgit/sign-in", params={"token": token}).text
    base = f"{shop.address}/agentgit/api/v1/sessions/{session.id}"
    assert httpx.get(f"{base}/tree").status_code == 401
    with httpx.Client(headers={"authorization": f"Bearer {key}"}) as web:
        points = web.get(f"{base}/log").json()["items"]
        before = next(point["id"] for point in points if point["description"].endswith("order a table"))
        plan = web.get(f"{base}/plan-rollback", params={"to": before}).json()
        assert [step["action"] for step in plan["steps"]] == ["reverse"]
        assert web.post(f"{base}/rollback", json={"to": str(before)}).status_code == 201
        assert buyer.orders == [("chair", "open"), ("table", "cancelled")]
        assert len(await buyer.messages()) == 3
        assert web.post(f"{base}/switch", json={"branch": "main"}).status_code == 200
        assert len(web.get(f"{base}/tree").json()["branches"]) == 2
    assert len(await buyer.messages()) == 6


async def test_a_restarted_server_reverses_what_it_did_before(buyer, shop):
    await buyer.say("order a chair")
    before = await buyer.checkpoint()
    await buyer.say("order a table")
    await asyncio.sleep(FLUSH_INTERVAL + 2)  # otherwise the server runs again what its file has as running
    shop.kill()
    shop.start()
    await buyer.sdk.threads.create(thread_id=buyer.thread, graph_id="shop", if_exists="do_nothing")
    assert len(await buyer.messages()) == 6
    await buyer.say("order a lamp", checkpoint=before)
    assert buyer.orders == [("chair", "open"), ("table", "cancelled"), ("lamp", "open")]


# -- slow tools


async def test_cancel_with_rollback_reverses_the_run(worker):
    """The call in flight ends, then it and the calls before it are reversed; a payment stays and is reported."""
    await worker.say("order chair")
    run = await worker.run("order lamp; pay lamp; slow table")
    await worker.server.wait_for("begin table")
    await worker.sdk.runs.cancel(worker.thread, run, wait=True, action="rollback")
    await worker.server.wait_for("cancel lamp")
    made = ["order chair", "order lamp", "pay lamp", "begin table", "order table"]
    assert worker.ledger == [*made, "cancel table", "cancel lamp"]
    while await worker.messages() != ["order chair", "chair", "done"]:
        await asyncio.sleep(0.05)
    with agentgit.open(worker.server.folder / "agentgit.db") as repo:
        report = repo.session(worker.thread).operations()[0].report
    assert len(report["reversed"]) == 2
    assert [kept["reason"] for kept in report["kept"]] == [
        "only reversible effects are reversed; its undo compensates for it"
    ]
    await worker.say("order bed")
    assert worker.ledger[-1] == "order bed"


async def test_the_memory_of_the_server_is_undone(worker):

    async def remembered(item):
        found = await worker.sdk.store.search_items(["items"])
        return item in [one["key"] for one in found["items"]]

    await worker.say("hello")
    before = await worker.checkpoint()
    await worker.say("remember birthday")
    assert await remembered("birthday")
    await worker.say("remember name", checkpoint=before)
    assert not await remembered("birthday")
    assert await remembered("name")


async def test_a_thread_of_another_user_is_not_found(worker, slow):
    """With the server's own authorization, nobody reads, runs, forks or deletes a thread of somebody else."""
    await worker.say("order rug")
    async with Client(slow, "slow", "bob") as bob:
        threads, runs = bob.sdk.threads, bob.sdk.runs
        for refused in (
            threads.get_state(worker.thread),
            threads.get_history(worker.thread),
            threads.update_state(worker.thread, said("hello")),
            threads.delete(worker.thread),
            runs.create(worker.thread, "slow", input=said("order bed")),
        ):
            with pytest.raises(APIStatusError, match="not found"):
                await refused
        config = {"configurable": {"thread_id": worker.thread}}
        await runs.wait(bob.thread, "slow", input=said("hello"), config=config)
    assert await worker.messages() == ["order rug", "rug", "done"]
    assert worker.ledger == ["order rug"]


@pytest.mark.parametrize(("strategy", "kept"), [("rollback", False), ("interrupt", True), ("enqueue", True)])
async def test_a_second_run_of_a_busy_thread(worker, strategy, kept):
    """Each strategy of the server for two runs at once leaves the world as the conversation tells it."""
    item = f"sofa-{strategy}"
    await worker.run(f"slow {item}")
    await worker.server.wait_for(f"begin {item}")
    await worker.say("order bed", multitask_strategy=strategy)
    await worker.server.wait_for(f"order {item}")
    assert (f"cancel {item}" in worker.ledger) is not kept
    assert (f"slow {item}" in await worker.messages()) is kept
    assert worker.ledger.count("order bed") == 1


async def test_a_run_that_was_killed_is_joined_after_a_restart(worker, slow):
    items = [f"part{number}" for number in range(9)]
    run = await worker.run("; ".join(f"slow {item}" for item in items))
    await asyncio.sleep(FLUSH_INTERVAL + 2)
    slow.kill()
    slow.start()
    await worker.sdk.runs.join(worker.thread, run)
    assert [worker.ledger.count(f"order {item}") for item in items] == [1] * len(items)
    assert (await worker.messages())[-1] == "done"


async def test_nothing_blocks_the_event_loop(shop, slow):
    """The server's own detector, which these runs had on, has found nothing, and nothing failed unnoticed."""
    for server in (shop, slow):
        log = re.sub(r"\x1b\[[0-9;]*m", "", server.log.read_text())
        assert "Blocking call" not in log
        assert "Failed to clean up custom checkpointer" not in log
