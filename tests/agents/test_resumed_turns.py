"""A resumed turn continues with the calls of its interrupted batch and repeats no done call."""

from __future__ import annotations

import asyncio
import operator
import warnings
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import backend
import processes
import pytest
from chats import chatting
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy
from scripted import GRAPHS, World, call, calls, node_graph, say, saying, tool_node_graph

import agentgit
from agentgit import Fenced, InvalidInput, effect, reversible
from agentgit.errors import TurnAbandoned

pytestmark = pytest.mark.filterwarnings("error::agentgit.errors.TurnAbandoned")


class Rounds(TypedDict):
    """A conversation that only appends messages, and a count of rounds."""

    messages: Annotated[list[AnyMessage], operator.add]
    round: int


def shaky(world: World, error: type[BaseException] = RuntimeError) -> BaseTool:
    """Make a tool that does its work, and raises after that the first time."""
    left = [error]

    def work(what: str) -> str:
        """Do the work."""
        world.log.append(("work", {"what": what}))
        if left:
            raise left.pop()
        return f"did {what}"

    return tool(work)


AGAIN = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=RuntimeError)


def batch() -> AIMessage:
    return calls(call("add", item="x"), call("work", what="y"))


def statuses(agent) -> list[tuple[str, str]]:
    return [(c.tool_name, c.status) for c in agent.tool_track()]


def broken(repo, world, *replies, error=RuntimeError, tools=None, effects=None):
    """Wrap a graph that makes these replies, and let its first turn fail in `work`."""
    graph = tool_node_graph(saying(*replies, "ok"), [*(world.tools() if tools is None else tools), shaky(world, error)])
    agent = repo.wrap(graph, "s", effects=world.effects() if effects is None else effects)
    with pytest.raises(error):
        agent.invoke(say())
    return agent


def test_a_resumed_batch_does_not_repeat_a_done_call(repo, world):
    graph = broken(repo, world, batch()).graph
    with agentgit.open(backend.url(repo)) as later:
        agent = later.wrap(graph, "s", effects=world.effects())
        agent.invoke(None)
        assert world.items == ["x"]
        assert [m.content for m in agent.messages()[2:4]] == ['{"item": "x", "number": 1}', "did y"]
        assert statuses(agent) == [("add", "done"), ("work", "failed"), ("work", "done")]
        failed, done = agent.tool_track()[1:]
        assert failed.idempotency_key == done.idempotency_key


def test_a_retried_node_does_not_repeat_a_done_call(repo, world):
    graph = tool_node_graph(saying(batch(), "ok"), [*world.tools(), shaky(world)], retry=AGAIN)
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.invoke(say())
    assert world.items == ["x"]
    assert agent.messages()[2].content == '{"item": "x", "number": 1}'
    assert statuses(agent) == [("add", "done"), ("work", "failed"), ("work", "done")]


def test_a_running_call_is_awaited_when_its_sibling_fails(repo, world):
    failed, left = asyncio.Event(), [RuntimeError("once")]

    @tool
    async def add(item: str) -> str:
        """Add an item, and return after the other call has failed."""
        world.items.append(item)
        await failed.wait()
        await asyncio.sleep(0.05)
        return f"added {item}"

    @tool
    async def work(what: str) -> str:
        """Fail once, then succeed."""
        while not world.items:
            await asyncio.sleep(0)
        if left:
            failed.set()
            raise left.pop()
        return f"did {what}"

    graph = tool_node_graph(saying(batch(), "ok"), [add, work], retry=AGAIN)
    agent = repo.wrap(graph, "s", effects={"add": "irreversible"})
    asyncio.run(agent.ainvoke(say()))
    assert world.items == ["x"]
    assert [m.content for m in agent.messages()[2:4]] == ["added x", "did y"]
    assert statuses(agent) == [("add", "done"), ("work", "failed"), ("work", "done")]


@pytest.mark.parametrize(("declared", "times"), [("irreversible", 1), ("idempotent", 2)])
def test_a_cancelled_call_is_repeated_only_if_idempotent(repo, world, declared, times):
    @tool
    async def add(item: str) -> str:
        """Add an item; hang the first time."""
        world.items.append(item)
        await (asyncio.Event().wait() if len(world.items) == 1 else asyncio.sleep(0))
        return f"added {item}"

    async def impatient(request: Any, execute: Any) -> Any:
        running = asyncio.ensure_future(execute(request))
        while not world.items:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        return await execute(request)

    model = saying(call("add", item="x"), "ok")
    graph = tool_node_graph(model, [add], retry=AGAIN, awrap_tool_call=impatient)
    agent = repo.wrap(graph, "s", effects={"add": declared})
    if declared == "irreversible":
        with pytest.raises(Fenced, match="interrupted"):
            asyncio.run(agent.ainvoke(say()))
    else:
        asyncio.run(agent.ainvoke(say()))
    assert len(world.items) == times
    assert statuses(agent)[0] == ("add", "unknown")


