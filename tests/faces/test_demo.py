"""The scripted model, the shop and the story of the demo."""

from __future__ import annotations

import pkgutil
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from scripted import call, calls, scripted

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, Unavailable, demo

THREAD = {"configurable": {"thread_id": "1"}}


def ask(graph: Any, text: str) -> str:
    result = graph.invoke({"messages": [("user", text)]}, THREAD)
    return str(result["messages"][-1].content)


def read(shop: str | Path, query: str) -> list[tuple[Any, ...]]:
    """Query the shop's database without the code of the demo."""
    with closing(sqlite3.connect(shop)) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def shop(tmp_path: Path) -> str:
    return demo.open_shop(tmp_path / "shop.db")


@pytest.fixture
def clerk(shop: str) -> Any:
    return demo.build(shop).copy({"checkpointer": InMemorySaver()})


# -- the model


def test_the_model_answers_by_the_conversation_and_not_by_a_counter():
    model = demo.ScriptedModel(replies=["one", "two", "three"])
    start = [HumanMessage("a"), AIMessage("one"), HumanMessage("b")]
    further = [*start, AIMessage("two"), HumanMessage("c")]
    assert [model.invoke(m).content for m in (start, further, start)] == ["two", "three", "two"]


def test_every_answer_and_every_tool_call_has_a_unique_id_and_none_is_invented():
    model = scripted(calls(call("add", item="a"), call("add", "mine", item="b")))
    first, second = model.invoke("x"), model.invoke("x")
    assert first.id != second.id
    assert first.tool_calls[0]["id"] != second.tool_calls[0]["id"]
    assert first.tool_calls[1]["id"] == "mine"
    with pytest.raises(InvalidInput, match="has 1 replies"):
        scripted("one").invoke([HumanMessage("a"), AIMessage("one"), HumanMessage("b")])


# -- the shop


def test_the_clerk_orders_searches_charges_mails_and_notes(clerk: Any, shop: str):
    """One sentence is enough to try each kind of effect; what the clerk reports is in the shop's tables."""
    assert "at least one" in ask(clerk, "order 0 chairs")
    assert demo.orders(shop) == []
    said = ask(clerk, "a table and two lamps please")
    assert said == "Ordered 1 table for 120 euros (table-1). Ordered 2 lamps for 50 euros (lamp-1)."
    assert demo.orders(shop) == [("lamp-1", "lamp", 2, 50, "open"), ("table-1", "table", 1, 120, "open")]
    assert "sofa (300)" in ask(clerk, "what do you have?")
    assert ask(clerk, "pay, and mail the receipt").startswith("Charged 170 euros")
    assert ask(clerk, "pay").startswith("Charged 0 euros")
    assert ask(clerk, "note that I am in a hurry") == "Noted."
    assert ask(clerk, "hello") == demo.HELP
    assert read(shop, "SELECT amount FROM payments") == [(170,), (0,)]
    assert read(shop, "SELECT text FROM outbox") == [("You pay 170 euros.",)]
    assert read(shop, "SELECT text FROM notes") == [("note that I am in a hurry",)]


@pytest.mark.parametrize("mode", ["messages", "custom"])
def test_a_sync_stream_of_any_mode_ends(clerk: Any, shop: str, mode: str):
    """A sync stream in a mode for which LangGraph needs a thread of its own ends, and the calls run in order."""
    list(clerk.stream({"messages": [("user", "order two chairs and a table")]}, THREAD, stream_mode=mode))
    assert read(shop, "SELECT item FROM orders ORDER BY rowid") == [("chair",), ("table",)]


def test_undo_needs_only_the_record_and_runs_once(shop: str):
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(demo.build(shop), "s", effects=demo.EFFECTS)
        agent.run("order two chairs and pay")
        recorded = {call.tool_name: call for call in agent.tool_track()}
    order, payment = recorded["create_order"], recorded["charge_card"]
    undo, refund = (pkgutil.resolve_name(call.undo or "") for call in (order, payment))
    assert (undo, refund) == (demo.cancel_order, demo.refund)
    undo(order.args, order.result)
    assert demo.orders(shop)[0].status == "cancelled"
    with pytest.raises(Conflict, match="already reversed"):
        undo(order.args, order.result)


