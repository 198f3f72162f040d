"""The example behind AG-UI: a message that is edited in a client undoes what came after it."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from web_servers import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "ag_ui"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder with the databases of the server."""
    return tmp_path_factory.mktemp("ag_ui")


@pytest.fixture(scope="module")
def server(folder):
    """Start the example as its README says, and return the address of its endpoint."""
    port = free_port()
    environment = {**os.environ, "SHOP_FOLDER": str(folder), "LANGSMITH_TRACING": "false"}
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=EXAMPLE, env=environment, stdout=log, stderr=log)  # noqa: S603
        try:
            deadline = time.monotonic() + 60
            while not is_open(port):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/agent"
        finally:
            process.terminate()
            process.wait(30)


def is_open(port):
    """Return whether a server listens."""
    with closing(socket.socket()) as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


class Client:
    """A client of AG-UI with one thread.

    Args:
        address: The address of the endpoint.
        shop: The database of the shop, which is the truth about its orders.
    """

    def __init__(self, address, shop):
        self.address, self.shop, self.thread, self.messages = address, shop, str(uuid.uuid4()), []
        self.first_order = len(self.read("orders"))

    def read(self, table):
        """Read a table of the shop."""
        with closing(sqlite3.connect(self.shop)) as connection:
            return connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()  # noqa: S608  # our own name

    @property
    def orders(self):
        """What was ordered in this thread, with its status."""
        return [(row[1], row[-1]) for row in self.read("orders")[self.first_order :]]

    def post(self, resume=(), **more):
        """Send the messages, and return the events."""
        body = {
            "threadId": self.thread, "runId": str(uuid.uuid4()), "state": {}, "messages": self.messages, "tools": [],
            "context": [], "forwardedProps": more, "resume": [*resume],
        }  # fmt: skip
        with httpx.stream("POST", self.address, json=body, timeout=60) as response:
            assert response.status_code == 200
            events = [json.loads(line[5:]) for line in response.iter_lines() if line.startswith("data:")]
        for event in events:
            if event["type"] == "MESSAGES_SNAPSHOT":
                self.messages = event["messages"]
        return events

    def say(self, text):
        """Send a new message."""
        self.messages = [*self.messages, {"id": str(uuid.uuid4()), "role": "user", "content": text}]
        return self.post()

    def edit(self, number, text):
        """Replace one of the user's messages, as a client does: the messages after it are left out."""
        index = [n for n, message in enumerate(self.messages) if message["role"] == "user"][number]
        self.messages = [*self.messages[:index], {**self.messages[index], "content": text}]
        return self.post()


@pytest.fixture
def client(server, folder):
    """Begin a thread."""
    return Client(server, folder / "shop.db")


def errors(events):
    """Return the messages of the errors."""
    return [event["message"] for event in events if event["type"] == "RUN_ERROR"]


def questions(events):
    """Return the values of the interrupts."""
    return [event["value"] for event in events if event["type"] == "CUSTOM" and event["name"] == "on_interrupt"]


def test_editing_a_message_cancels_the_later_orders(client):
    """Order a chair, order a table, edit message 1: both are cancelled, then the lamp is ordered."""
    client.say("order a chair")
    client.say("order a table")
    assert errors(client.edit(0, "order a lamp")) == []
    assert client.orders == [("chair", "cancelled"), ("table", "cancelled"), ("lamp", "open")]
    client.say("order a sofa")
    assert client.orders[-2:] == [("lamp", "open"), ("sofa", "open")]


def test_a_payment_is_asked_for_by_an_interrupt(client):
    """An edit before a payment asks with the plan; no cancels, yes refunds and goes on."""
    client.say("order a chair")
    client.say("pay")
    (question,) = questions(client.edit(1, "order a lamp"))
    assert "charge_card" in str(question)
    client.post(command={"resume": False})
    assert client.read("payments")[-1][-1] == "charged"
    client.edit(1, "order a lamp")
    client.post(command={"resume": True})
    assert client.read("payments")[-1][-1] == "refunded"
    assert client.orders == [("chair", "open"), ("lamp", "open")]


@pytest.mark.parametrize(("status", "state"), [("resolved", "refunded"), ("cancelled", "charged")])
def test_the_question_is_answered_as_ag_ui_defines_it(client, status, state):
    """The `resume` of AG-UI consents with the payload true, and a cancelled question changes nothing."""
    client.say("order a chair")
    client.say("pay")
    events = client.edit(1, "order a lamp")
    (interrupt,) = [event["rawEvent"]["id"] for event in events if event["type"] == "CUSTOM"]
    payload = True if status == "resolved" else None
    client.post(resume=[{"interruptId": interrupt, "status": status, "payload": payload}])
    assert client.read("payments")[-1][-1] == state


def test_what_cannot_be_undone_is_refused_readably(client):
    """An edit before a mail fails with the reason, nothing has changed, and the thread goes on."""
    client.say("order a chair")
    client.say("mail a note to bob")
    kept = client.messages
    (reason,) = errors(client.edit(0, "order a lamp"))
    assert "send_mail" in reason
    assert client.orders == [("chair", "open")]
    client.messages = kept
    client.say("order a sofa")
    assert client.orders == [("chair", "open"), ("sofa", "open")]
