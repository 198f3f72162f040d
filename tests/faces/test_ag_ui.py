"""The example behind AG-UI: a message that is edited in a client undoes what came after it."""

import json
import sqlite3
import sys
import uuid
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from web_servers import free_port, running

EXAMPLE = Path(__file__).parents[2] / "examples" / "ag_ui"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ag_ui")


@pytest.fixture(scope="module")
def server(folder):
    """Start the example as its README says, and return the address of its endpoint."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    given = {"SHOP_FOLDER": str(folder), "LANGSMITH_TRACING": "false"}
    with running(command, port, folder / "log", EXAMPLE, **given) as address:
        yield f"{address}/agent"


class Client:
    """A client of AG-UI with one thread; the shop is the truth about its orders."""

    def __init__(self, address, shop):
        self.address, self.shop, self.thread, self.messages = address, shop, str(uuid.uuid4()), []
        self.first_order = len(self.read("orders"))

    def read(self, table):
        with closing(sqlite3.connect(self.shop)) as connection:
            return connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()  # noqa: S608  # our own name

    @property
    def orders(self):
        return [(row[1], row[-1]) for row in self.read("orders")[self.first_order :]]

    def post(self, resume=(), **more):
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
        self.messages = [*self.messages, {"id": str(uuid.uuid4()), "role": "user", "content": text}]
        return self.post()

    def edit(self, number, text):
        index = [n for n, message in enumerate(self.messages) if message["role"] == "user"][number]
        self.messages = [*self.messages[:index], {**self.messages[index], "content": text}]
        return self.post()


@pytest.fixture
def client(server, folder):
    return Client(server, folder / "shop.db")


def errors(events):
    return [event["message"] for event in events if event["type"] == "RUN_ERROR"]


def test_editing_a_message_cancels_the_later_orders(client):
    client.say("order a chair")
    client.say("order a table")
    assert errors(client.edit(0, "order a lamp")) == []
    assert client.orders == [("chair", "cancelled"), ("table", "cancelled"), ("lamp", "open")]
    client.say("order a sofa")
    assert client.orders[-2:] == [("lamp", "open"), ("sofa", "open")]


ANSWERS = {
    "yes": (lambda id: {"command": {"resume": True}}, "refunded"),
    "no": (lambda id: {"command": {"resume": False}}, "charged"),
    "resolved": (lambda id: {"resume": [{"interruptId": id, "status": "resolved", "payload": True}]}, "refunded"),
    "cancelled": (lambda id: {"resume": [{"interruptId": id, "status": "cancelled", "payload": None}]}, "charged"),
}
"""The answers to the interrupt of a payment, as LangGraph and as AG-UI define them, and the state of the payment."""


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_payment_is_asked_for_by_an_interrupt(client, answer):
    client.say("order a chair")
    client.say("pay")
    (question,) = [event for event in client.edit(1, "order a lamp") if event["type"] == "CUSTOM"]
    assert question["name"] == "on_interrupt"
    assert "charge_card" in str(question["value"])
    resume, state = ANSWERS[answer]
    client.post(**resume(question["rawEvent"]["id"]))
    assert client.read("payments")[-1][-1] == state
    assert client.orders == [("chair", "open"), ("lamp", "open")][: 1 + (state == "refunded")]


def test_what_cannot_be_undone_is_refused_readably(client):
    client.say("order a chair")
    client.say("mail a note to bob")
    kept = client.messages
    (reason,) = errors(client.edit(0, "order a lamp"))
    assert "send_mail" in reason
    assert client.orders == [("chair", "open")]
    client.messages = kept
    client.say("order a sofa")
    assert client.orders == [("chair", "open"), ("sofa", "open")]
