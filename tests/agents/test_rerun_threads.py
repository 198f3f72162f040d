"""Reruns of graphs whose nodes call tools where LangChain does not know the turn: in threads, contexts and tasks."""

import asyncio
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context

import pytest
from chains import chain, replying
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.memory import InMemoryStore
from scripted import obedient, tool_node_graph

from agentgit import OutsideRerun, reversible

pytestmark = pytest.mark.filterwarnings("ignore::agentgit.errors.UnownedCall")


CHAIR = {"item": "chair"}
ASKED = {"messages": [AIMessage("", tool_calls=[{"name": "add", "args": CHAIR, "id": "1"}])]}


# -- what a node calls, each as a function without arguments


def subgraph(add):
    return replying(lambda _: add.invoke(CHAIR))


def tool_node(add):
    return StateGraph(MessagesState).add_node("tools", ToolNode([add])).add_edge(START, "tools").compile()


def workflow(add):
    return entrypoint()(lambda item: add.invoke({"item": item}))


def async_workflow(add):
    async def flow(item):
        await add.ainvoke({"item": item})

    return entrypoint()(flow)


async def read_all(stream):
    async for _ in stream:
        pass


SYNC = {
    "tool": lambda add: add.invoke(CHAIR),
    "batch": lambda add: add.batch([CHAIR]),
    "subgraph": lambda add: subgraph(add).invoke(ASKED),
    "stream": lambda add: list(subgraph(add).stream(ASKED)),
    "tool node": lambda add: tool_node(add).invoke(ASKED),
    "chain": lambda add: (RunnableLambda(lambda item: {"item": item}) | add).invoke("chair"),
    "parallel": lambda add: RunnableParallel(one=add).invoke(CHAIR),
    "entrypoint": lambda add: workflow(add).invoke("chair"),
}

ASYNC = {
    "tool": lambda add: add.ainvoke(CHAIR),
    "batch": lambda add: add.abatch([CHAIR]),
    "subgraph": lambda add: subgraph(add).ainvoke(ASKED),
    "stream": lambda add: read_all(subgraph(add).astream(ASKED)),
    "tool node": lambda add: tool_node(add).ainvoke(ASKED),
    "chain": lambda add: (RunnableLambda(lambda item: {"item": item}) | add).ainvoke("chair"),
    "parallel": lambda add: RunnableParallel(one=add).ainvoke(CHAIR),
    "entrypoint": lambda add: async_workflow(add).ainvoke("chair"),
}


# -- how it calls it


async def in_a_fresh_pool(act):
    with ThreadPoolExecutor() as pool:
        await asyncio.wrap_future(pool.submit(asyncio.run, act()))


async def in_a_thread(act):
    thread = threading.Thread(target=asyncio.run, args=(act(),))
    thread.start()
    await asyncio.to_thread(thread.join)


async def in_a_thread_of_a_thread(act):
    await in_a_thread(lambda: in_a_thread(act))


async def in_an_executor(act):
    await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(act()))


async def in_a_fresh_context(act):
    await Context().run(asyncio.ensure_future, act())


async def in_a_task_with_a_context(act):
    await asyncio.create_task(act(), context=Context())


WAYS = [
    in_a_fresh_pool,
    in_a_thread,
    in_a_thread_of_a_thread,
    in_an_executor,
    in_a_fresh_context,
    in_a_task_with_a_context,
]
FORMS = {("sync", name): form for name, form in SYNC.items()} | {("async", name): form for name, form in ASYNC.items()}


def calling(way, add, problems):
    """Return a coroutine function that makes each call in a way, and swallows what it raises."""

    async def make(form, name):
        try:
            made = form(add)
            if name[0] == "async":
                await made
        except Exception as error:  # noqa: BLE001  # what a tool raises there, the node does not see
            problems[name] = error

    async def act():
        for name, form in FORMS.items():
            await way(lambda form=form, name=name: make(form, name))

    return act