def test_a_reused_tool_call_id_in_a_later_message_is_a_new_call(repo, world):
    one, two = calls(call("add", "c0", item="x")), calls(call("add", "c0", item="x"), call("work", "c1", what="y"))
    agent = broken(repo, world, one, two)
    agent.invoke(None)
    assert world.items == ["x", "x"]
    keys = [c.idempotency_key for c in agent.tool_track() if c.tool_name == "add"]
    assert len(set(keys)) == 2


@pytest.mark.parametrize("message_id", ["same", None])
def test_a_repeated_message_runs_its_tools_in_each_round(repo, world, message_id):
    """A node may return the same message with the same ids in each round, and each round runs its tools."""
    rounds = [calls(call("look", "c0")), calls(call("look", "c0"), call("add_if_approved", "c1", item="x")),
              calls(call("look", "c0"))]  # fmt: skip
    rounds = [message.model_copy(update={"id": message_id}) for message in rounds]

    def plan(state: Rounds) -> dict[str, Any]:
        number = state.get("round") or 0
        return {"messages": [rounds[number] if number < len(rounds) else AIMessage("ok")], "round": number + 1}

    graph = StateGraph(Rounds)
    graph.add_node("plan", plan)
    graph.add_node("tools", ToolNode(world.tools()))
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", tools_condition)
    graph.add_edge("tools", "plan")
    agent = repo.wrap(graph.compile(), "s", effects=world.effects())
    agent.invoke(say())
    agent.invoke(Command(resume="yes"))
    assert len(world.happened("look")) == 3
    assert world.items == ["x"]


def edited_batch(repo, world, **args):
    """Edit the arguments of calls of a broken batch, by their names, and resume."""
    agent = broken(repo, world, batch())
    asked = agent.messages()[-1]
    edited = [{**call, "args": args.get(call["name"], call["args"])} for call in asked.tool_calls]
    agent.update_state(None, {"messages": [AIMessage("", id=asked.id, tool_calls=edited)]}, as_node="model")
    agent.invoke(None)


def test_an_edited_message_runs_only_the_edited_call(repo, world):
    edited_batch(repo, world, work={"what": "z"})
    assert world.items == ["x"]
    assert world.happened("work") == [{"what": "y"}, {"what": "z"}]


def test_a_done_call_id_is_refused_with_other_arguments(repo, world):
    with pytest.raises(Fenced, match="with other arguments"):
        edited_batch(repo, world, add={"item": "z"})
    assert world.items == ["x"]


@pytest.mark.parametrize("where", ["itself", "fork"])
def test_a_done_call_beside_a_question_is_not_repeated(repo, world, where):
    asked = calls(call("add", item="x"), call("add_if_approved", item="y"))
    agent = repo.wrap(tool_node_graph(saying(asked, "ok", "ok"), world.tools()), "s", effects=world.effects())
    agent.invoke(say())
    other = agent.fork() if where == "fork" else agent
    other.invoke(Command(resume="yes"))
    assert world.items == ["x", "y"]
    assert statuses(other) == [("add", "done"), ("add_if_approved", "done")]


DECLARED = {
    "nobody knows": (effect("irreversible", verify=lambda call: None), "happened", 1, "told"),
    "it happened": (effect("irreversible", verify=lambda call: True), None, 1, "null"),
    "idempotent": (effect("idempotent"), None, 2, "did y"),
    "only reads": (effect("read_only"), None, 2, "did y"),
    "its result is seen": (effect("irreversible", verify=lambda call: "seen"), None, 1, "seen"),
    "it did not happen": (effect("irreversible", verify=lambda call: False), None, 2, "did y"),
    "undeclared": (None, None, 2, "did y"),
    "verify fails": (effect("irreversible", verify=lambda call: 1 / 0), "did_not_happen", 2, "did y"),
    "reversible": (reversible(lambda args, result: None), "happened", 1, "told"),
}
"""The effect of a call, how a person resolves it, how often it runs, and what the model receives."""


