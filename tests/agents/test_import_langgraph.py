"""Import of threads from LangGraph's savers into sessions."""

import dataclasses
import enum
from pathlib import Path
from typing import Annotated, Any

import backend
import pytest
from delta_graphs import chat
from foreign_threads import any_origin, interrupt_import, on, origin, said, same, shop
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.types import Command
from pydantic import BaseModel
from scripted import GRAPHS, World, call, calls, nested_graph, scripted

from agentgit import Conflict

__all__ = ["any_origin", "origin"]  # the fixtures


def tuples(repo, session):
    return list(backend.saver(repo).list(on(repo.session(session).branch("main").langgraph_session_id)))


def test_an_imported_session_has_the_history_of_a_native_one(repo, origin, world):
    texts = ["order a chair", "hello", "fail because", "and a table"]
    origin.talk(shop(world), "t", *texts)
    before = Path(origin.url).read_bytes()
    repo.import_langgraph(origin.url)
    assert Path(origin.url).read_bytes() == before
    native = repo.wrap(shop(World())(None), "native")
    for text in texts:
        native.run(text)

    def history(session):
        keys = ("number", "kind", "description", "message_count", "tool_track_position")
        return [[point.metadata[key] for key in keys] for point in repo.session(session).checkpoints()]

    assert history("t") == history("native")
    assert history("t")[0] == [1, "before", "order a chair", 0, 0]
    first = repo.session("t").get_checkpoint("main#3")
    assert first.metadata["restore_point"] == repo.session("t").get_checkpoint("main#4").conversation_history[4]["id"]
    newest = origin.tuples("t")[0].checkpoint["ts"]
    assert repo.session("t").get_checkpoint("HEAD").created_at.isoformat() == newest


def test_imported_calls_are_on_the_track_and_kept_by_a_rollback(repo, origin, world):
    origin.talk(shop(world), "t", "order a chair", "fail because", "and a table")
    repo.import_langgraph(origin.url)
    track = repo.session("t").tool_track()
    assert [(c.tool_name, c.status, c.effect, c.args) for c in track] == [
        ("add", "done", "undeclared", {"item": "chair"}),
        ("fail", "failed", "undeclared", {"why": "because"}),
        ("add", "done", "undeclared", {"item": "table"}),
    ]
    assert all(c.started_at < c.ended_at for c in track)
    agent = repo.wrap(shop(world)(None), "t", effects=world.effects(add_if_approved="irreversible"))
    agent.run("order a lamp")
    retry = agent.rollback("main#3")
    assert world.items == ["chair", "table"]
    assert [m["content"] for m in retry.history()] == [m["content"] for m in agent.history()][:4]
    assert "kept      add(item='table')" in str(retry.report)
    assert retry.run("hello") == "Hello."


def test_every_saver_is_read_completely_and_only_new_turns_are_added_later(repo, any_origin, world):
    """Graph checkpoints keep ids, parents, metadata, values and pending writes."""
    any_origin.talk(shop(world), "t", "order a chair")
    report = repo.import_langgraph(any_origin.url)
    assert [(one.status, one.left_out, one.hidden) for one in report.threads] == [("imported", 0, ())]
    assert same(tuples(repo, "t"), any_origin.tuples("t"))
    assert [one.status for one in repo.import_langgraph(any_origin.url).threads] == ["unchanged"]
    any_origin.talk(shop(world), "t", "and a table")
    any_origin.talk(shop(world), "u", "hello")
    assert [(one.thread_id, one.status) for one in repo.import_langgraph(any_origin.url).threads] == [
        ("t", "extended"), ("u", "imported"),
    ]  # fmt: skip
    assert same(tuples(repo, "t"), any_origin.tuples("t"))
    assert [point.metadata["kind"] for point in repo.session("t").checkpoints()] == ["before", "after"] * 2
    assert len(repo.session("t").tool_track()) == 2
    assert {s.session_name for s in repo.sessions()} == {"t", "u"}
    assert len(backend.threads(repo)) == 2


def test_an_interrupted_import_can_be_finished_or_collected(repo, origin, world):
    """Nothing of a thread is visible before it is complete. Gc keeps what was read unless imports=True."""
    origin.talk(shop(world), "t", *["order a chair"] * 5)
    saver, steps = backend.saver(repo), []
    interrupt_import(repo, origin, at=16)
    assert repo.sessions() == []
    counted = saver.gc(dry_run=True, imports=True)
    assert (saver.gc().values, counted.values > 16) == (0, True)
    assert saver.gc(imports=True) == counted
    assert backend.threads(repo) == set()
    interrupt_import(repo, origin, at=16)
    repo.import_langgraph(origin.url, progress=steps.append)
    assert steps[-1].total == 25 - 16 + 1  # the newest is read again for new pending writes
    assert same(tuples(repo, "t"), origin.tuples("t"))
    assert len(backend.threads(repo)) == 1
    assert saver.gc(imports=True).values == 0