def test_a_moved_shop_is_found_through_the_environment(shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    payment = demo.tools(shop)[2].invoke({"amount": 7})
    moved = Path(shop).rename(tmp_path / "elsewhere.db")
    with pytest.raises(NotFound, match="AGENTGIT_DEMO_SHOP"):
        demo.refund({"amount": 7}, payment)
    monkeypatch.setenv("AGENTGIT_DEMO_SHOP", str(moved))
    demo.refund({"amount": 7}, payment)
    with pytest.raises(Conflict):
        demo.refund({"amount": 7}, payment)


def test_a_file_that_is_not_a_shop_is_left_unchanged(tmp_path: Path):
    text, other = tmp_path / "text.db", tmp_path / "other.db"
    text.write_text("not a database, but long enough to look at" * 9)
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = [text.read_bytes(), other.read_bytes()]
    for path in (text, other):
        with pytest.raises(InvalidInput):
            demo.open_shop(path)
    assert [text.read_bytes(), other.read_bytes()] == before
    with pytest.raises(Unavailable):
        demo.open_shop(tmp_path / "no folder" / "shop.db")


# -- the story


class Told:
    """A run of the story in an empty folder: its files and its lines."""

    def __init__(self, folder: Path) -> None:
        self.database, self.shop = folder / "agentgit.db", folder / "shop.db"
        self.lines: list[str] = []
        self.again()

    def again(self) -> str:
        said: list[str] = []
        demo.story(self.database, self.shop, said.append)
        self.lines += said
        return "\n".join(said)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def steady(text: str, folder: Path) -> str:
    """Remove the differences between two runs from a story: the folder, and the order of parallel calls."""
    text = text.replace(str(folder), "FOLDER")
    runs = re.split(r"((?:^ {4}(?:reverse|reversed|block) .*\n)+)", text, flags=re.MULTILINE)
    runs[1::2] = ["".join(sorted(run.splitlines(keepends=True))) for run in runs[1::2]]
    return "".join(runs)


def test_the_story_matches_its_recorded_text(told: Told, tmp_path: Path):
    text = steady("\n".join(told.lines) + "\n", tmp_path)
    assert text == (Path(__file__).parents[1] / "golden" / "demo.txt").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 71
    assert max(map(len, text.splitlines())) <= 120


def test_the_story_matches_the_state_of_the_shop_and_leaves_both_branches_readable(told: Told):
    """Exactly the orders that were rolled back are cancelled, and the mail was sent once."""
    assert read(told.shop, "SELECT id, status FROM orders ORDER BY id") == [
        ("chair-1", "open"),
        ("lamp-1", "cancelled"),
        ("sofa-1", "open"),
        ("table-1", "cancelled"),
    ]
    assert read(told.shop, "SELECT amount, status FROM payments") == [(380, "charged")]
    assert read(told.shop, "SELECT recipient, text FROM outbox") == [("you@example.org", "You pay 380 euros.")]
    with agentgit.open(told.database, create=False) as repo:
        assert [session.session_name for session in repo.sessions()] == ["demo"]
        session = repo.session("demo")
        branches = {branch.name: branch for branch in session.branches()}
        assert {name: branch.is_current for name, branch in branches.items()} == {"main": False, "main-2": True}
        tracks = {name: [(c.tool_name, c.status) for c in session.tool_track(branch=name)] for name in branches}
    assert tracks["main"] == [("create_order", "done"), ("create_order", "reversed"), ("create_order", "reversed")]
    assert [name for name, _ in tracks["main-2"]] == ["create_order", "create_order", "charge_card", "send_mail"]


def test_the_command_that_the_story_suggests_undoes_and_redoes(told: Told, tmp_path: Path, monkeypatch):
    """The `--trust` of the suggested server knows the undo functions and, in the folder of the shop, the tools."""
    monkeypatch.chdir(tmp_path)
    (trusted,) = re.findall(r"--trust (\S+)", "\n".join(told.lines))
    with agentgit.open(told.database, trust=[trusted]) as repo:
        session = repo.session("demo")
        report = session.rollback("main-2#2", force=True)
        assert [item.invocation.tool_name for item in report.kept] == ["send_mail"]
        assert read(told.shop, "SELECT status FROM payments") == [("refunded",)]
        redone = session.redo().redone
    assert [item.invocation.tool_name for item in redone] == ["create_order", "charge_card"]


@pytest.mark.long
def test_the_story_can_be_repeated_on_the_same_files(told: Told):
    before = read(told.shop, "SELECT * FROM orders")
    text = told.again()
    assert text.startswith("Session demo-2.")
    assert "agentgit tree demo-2" in text
    assert "chair-1" not in text
    assert set(before) <= set(read(told.shop, "SELECT * FROM orders"))
    assert told.again().startswith("Session demo-3.")
    with agentgit.open(told.database) as repo:
        assert {session.session_name for session in repo.sessions()} == {"demo", "demo-2", "demo-3"}


@pytest.mark.long
def test_the_story_names_the_database_only_where_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told):
    """The suggested commands name the database unless it is the default, and can be copied as they are."""
    folder = tmp_path / "with space"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("AGENTGIT_DATABASE_URL", raising=False)
    said: list[str] = []
    demo.story(None, "shop.db", said.append)
    assert "--db" not in "\n".join(said)
    assert f"agentgit tree demo --db {told.database}" in "\n".join(told.lines)
    demo.story(folder / "x.db", "shop.db", said.append)
    assert f"--db '{folder}/x.db'" in "\n".join(said)
