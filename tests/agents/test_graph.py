"""A graph of `repo.graph` is a LangGraph graph whose threads are sessions, and whose older checkpoints roll back."""

import asyncio
import copy
import inspect
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypedDict

import backend
import faults
import points
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from scripted import World, call, calls, obedient, tool_node_graph
from served import THREAD, contents, run, said, told_world

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, RollbackBlocked, reversible
from agentgit.demo import ScriptedModel

OVERRIDDEN = {
    "stream": "a run is a turn of a session, after a rollback if its checkpoint is not the newest",
    "astream": "as stream",
    "bulk_update_state": "an update is a turn of a session, on a new branch if its checkpoint is not the newest",
    "abulk_update_state": "as bulk_update_state",
    "get_state": "reads the sessions, whatever saver the graph was given",
    "aget_state": "as get_state",
    "get_state_history": "as get_state",
    "aget_state_history": "as get_state",
    "copy": "keeps the sessions, whatever saver it is given",
}
"""The public methods that differ from those of the plain graph, and why. All others are inherited."""


@pytest.fixture
def plain(world):
    return tool_node_graph(obedient(), World().tools(), InMemorySaver())


@pytest.fixture
def app(repo, world):
    return repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())


def refusal_of(run, *arguments):
    try:
        run(*arguments)
    except (Conflict, RollbackBlocked) as error:
        return error
    return None


# -- a graph like any other


def test_it_is_a_compiled_graph_that_describes_itself_as_the_plain_one(app, plain):
    """It has every public name."""
    assert isinstance(app, CompiledStateGraph)
    assert set(dir(plain)) <= set(dir(app))
    assert app.get_graph().to_json() == plain.get_graph().to_json()
    assert (app.name, list(app.nodes), list(app.channels)) == (plain.name, list(plain.nodes), list(plain.channels))
    for name in ("get_input_jsonschema", "get_output_jsonschema", "get_context_jsonschema"):
        assert getattr(app, name)() == getattr(plain, name)(), name


def test_its_checkpointer_reads_the_threads(app):
    run(app, "add chair")
    newest = app.get_state(THREAD).config
    assert app.checkpointer.get_tuple(THREAD).config == newest
    with pytest.raises(InvalidInput, match="written only by runs"):
        app.checkpointer.put_writes(newest, [], "task")


def test_a_served_graph_in_a_turn_of_another_is_its_plain_graph(repo, world):
    """Its calls belong to the turn around it. With effects of its own it is refused: a rollback would not know them."""
    effects = world.effects()
    inner = repo.graph(tool_node_graph(obedient(), world.tools()))

    def outer(child):
        graph = StateGraph(MessagesState).add_node("child", child).add_edge(START, "child").compile()
        return repo.graph(graph, effects=effects)

    for number, child in enumerate([inner, lambda state: inner.invoke(state)]):
        app, thread = outer(child), {"configurable": {"thread_id": f"outer {number}"}}
        first = run_on(app, thread, "add chair")
        run_on(app, thread, "add table")
        assert world.items == ["chair", "table"]
        app.invoke(said("hello"), first)
        assert world.items == ["chair"]
        world.items.clear()
    assert {one.session_name for one in repo.sessions()} == {"outer 0", "outer 1"}
    with pytest.raises(InvalidInput, match="inside a turn of another wrapped graph"):
        run_on(outer(repo.graph(tool_node_graph(obedient(), world.tools()), effects=effects)), THREAD, "add chair")


def run_on(app, thread, text):
    app.invoke(said(text), thread)
    return app.get_state(thread).config


def test_the_metadata_of_an_update_are_langgraphs(app, plain):
    """What is kept for a rerun, the node that the update names, is not among them."""
    run(app, "add chair")
    app.update_state(THREAD, said("add table"), as_node="model")
    assert app.get_state(THREAD).metadata.keys() == {"source", "step", "parents"}