def test_an_import_collected_while_it_runs_raises_a_conflict(repo, origin, world):
    origin.talk(shop(world), "t", *["order a chair"] * 5)
    saver = backend.saver(repo)

    def collect(now):
        if now.done == 16:
            saver.gc(imports=True)

    with pytest.raises(Conflict, match="Import it again"):
        repo.import_langgraph(origin.url, progress=collect)
    assert repo.sessions() == []
    repo.import_langgraph(origin.url)
    assert same(tuples(repo, "t"), origin.tuples("t"))


def test_a_waiting_thread_still_waits_after_its_import(repo, any_origin, world):
    any_origin.talk(shop(world), "here", "ask for a chair")
    any_origin.talk(shop(world), "there", "ask for a chair")
    repo.import_langgraph(any_origin.url)
    assert [point.metadata["kind"] for point in repo.session("here").checkpoints()] == ["before"]
    agent = repo.wrap(shop(world)(None), "here", effects=world.effects())
    assert agent.get_state().interrupts[0].value == {"add": "chair"}
    agent.invoke(Command(resume="yes"))
    assert world.items == ["chair"]
    any_origin.talk(shop(world), "there", Command(resume="yes"))
    assert [one.status for one in repo.import_langgraph(any_origin.url).threads] == ["unchanged", "extended"]
    assert same(tuples(repo, "there"), any_origin.tuples("there"))
    assert repo.wrap(shop(world)(None), "there").get_state().next == ()


def test_only_the_newest_line_of_a_thread_with_time_travel_is_imported(repo, origin, world):
    origin.talk(shop(world), "t", "order a chair", "and a table")
    with origin.saver() as saver:
        graph = shop(world)(saver)
        after_first = list(graph.get_state_history(on("t")))[5]
        graph.invoke(said("rather a lamp"), after_first.config)
    (one,) = repo.import_langgraph(origin.url).threads
    assert one.left_out == 5
    assert [m["content"] for m in repo.wrap(shop(world)(None), "t").history() if m["role"] == "user"] == [
        "order a chair", "rather a lamp",
    ]  # fmt: skip
    assert [p.metadata["description"] for p in repo.session("t").checkpoints()][::2] == [
        "order a chair",
        "rather a lamp",
    ]


def test_a_thread_that_left_its_imported_line_is_refused(repo, origin, world):
    origin.talk(shop(world), "t", "order a chair", "and a table")
    repo.import_langgraph(origin.url)
    with origin.saver() as saver:
        graph = shop(world)(saver)
        graph.invoke(said("hello"), list(graph.get_state_history(on("t")))[5].config)
    (one,) = repo.import_langgraph(origin.url, on_error="continue").threads
    assert "no longer continues" in str(one.error)
    assert len(repo.session("t").checkpoints()) == 4


@pytest.mark.parametrize("own_thread", [False, True])
def test_subgraphs_are_imported_with_their_graph(repo, any_origin, world, own_thread):
    def build(saver):
        model = scripted(call("add", "c1", item="chair"), "first", "second")
        return nested_graph(model, world.tools(), saver, own_thread=own_thread)

    any_origin.talk(build, "t", "one")
    repo.import_langgraph(any_origin.url)
    assert same(tuples(repo, "t"), any_origin.tuples("t"))
    agent = repo.wrap(build(None), "t")
    assert agent.run("two") == "second"
    assert agent.state["visits"] == 2
    assert [c.tool_name for c in agent.tool_track()] == ["add"]


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_graph_continues_after_an_import(repo, origin, world, kind):
    def build(saver):
        return GRAPHS[kind](scripted(call("add", "c1", item="chair"), "one", "two"), world.tools(), saver)

    origin.talk(build, "t", "a")
    repo.import_langgraph(origin.url)
    agent = repo.wrap(build(None), "t", effects={} if kind == "functional" else world.effects())
    agent.invoke(said("b"))
    assert [m["content"] for m in agent.history()][-3:] == ["one", "b", "two"]
    assert [p.metadata["description"] for p in agent.checkpoints()] == ["a", "one", "b", "two"]
    assert len(agent.tool_track()) == 1


def test_parallel_calls_are_imported_in_the_order_of_their_message(repo, origin, world):
    both = calls(call("add", "c1", item="chair"), call("look", "c2"), call("add", "c3", item="table"))
    origin.talk(lambda saver: GRAPHS["create_agent"](scripted(both, "done"), world.tools(), saver), "t", "a")
    repo.import_langgraph(origin.url)
    assert [c.tool_call_id for c in repo.session("t").tool_track()] == ["c1", "c2", "c3"]
    assert repo.session("t").get_checkpoint("HEAD").metadata["tool_track_position"] == 3