def node_of(act, is_async):
    async def node(state):
        await act()
        return {"messages": [AIMessage("done")]}

    return node if is_async else lambda state: asyncio.run(node(state))


def run(agent, is_async, method, *args, **options):
    return (
        asyncio.run(getattr(agent, f"a{method}")(*args, **options))
        if is_async
        else getattr(agent, method)(*args, **options)
    )


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_outside_the_turn_is_refused_and_stops_the_rerun(repo, world, way, is_async):
    """Whatever of LangChain is around the tool; the node swallows the errors, and the report still has the first."""
    problems = {}
    graph = chain(node_of(calling(way, world.tool("add"), problems), is_async))
    agent = repo.wrap(graph, "s", effects=world.effects(), check_effects=False)
    run(agent, is_async, "run", "go")
    assert (world.items, problems) == (["chair"] * len(FORMS), {})
    with pytest.raises(
        OutsideRerun, match=r"^add was called outside a turn while the rerun 'again' of session s ran"
    ) as stopped:
        run(agent, is_async, "rerun", name="again")
    assert {name: type(error) for name, error in problems.items()} == dict.fromkeys(FORMS, OutsideRerun)
    assert world.items == ["chair"] * len(FORMS)
    report = stopped.value.report
    assert (report.status, report.is_same) == ("diverged", False)
    assert report.reason == f"OutsideRerun: {stopped.value}"
    assert repo.rerun("s", graph, effects=world.effects()).matched == 0


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_thread_that_outlives_the_rerun_does_not_act(repo, world, is_async):
    problems, threads, ended = {}, [], threading.Event()

    async def now(act):
        await act()

    def later():
        assert ended.wait(30)
        asyncio.run(calling(now, add, problems)())

    async def leave():
        threads.append(threading.Thread(target=later, daemon=True))
        threads[-1].start()

    add = world.tool("add")
    agent = repo.wrap(chain(node_of(leave, is_async)), "s", effects=world.effects(), check_effects=False)
    run(agent, is_async, "run", "go")
    ended.set()
    threads[0].join()
    assert (world.items, problems) == (["chair"] * len(FORMS), {})
    ended.clear()
    again = run(agent, is_async, "rerun", name="again")
    ended.set()
    threads[1].join()
    assert {name: type(error) for name, error in problems.items()} == dict.fromkeys(FORMS, OutsideRerun)
    assert "in a thread that began during the rerun 'again' of session s, which has ended" in str(
        problems["sync", "tool"]
    )
    assert (len(world.items), again.tool_track()) == (len(FORMS), [])
    add.invoke(CHAIR)  # this thread is older than the rerun
    later_thread = threading.Thread(target=add.invoke, args=[CHAIR])
    later_thread.start()
    later_thread.join()
    assert len(world.items) == len(FORMS) + 2


def test_a_call_in_a_thread_with_the_context_is_answered_from_the_record(repo, world):
    """A thread that runs in the context of the node is part of the turn."""
    add = world.tool("add")
    with ThreadPoolExecutor(1) as pool:
        act = replying(lambda _: pool.submit(copy_context().run, add.invoke, CHAIR).result())
        agent = repo.wrap(act, "s", effects=world.effects(), check_effects=False)
        agent.run("go")
        assert agent.rerun().report.is_same
    assert world.items == ["chair"]


def waiting(ready, go):
    """Return a graph whose node waits in a rerun until the test lets it go on."""

    def wait(_):
        ready.set()
        assert go.wait(30)
        return "done"

    return replying(wait)


@pytest.fixture
def during(repo, world):
    """Call a function while a rerun of another session runs, and return the error that stopped the rerun, or None."""
    ready, go = threading.Event(), threading.Event()
    go.set()
    agent = repo.wrap(waiting(ready, go), "waiting", effects=world.effects(), check_effects=False)
    agent.run("go")

    def call(function):
        ready.clear()
        go.clear()
        with ThreadPoolExecutor(1) as pool:
            rerun = pool.submit(agent.rerun)
            assert ready.wait(30)
            try:
                function()
            finally:
                go.set()
            return rerun.exception()

    return call