def test_the_copy_for_a_host_shows_neither_checkpointer_nor_store(repo):
    """Its nodes have the store of the graph all the same, until the host gives another one."""
    seen, own, hosts = [], InMemoryStore(), InMemoryStore()

    def node(state, *, store):
        seen.append(store)

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(store=own)
    copied = repo.graph(graph).copy({"checkpointer": None})
    assert copied.checkpointer is copied.store is None
    copied.invoke(said("hello"), THREAD)
    copied.copy({"checkpointer": InMemorySaver(), "store": hosts}).invoke(said("hello"), THREAD)
    assert seen == [own, hosts]
    assert [one.session_name for one in repo.sessions()] == ["t"]


def test_only_the_methods_in_the_table_differ(app):
    """Every other public method is LangGraph's own, and those in the table have the same parameters."""
    differing = set()
    for owner in (CompiledStateGraph, Pregel):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if name.startswith("_") or getattr(type(app), name) is getattr(CompiledStateGraph, name):
                continue
            differing.add(name)
            theirs, ours = (inspect.signature(one).parameters for one in (method, getattr(type(app), name)))
            shapes = [
                [(one.name, one.kind, one.default) for one in parameters.values()] for parameters in (theirs, ours)
            ]
            assert shapes[0] == shapes[1], name
    assert differing == OVERRIDDEN.keys()


def shown(chunk):
    return str([message.content for message in chunk["messages"]]) if "messages" in chunk else str(list(chunk))


@pytest.mark.parametrize("mode", ["values", "updates", "messages", "tasks", "checkpoints", "debug", "custom"])
def test_streams_are_those_of_the_graph(app, plain, mode):
    """In each mode, sync and async, chunks have the same types, and none contains the id of an internal thread."""

    async def collect(graph):
        return [chunk async for chunk in graph.astream(said("add table"), THREAD, stream_mode=mode)]

    for served, expected in (
        (list(app.stream(said("add chair"), THREAD, stream_mode=mode)),
         list(plain.stream(said("add chair"), THREAD, stream_mode=mode))),
        (asyncio.run(collect(app)), asyncio.run(collect(plain))),
    ):  # fmt: skip
        assert [type(one) for one in served] == [type(one) for one in expected]
        assert "agentgit-" not in str(served)
        if mode in ("values", "updates"):
            assert list(map(shown, served)) == list(map(shown, expected))


def test_state_and_history_are_those_of_the_graph(app, plain):
    """Steps, parents and values are the same, sync and async, and no internal thread is named."""

    def steps(history):
        history = list(history)
        assert "agentgit-" not in str(history)
        ids = [one.config["configurable"]["checkpoint_id"] for one in history]
        parents = [one.parent_config and one.parent_config["configurable"]["checkpoint_id"] for one in history]
        assert parents == [*ids[1:], None]
        return [(one.next, one.metadata["step"], one.metadata["source"], contents(one.values)) for one in history]

    async def read(graph):
        return [one async for one in graph.aget_state_history(THREAD)], await graph.aget_state(THREAD)

    for text in ("add chair", "look"):
        app.invoke(said(text), THREAD)
        plain.invoke(said(text), THREAD)
    without = [steps(graph.get_state_history(THREAD)) for graph in (app, plain)]
    assert without[0] == without[1]
    (history, state), (expected, _) = asyncio.run(read(app)), asyncio.run(read(plain))
    assert steps(history) == steps(expected)
    assert contents(state.values) == contents(plain.get_state(THREAD).values)
    assert [one.config for one in app.get_state_history(THREAD, limit=2)] == [one.config for one in history[:2]]


def test_a_thread_is_a_session(repo, app, world):
    """An agent or the first run of a thread creates its session; renaming the session does not move the thread."""
    repo.wrap(tool_node_graph(obedient(), world.tools()), "t", effects=world.effects()).invoke(said("add chair"))
    session = repo.session("t")
    history = session.get_checkpoint("HEAD").conversation_history
    assert contents(app.get_state(THREAD).values) == [message["content"] for message in history]
    session.rename("renamed")
    run(app, "add table")
    assert world.items == ["chair", "table"]
    assert [one.session_name for one in repo.sessions()] == ["renamed"]
    assert len(session.tool_track()) == 2
    other = repo.wrap(tool_node_graph(obedient(), World().tools()), "t", check_effects=False)
    other.invoke(said("hello"))
    assert len(app.get_state(THREAD).values["messages"]) == 8