@pytest.mark.parametrize("case", DECLARED)
def test_an_interrupted_call_is_never_repeated_blindly(repo, world, case):
    """Only `verify` or a harmless effect allows a repetition, with the same key; else a person must decide."""
    declared, outcome, runs, answer = DECLARED[case]
    effects = {"work": declared} if declared else {}
    agent = broken(repo, world, call("work", what="y"), error=KeyboardInterrupt, tools=[], effects=effects)
    if outcome is not None:
        with pytest.raises(Fenced, match=r"repo\.resolve") as refused:
            agent.invoke(None)
        with pytest.raises(InvalidInput, match="only a call that happened"):
            repo.resolve(refused.value.invocation, "did_not_happen", result="told")
        result = {"result": "told"} if outcome == "happened" else {}
        assert repo.resolve(refused.value.invocation, outcome, **result).result == result.get("result")
    agent.invoke(None)
    assert agent.messages()[2].content == answer
    assert len(world.happened("work")) == runs
    assert len({c.idempotency_key for c in agent.tool_track()}) == 1


def own_code(world: World) -> Any:
    """Build a graph whose node calls the tools directly."""
    named = {made.name: made for made in [*world.tools(), shaky(world)]}
    model = saying(calls(call("note", text="n"), call("add", item="x"), call("work", what="y")), "ok")

    def act(state: MessagesState) -> dict[str, Any]:
        return {"messages": [named[wanted["name"]].invoke(wanted) for wanted in state["messages"][-1].tool_calls]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("act", act)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition, {"tools": "act", "__end__": "__end__"})
    graph.add_edge("act", "model")
    return graph.compile()


@pytest.mark.parametrize("declared", [False, True])
def test_a_node_that_calls_tools_directly_repeats_no_done_call(repo, world, declared):
    """A done call is not repeated, declared or not, if the AI message in the state asked for it."""
    agent = repo.wrap(own_code(world), "s", effects=world.effects() if declared else {}, check_effects=False)
    with pytest.raises(RuntimeError):
        agent.invoke(say())
    agent.invoke(None)
    assert (len(world.notes), len(world.items)) == (1, 1)
    assert [m.content for m in agent.messages()[2:5]] == ["noted", '{"item": "x", "number": 1}', "did y"]


def test_a_resumed_turn_applies_the_command_of_a_done_call(repo, world):
    @tool
    def hand_over(to: str) -> Command:
        """Hand over."""
        world.log.append(("hand_over", {"to": to}))
        return Command(update={"messages": [ToolMessage("handed", tool_call_id="c1")]})

    asked = calls(call("hand_over", "c1", to="Bob"), call("work", "c2", what="y"))
    agent = broken(repo, world, asked, tools=[hand_over], effects={"hand_over": "irreversible"})
    agent.invoke(None)
    assert sorted(str(m.content) for m in agent.messages()[2:4]) == ["did y", "handed"]
    assert len(world.happened("hand_over")) == 1


# -- kill -9

CHILD = """
import os, signal, time
import agentgit
from scripted import GRAPHS, call, calls, saying
from test_resumed_turns import writing_tools

def die():
    "Die when the other call is recorded, and what LangGraph goes on from is saved."
    other = agentgit.open({database!r})
    while "done" not in [c.status for c in other.session("s").tool_track()] or agent.get_state().created_at is None:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

model = saying(calls(call("add", "c1", item="x"), call("work", "c2", what="y")))
agent = agentgit.open({database!r}).wrap(GRAPHS[{kind!r}](model, writing_tools("log", die)), "s",
    effects={{"add": "irreversible", "work": "irreversible"}}, check_effects=False)
agent.invoke({{"messages": [("user", "go")]}}, durability="sync")
"""


def writing_tools(path: Any, work_on: Any) -> list[BaseTool]:
    """Make a tool that writes a line, and one that goes on with something before it does so.

    They are the same tools in each process, because they hold what differs in an object.
    """
    world = SimpleNamespace(path=path, work_on=work_on)

    @tool
    def add(item: str) -> dict[str, str]:
        """Write a line."""
        with open(world.path, "a") as log:
            log.write(f"{item}\n")
        return {"item": item}

    @tool
    def work(what: str) -> str:
        """Write a line later."""
        world.work_on()
        with open(world.path, "a") as log:
            log.write(f"{what}\n")
        return f"did {what}"

    return [add, work]