def test_turns_of_other_sessions_go_on_during_a_rerun(repo, world, during):
    add = world.tool("add")
    other = repo.wrap(replying(lambda _: add.invoke(CHAIR)), "other", effects=world.effects(), check_effects=False)
    assert during(lambda: other.run("go")) is None
    assert world.items == ["chair"]


def test_other_code_is_refused_during_a_rerun_and_not_after_it(world, during):
    add = world.tool("add")
    refused = []

    def call():
        with pytest.raises(OutsideRerun, match="can call it when the rerun has ended") as error:
            add.invoke(CHAIR)
        refused.append(error.value)

    assert isinstance(during(call), OutsideRerun)
    assert (len(refused), world.items) == (1, [])
    add.invoke(CHAIR)
    assert world.items == ["chair"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_undo_function_that_calls_a_tool_acts_during_a_rerun(repo, world, during, is_async):
    """A rollback is neither a turn nor other code; async undo functions run in a thread that began during the rerun."""
    remove = world.tool("note")

    async def aundo(args, result):
        await remove.ainvoke({"text": args["item"]})

    undo = reversible(aundo if is_async else lambda args, result: remove.invoke({"text": args["item"]}))
    add = world.tool("add")
    agent = repo.wrap(replying(lambda _: add.invoke(CHAIR)), "s", effects={"add": undo}, check_effects=False)
    agent.run("go")
    assert during(agent.undo) is None
    assert world.notes == ["chair"]


def test_a_write_to_memory_outside_the_turn_is_refused_during_a_rerun(repo, during):
    from langgraph.config import get_store

    store, kept = InMemoryStore(), []
    builder = StateGraph(MessagesState).add_node("keep", lambda _: kept.append(get_store())).add_edge(START, "keep")
    agent = repo.wrap(builder.compile(store=store), "s")
    agent.run("go")

    def write():
        with pytest.raises(OutsideRerun, match=r"^memory\.put was called outside a turn"):
            kept[0].put(("a",), "b", {"c": 1})
        with pytest.raises(OutsideRerun, match=r"^memory\.delete was called outside a turn"):
            asyncio.run(kept[0].adelete(("a",), "b"))
        assert kept[0].get(("a",), "b") is None

    assert isinstance(during(write), OutsideRerun)
    kept[0].put(("a",), "b", {"c": 1})
    assert store.get(("a",), "b").value == {"c": 1}


def test_a_rerun_in_a_process_where_a_turn_runs_warns(repo, world):
    add = world.tool("add")
    agent = repo.wrap(replying(lambda _: add.invoke(CHAIR)), "s", effects=world.effects(), check_effects=False)
    agent.run("go")
    found = []

    def rerun(_):
        with ThreadPoolExecutor(1) as pool, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert pool.submit(agent.rerun).result().report.is_same
        found.extend(str(one.message) for one in caught)
        return "done"

    repo.wrap(replying(rerun), "t").run("go")
    assert [
        text
        for text in found
        if text.startswith("Turns or rollbacks run in this process. Until the rerun 'rerun' of session s")
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.rerun()


def test_a_judge_and_a_switch_call_tools_while_another_rerun_runs(repo, world, during):
    graph, look = tool_node_graph(obedient(), world.tools()), world.tool("look")
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("add chair")
    found = []

    def act():
        found.append(repo.rerun("s", graph, name="again", judge=lambda rerun: bool(look.invoke({}))))
        agent.switch("again", sync="world")

    assert during(act) is None
    assert (found[0].judge, found[0].rows[0].error) == (1.0, None)
    assert (world.items, len(world.happened("add")), len(world.happened("remove"))) == (["chair"], 2, 1)