def test_an_update_state_between_turns_has_a_checkpoint(repo, origin, world):
    origin.talk(shop(world), "t", "hello")
    with origin.saver() as saver:
        shop(world)(saver).update_state(on("t"), {"messages": [("assistant", "By hand.")]}, as_node="model")
    origin.talk(shop(world), "t", "hello")
    repo.import_langgraph(origin.url)
    found = [(p.metadata["kind"], p.metadata["description"]) for p in repo.session("t").checkpoints()]
    assert found == [
        ("before", "hello"), ("after", "Hello."), ("after", "By hand."), ("before", "hello"), ("after", "Hello."),
    ]  # fmt: skip


def test_a_pruned_thread_begins_at_its_oldest_checkpoint(repo, origin, world):
    origin.talk(shop(world), "t", "hello", "order a chair")
    newest = origin.tuples("t")[0].config["configurable"]["checkpoint_id"]
    origin.execute("DELETE FROM checkpoints WHERE checkpoint_id < ?", newest)
    repo.import_langgraph(origin.url)
    assert [(p.metadata["kind"], p.metadata["message_count"]) for p in repo.session("t").checkpoints()] == [
        ("after", 6)
    ]
    assert repo.wrap(shop(world)(None), "t").run("hello") == "Hello."


@dataclasses.dataclass
class Cart:
    items: list[str]

    def __post_init__(self) -> None:
        BUILT.append(self.items)


class Colour(enum.Enum):
    RED = "red"


BUILT: list[list[str]] = []
"""The items of each cart that was built."""


class WithCart(MessagesState):
    cart: Any


def test_custom_values_survive_an_import_that_builds_none(repo, origin):
    def build(saver):
        graph = StateGraph(WithCart).add_node("fill", lambda state: {"cart": Cart(["chair"])})
        return graph.add_edge(START, "fill").compile(checkpointer=saver)

    origin.talk(build, "t", "a")
    BUILT.clear()
    repo.import_langgraph(origin.url)
    agent = repo.wrap(build(None), "t")
    assert BUILT == []
    assert type(agent.state["cart"]) is Cart
    assert agent.state["cart"].items == ["chair"]
    assert BUILT == []


class Step(BaseModel):
    title: str
    cart: Cart | None = None


class Plan(BaseModel):
    steps: list[Step]
    by_name: dict[str, Step] = {}
    notes: dict[str, str] = {}
    colour: Colour | None = None


class WithPlan(MessagesState):
    plan: Plan


def test_models_inside_models_survive_an_import(repo, origin):
    """LangGraph stores them as plain dicts; the hints of the fields tell what they were."""
    step = Step(title="a", cart=Cart(["chair"]))
    plan = Plan(steps=[step], by_name={"a": step}, notes={"title": "x"}, colour=Colour.RED)

    def build(saver):
        graph = StateGraph(WithPlan).add_node("fill", lambda state: {"plan": plan})
        return graph.add_edge(START, "fill").compile(checkpointer=saver)

    origin.talk(build, "t", "a")
    repo.import_langgraph(origin.url)
    BUILT.clear()
    found = repo.wrap(build(None), "t").state["plan"]
    assert (type(found), found) == (Plan, plan)
    assert [type(one.cart) for one in (*found.steps, *found.by_name.values())] == [Cart, Cart]
    assert BUILT == []


@pytest.mark.long
def test_a_long_thread_is_imported_completely_and_compactly(repo, origin, world):
    origin.talk(shop(world), "t", *["hello"] * 200)
    (one,) = repo.import_langgraph(origin.url).threads
    assert (one.graph_checkpoints, one.checkpoints) == (600, 400)
    assert len(repo.session("t").get_checkpoint("HEAD").conversation_history) == 400
    if backend.is_sqlite(repo):
        with backend.reading(repo) as transaction:
            pages = transaction.connection.exec_driver_sql("PRAGMA page_count").scalar()
        assert pages * 4096 < Path(origin.url).stat().st_size / 10


def test_values_of_a_delta_channel_are_imported_completely(repo, any_origin):
    """They exist only in earlier writes."""

    def build(saver):
        return chat(Annotated[list, add_messages], saver)

    any_origin.talk(build, "t", *["hello"] * 3)
    with any_origin.saver() as saver:
        expected = build(saver).get_state(on("t")).values["log"]
    repo.import_langgraph(any_origin.url)
    agent = repo.wrap(build(None), "t")
    assert len(expected) == 9
    assert agent.state["log"] == expected
    agent.invoke(said("hello"))
    assert agent.state["log"][:-3] == expected[-7:]