def test_nodes_get_the_thread_and_the_store_of_the_host(repo):
    """A node sees the client's thread id, and a copy that a host makes has the host's store and our sessions."""
    seen = []

    def node(state, config, *, store):
        seen.append((config["configurable"]["thread_id"], store))
        return {"messages": [("ai", "hm")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    store = InMemoryStore()
    app = repo.graph(graph).copy({"checkpointer": InMemorySaver(), "store": store})
    app.invoke(said("hello"), THREAD)
    assert seen == [("t", store)]
    assert [one.session_name for one in repo.sessions()] == ["t"]


# -- a run at an older checkpoint is a rollback


def test_a_run_at_an_older_checkpoint_reverses_what_came_later(repo, app, world):
    """The run takes place on a new branch, the old branch stays, and the history lists both, each checkpoint once."""

    def ids(configs):
        return [config["configurable"]["checkpoint_id"] for config in configs]

    first, second = run(app, "add chair", "add table")
    before = ids(one.config for one in app.get_state_history(THREAD))
    answer = app.invoke(said("add sofa"), first)
    assert world.items == ["chair", "sofa"]
    assert contents(answer)[-4:] == ["add sofa", "hm", '{"item": "sofa", "number": 2}', "done"]
    assert [branch.name for branch in repo.session("t").branches()] == ["main", "main-2"]
    assert contents(app.get_state(second).values)[-4] == "add table"
    assert contents(app.get_state(THREAD).values) == contents(answer)
    history = list(app.get_state_history(THREAD))
    after = ids(one.config for one in history)
    assert after == sorted(set(after), reverse=True)
    assert {*before, *ids(one.parent_config for one in history[:-1])} <= set(after)
    assert repo.maintenance.fsck(3).is_sound


def test_the_head_of_another_branch_brings_its_effects_back(app, world):
    first, second = run(app, "add chair", "add table")
    app.invoke(said("add sofa"), first)
    assert app.invoke(said("look"), second)["__interrupt__"]
    app.invoke(Command(resume=True), THREAD)
    assert sorted(world.items) == ["chair", "table"]
    assert contents(app.get_state(THREAD).values)[-4] == "look"


def test_an_update_at_an_older_checkpoint_moves_the_branch_point(app, world):
    """The update itself leaves the world alone; the next run brings it to the new branch."""
    first, _ = run(app, "add chair", "add table")
    updated = app.update_state(first, {"messages": [HumanMessage("add sofa", id="edited")]}, as_node="__start__")
    assert world.items == ["chair", "table"]
    assert app.get_state(THREAD).config == updated
    app.invoke(None, updated)
    assert world.items == ["chair", "sofa"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_update_that_fails_leaves_the_thread_where_it_was(repo, app, world, is_async):
    first, second = run(app, "add chair", "add table")
    update = partial(app.aupdate_state if is_async else app.update_state, first, said("add sofa"), as_node="nobody")
    with pytest.raises(InvalidUpdateError):
        asyncio.run(update()) if is_async else update()
    assert app.get_state(THREAD).config == second
    run(app, "add lamp")
    assert world.items == ["chair", "table", "lamp"]
    assert repo.maintenance.fsck(3).is_sound


# -- consent


@pytest.mark.parametrize("answer", [True, "approve", {"decisions": [{"type": "approve"}]}])
def test_a_compensation_waits_for_consent_to_its_plan(app, world, answer):
    """The run interrupts with the plan before anything has happened, and continues with its input after consent."""
    first, _ = run(app, "add chair", "charge 5")
    question = app.invoke(said("add sofa"), first)["__interrupt__"][0]
    (step,) = question.value["steps"]
    assert (step["action"], step["tool"], step["args"], step["effect"]) == (
        "reverse", "charge", {"amount": 5}, "compensable",
    )  # fmt: skip
    assert (world.items, world.charges) == (["chair"], [5])
    assert app.get_state(THREAD).interrupts == (question,)
    app.invoke(Command(resume=answer), THREAD)
    assert (world.items, world.charges) == (["chair", "sofa"], [])
    assert app.get_state(THREAD).interrupts == ()


@pytest.mark.parametrize("answer", [False, "no", {"force": True}, [], 1])
def test_any_other_answer_cancels(app, world, answer):
    """Without consent nothing is done, and the thread is where it was; no answer can force."""
    first, second = run(app, "add chair", "charge 5")
    app.invoke(said("add sofa"), first)
    app.invoke(Command(resume=answer), THREAD)
    assert (world.items, world.charges) == (["chair"], [5])
    assert app.get_state(THREAD).config == second
    run(app, "add lamp")
    assert (world.items, world.charges) == (["chair", "lamp"], [5])


def test_confirm_never_does_it_and_confirm_raise_refuses(repo, world):
    graph = tool_node_graph(obedient(), world.tools())
    app = repo.graph(graph, effects=world.effects(), confirm="raise")
    first, second = run(app, "add chair", "charge 5")
    with pytest.raises(RollbackBlocked, match="charge"):
        app.invoke(said("add sofa"), first)
    assert (world.charges, app.get_state(THREAD).config) == ([5], second)
    repo.graph(graph, effects=world.effects(), confirm="never").invoke(said("add sofa"), first)
    assert (world.items, world.charges) == (["chair", "sofa"], [])
    with pytest.raises(InvalidInput, match="confirm"):
        repo.graph(graph, effects=world.effects(), confirm="ask")


def test_what_cannot_be_undone_blocks_the_run(app, world):
    first, second = run(app, "add chair", "send letter")
    forced = {"configurable": {**first["configurable"], "force": True, "tools": "keep"}}
    with pytest.raises(RollbackBlocked, match="send"):
        app.invoke(said("add sofa"), forced)
    assert (world.sent, world.items, app.get_state(THREAD).config) == (["letter"], ["chair"], second)


# -- interrupts and subgraphs


def test_an_interrupted_run_can_be_resumed_and_left(repo, world):
    def rule(messages):
        last = messages[-1]
        return calls(call("add_if_approved", item=last.content)) if last.type == "human" else calls(text="done")

    app = repo.graph(tool_node_graph(ScriptedModel(rule=rule), world.tools()), effects=world.effects())
    assert app.invoke(said("chair"), THREAD)["__interrupt__"]
    app.invoke(Command(resume="yes"), THREAD)
    first = app.get_state(THREAD).config
    app.invoke(said("table"), THREAD)
    app.invoke(said("sofa"), first)
    app.invoke(Command(resume="yes"), THREAD)
    assert world.items == ["chair", "sofa"]
    assert repo.maintenance.fsck(3).is_sound


# -- bad input


def test_unknown_threads_and_checkpoints_are_typed_errors(repo, app, world):
    """An unknown thread reads as empty; an unknown checkpoint, or one of another thread, is not found."""
    assert app.get_state({"configurable": {"thread_id": "nobody"}}).values == {}
    assert list(app.get_state_history({"configurable": {"thread_id": "nobody"}})) == []
    (point,) = run(app, "add chair")
    with pytest.raises(NotFound, match="no checkpoint"):
        app.invoke(said("hello"), {"configurable": {"thread_id": "t", "checkpoint_id": "1f1e0000"}})
    with pytest.raises(NotFound, match="no checkpoint"):
        app.invoke(said("hello"), {"configurable": {"thread_id": "nobody", "checkpoint_id": "1f1e0000"}})
    with pytest.raises(NotFound, match="no checkpoint"):
        app.invoke(said("add table"), {"configurable": {**point["configurable"], "thread_id": "other"}})
    with pytest.raises(InvalidInput, match="thread_id"):
        app.invoke(said("hello"))
    assert world.items == ["chair"]
    assert [session.session_name for session in repo.sessions()] == ["t"]


@pytest.mark.parametrize("checkpoint_id", ["\0", "\ud800", 5, b"id", ["id"], {"id": 1}, "x" * 1_000_000, "'; --"])
def test_a_checkpoint_id_that_cannot_be_one_is_refused(app, world, checkpoint_id):
    (point,) = run(app, "add chair")
    for configurable in (
        {"thread_id": "t", "checkpoint_id": checkpoint_id},
        {"thread_id": "t", "checkpoint_ns": "tools:1", "checkpoint_map": {"": checkpoint_id}},
    ):
        config = {"configurable": configurable}
        for refused in (partial(app.invoke, said("hello"), config), partial(app.update_state, config, said("hello"))):
            with pytest.raises((InvalidInput, NotFound)) as raised:
                refused()
            assert len(str(raised.value)) < 1000
    assert (world.items, app.get_state(THREAD).config) == (["chair"], point)


def test_a_run_finds_what_another_process_did_to_its_thread(repo, app, world):
    run(app, "add chair", "add table")
    with agentgit.open(backend.url(repo)) as other:
        other.session("t").fork("main#2", name="elsewhere")
        other.session("t").switch("elsewhere", sync="ignore")
        answer = app.invoke(said("hello"), THREAD)
        assert [text for text in contents(answer) if text.startswith("add")] == ["add chair"]
        assert app.get_state(THREAD).values == answer
        other.session("t").delete(force=True)
    answer = app.invoke(said("add sofa"), THREAD)
    assert [text for text in contents(answer) if text.startswith("add")] == ["add sofa"]
    point = app.get_state(THREAD).config
    app.invoke(said("add lamp"), THREAD)
    app.invoke(said("look"), point)  # the tools are declared for the new session, too
    assert world.items == ["chair", "table", "sofa"]
    assert repo.maintenance.fsck(3).is_sound


def test_a_run_declares_its_tools_again_after_another_graph_did(repo, app, world):
    point = run(app, "add chair")[0]
    elsewhere = World()
    repo.wrap(tool_node_graph(obedient(), elsewhere.tools()), "t", effects=elsewhere.effects())
    app.invoke(said("add table"), THREAD)
    app.invoke(said("look"), point)
    assert world.items == ["chair"]
    assert elsewhere.log == []


def test_a_user_does_not_find_the_threads_of_another(repo, app):
    run(app, "add chair")
    repo.users.add("ann")
    served = repo.as_user("ann").graph(tool_node_graph(obedient(), World().tools()), check_effects=False)
    assert served.get_state(THREAD).values == {}
    served.invoke(said("hello"), THREAD)
    assert len(served.get_state(THREAD).values["messages"]) == 2


def test_a_second_run_of_a_thread_is_a_conflict(app):
    run(app, "hello")
    stream = app.stream(said("look"), THREAD)
    next(stream)
    for refused in (partial(app.invoke, said("hello"), THREAD), lambda: asyncio.run(app.ainvoke(said("hi"), THREAD))):
        with pytest.raises(Conflict, match="Wait for its turn to end") as raised:
            refused()
        assert "agent." not in str(raised.value)
    list(stream)
    run(app, "hello")


def test_threads_run_side_by_side(app, world):
    with ThreadPoolExecutor(4) as pool:
        configs = [{"configurable": {"thread_id": f"t{n}"}} for n in range(8)]
        answers = list(pool.map(lambda config: app.invoke(said("hello"), config), configs))
    assert [len(answer["messages"]) for answer in answers] == 8 * [2]
    assert all(len(app.get_state(config).values["messages"]) == 2 for config in configs)


def test_a_run_during_a_rollback_is_refused(repo, world):
    began, may_end = threading.Event(), threading.Event()

    def remove(args, result):
        began.set()
        assert may_end.wait(30)
        world.remove(args, result)

    effects = world.effects(add=reversible(remove))
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=effects)
    first, _ = run(app, "add chair", "add table")
    with ThreadPoolExecutor(1) as pool:
        fork = pool.submit(app.invoke, said("add lamp"), first)
        assert began.wait(30)
        for attempt in (lambda: app.invoke(said("look"), THREAD), lambda: app.invoke(said("add sofa"), first)):
            with pytest.raises((Conflict, RollbackBlocked), match=r"rollback|reversing"):
                attempt()
        may_end.set()
        assert contents(fork.result(60))[-4] == "add lamp"
    assert world.items == ["chair", "lamp"]


@pytest.mark.parametrize(("effect", "answer"), [("add table", None), ("charge 5", True), ("charge 5", False)])
def test_a_fork_at_any_moment_of_another_one_leaves_one_true_world(repo, effect, answer):
    """Bad input: a run that another one overtakes between any two of its transactions is refused, and acts no more."""

    def is_overtaken_at(moment):
        world, thread = World(), {"configurable": {"thread_id": f"overtaken-{moment}"}}
        app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
        app.invoke(said("add chair"), thread)
        first = app.get_state(thread).config
        app.invoke(said(effect), thread)
        passed, refusals = itertools.count(), []

        def overtake():
            if next(passed) == moment:
                refusals.append(refusal_of(app.invoke, said("add sofa"), first))

        with faults.before(points.EVERY_WRITE, overtake, in_this_thread=True):
            refusals.append(refusal_of(app.invoke, said("add lamp"), first))
        assert None in refusals, moment
        assert bool(app.get_state(thread).interrupts) == (answer is not None), moment
        if answer is not None:
            app.invoke(Command(resume=answer), thread)
        assert (sorted(world.items), world.charges) == told_world(app.get_state(thread).values), moment
        return len(refusals) == 2

    assert sum(1 for _ in itertools.takewhile(is_overtaken_at, itertools.count())) > 3


def test_a_graph_whose_state_has_no_messages(repo, world):
    class Basket(TypedDict):
        items: list[str]

    add = world.tool("add")

    def buy(state):
        return {"items": [*state["items"], add.invoke({"item": f"item{len(state['items'])}"})["item"]]}

    builder = StateGraph(Basket).add_node(buy).add_edge(START, "buy")
    app = repo.graph(builder.compile(), effects=world.effects(), check_effects=False)
    app.invoke({"items": []}, THREAD)
    first = app.get_state(THREAD).config
    app.invoke({"items": ["item0"]}, THREAD)
    assert world.items == ["item0", "item1"]
    assert app.invoke({"items": ["item0", "a", "b"]}, first)["items"][-1] == "item3"
    assert world.items == ["item0", "item3"]
    assert len(list(app.get_state_history(THREAD))) == 9


def test_it_refuses_to_be_a_node(app):
    """Bad input: as a node of a plain graph its effects could not be undone, so it says so."""
    outer = StateGraph(MessagesState).add_node("inner", app).add_edge(START, "inner").compile()
    with pytest.raises(InvalidInput, match="node of another graph"):
        outer.invoke(said("hello"))


def test_a_copy_runs_and_a_deep_copy_runs_neither_with_nor_without_agentgit(repo):
    """What docs/serve.md says of `copy.deepcopy`; it can go when LangGraph's compiled graphs can be deep-copied."""
    plain = tool_node_graph(obedient(), [])
    app, thread, greeting = repo.graph(plain), {"configurable": {"thread_id": "t"}}, {"messages": [("user", "hello")]}
    assert app.copy().invoke(greeting, thread)["messages"][-1].type == "ai"
    with pytest.raises(InvalidUpdateError):
        copy.deepcopy(plain).invoke(greeting)
    with pytest.raises(TypeError):
        copy.deepcopy(app)