@pytest.mark.parametrize("kind", GRAPHS)
def test_after_kill_9_each_call_of_a_batch_happened_at_most_once(repo, database, tmp_path, kind):
    """The done call is not repeated, the interrupted one waits for a person, and then the turn continues."""
    url = database.url.render_as_string(hide_password=False)
    code = CHILD.format(database=url, kind=kind)
    assert processes.run(code, cwd=tmp_path).returncode == -9
    effects, tools = dict.fromkeys(("add", "work"), "irreversible"), writing_tools(tmp_path / "log", lambda: None)
    agent = repo.wrap(GRAPHS[kind](saying("ok"), tools), "s", effects=effects, check_effects=False)
    with pytest.raises(Fenced, match="is unknown whether"):
        agent.invoke(None)
    lost = next(c for c in agent.tool_track() if c.status == "unknown")
    repo.resolve(lost, "happened", result="did y")
    assert agent.invoke(None)["messages"][-1].content == "ok"
    assert (tmp_path / "log").read_text() == "x\n"


DEAD_TURN = """
import os, signal
import agentgit
from langchain_core.tools import tool
from test_resumed_turns import DYING_GRAPHS

@tool
def work(what: str) -> str:
    "Die at the second call."
    if what == "y":
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"

agent = agentgit.open({database!r}).wrap(DYING_GRAPHS[{kind!r}](work), "s")
agent.invoke({{"messages": [("user", "go")]}}, durability="sync")
"""


def calling_twice(work: BaseTool) -> Any:
    return node_graph(lambda state: {"messages": [("ai", work.invoke({"what": "x"}) + work.invoke({"what": "y"}))]})


DYING_GRAPHS = {
    "node": calling_twice,
    "tools": lambda work: tool_node_graph(
        saying(call("work", "c1", what="x"), call("work", "c2", what="y"), "hi", "hi"), [work]
    ),
}


@pytest.fixture(params=["node", "tools"])
def dead_turn(request, database, tmp_path):
    """Kill a process during the second call of a turn, and return the graph, now of a tool that works."""
    code = DEAD_TURN.format(database=database.url.render_as_string(hide_password=False), kind=request.param)
    assert processes.run(code, cwd=tmp_path).returncode == -9

    @tool
    def work(what: str) -> str:
        """Work."""
        return "done"

    return DYING_GRAPHS[request.param](work)


def test_a_new_message_after_a_kill_warns_once_and_names_the_calls_without_an_answer(repo, dead_turn):
    """The warning names the session, the branch, the calls and the next step, and points at the caller."""
    agent = repo.wrap(dead_turn, "s")
    with pytest.warns(TurnAbandoned, match="session s, branch main") as seen:
        agent.invoke(say())
    # A node's calls are answered together when it ends; the first call that a model made was answered.
    named = "work(what='x'), work(what='y')" if "act" in dead_turn.nodes else "work(what='y')"
    assert f"answered: {named}. " in str(seen[0].message)
    assert "agent.invoke(None)" in str(seen[0].message)
    assert seen[0].filename == __file__
    agent.invoke(say())  # a warning is an error here


async def test_the_warning_after_a_kill_can_refuse_the_message(repo, dead_turn):
    """A filter that makes the warning an error refuses the message, sync and async, and the turn can go on."""
    agent = repo.wrap(dead_turn, "s")
    before = [point.id for point in agent.session.log(branch=agent.branch_id)]
    for _ in range(2):
        with pytest.raises(TurnAbandoned):
            agent.invoke(say())
        with pytest.raises(TurnAbandoned):
            await agent.ainvoke(say())
    assert [point.id for point in agent.session.log(branch=agent.branch_id)] == before
    agent.invoke(None)
    agent.invoke(say())


def test_a_served_graph_does_not_warn_of_a_killed_turn(repo, dead_turn):
    app = repo.graph(dead_turn)
    assert app.invoke(say(), {"configurable": {"thread_id": "s"}})["messages"][-1].type == "ai"


def test_the_chat_warns_of_a_killed_turn(repo, dead_turn, capsys):
    agent = repo.wrap(dead_turn, "s")
    with chatting(repo, agent) as chat, warnings.catch_warnings():
        warnings.simplefilter("default", TurnAbandoned)
        chat.handle_line("hello")
    warning, *others = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: The last turn of session s, branch main, died before")
    assert warning.endswith("unless that turn is continued first. /continue continues the turn.")
    assert others == []
