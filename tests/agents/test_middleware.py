"""Middleware runs calls as in plain LangGraph, and tools at any depth keep their return values."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, PIIDetectionError, PIIMiddleware, wrap_tool_call
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from scripted import agent_graph, call, calls, node_graph, say, scripted, tool_node_graph

from agentgit import Conflict, Fenced, Workspace, effect, reversible
from agentgit.demo import ScriptedModel


def turn(agent: Any, is_async: bool, given: Any = None) -> list[str]:
    given = say() if given is None else given
    state = asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


class Around(AgentMiddleware):
    """Middleware that repeats a call, sync or async, until `again` returns None.

    Args:
        again: A function of the request and its result or error, which returns the next request or None.
    """

    def __init__(self, again: Any) -> None:
        self.again = again

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        while True:
            try:
                result: Any = handler(request)
            except (ValueError, ConnectionError) as error:
                result = error
            following = self.again(request, result)
            if following is None:
                return result
            request = following

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        while True:
            try:
                result: Any = await handler(request)
            except (ValueError, ConnectionError) as error:
                result = error
            following = self.again(request, result)
            if following is None:
                return result
            request = following


def until_ready(request: Any, result: Any) -> Any:
    return request if getattr(result, "content", "") == "pending" else None


def corrected(request: Any, result: Any) -> Any:
    """Correct the arguments of the request after an error."""
    if not isinstance(result, Exception) and result.status != "error":
        return None
    return request.override(tool_call={**request.tool_call, "args": {"amount": 5}})


def once_more(request: Any, result: Any) -> Any:
    return request if isinstance(result, Exception) else None


DECLARED = ["undeclared", "read_only", "idempotent", "irreversible", "reversible"]


def declaring(kind: str, name: str) -> dict[str, Any]:
    """Return the declaration of a tool with this effect."""
    if kind == "undeclared":
        return {}
    return {name: reversible(lambda args, result: None) if kind == "reversible" else kind}


@pytest.mark.each_value_once
@pytest.mark.parametrize("fence", ["replay", "off"])
@pytest.mark.parametrize("kind", DECLARED)
@pytest.mark.parametrize("is_async", [False, True])
def test_polling_middleware_runs_every_call(repo, kind, is_async, fence):
    said = ["ready", "pending", "pending"]

    @tool
    def job(name: str) -> str:
        """Report the status of a job."""
        return said.pop()

    graph = agent_graph(scripted(call("job", name="x"), "done"), [job], middleware=[Around(until_ready)])
    agent = repo.wrap(graph, "s", effects=declaring(kind, "job"), fence=fence)
    assert turn(agent, is_async) == ["ready"]
    assert [one.result for one in agent.tool_track()] == ["pending", "pending", "ready"]
    assert len({one.tool_call_id for one in agent.tool_track()}) == 1
    assert len({one.idempotency_key for one in agent.tool_track()}) == 3


@pytest.mark.each_value_once
@pytest.mark.parametrize("fence", ["replay", "off"])
@pytest.mark.parametrize("kind", DECLARED)
@pytest.mark.parametrize("is_async", [False, True])
def test_middleware_may_correct_the_arguments(repo, kind, is_async, fence):
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    graph = agent_graph(scripted(call("pay", amount="much"), "done"), [pay], middleware=[Around(corrected)])
    declared = declaring(kind, "pay")
    if kind == "irreversible":  # an error does not prove that nothing happened, but `verify` does
        declared = {"pay": effect("irreversible", verify=lambda made: False)}
    agent = repo.wrap(graph, "s", effects=declared, fence=fence)
    assert turn(agent, is_async) == ["paid 5"]
    assert paid == [5]
    assert [one.args for one in agent.tool_track()] == [{"amount": "much"}, {"amount": 5}]


@pytest.mark.parametrize("is_inner", [False, True])
@pytest.mark.parametrize("again", [once_more, corrected])
@pytest.mark.parametrize("is_async", [False, True])
def test_middleware_does_not_repeat_a_call_of_unknown_outcome(repo, is_async, again, is_inner):
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay, and lose the answer."""
        paid.append(amount)
        raise ConnectionError("no answer")

    inner = agent_graph(scripted(call("pay", amount=6), "done"), [pay], middleware=[Around(again)])
    graph = node_graph(lambda state: inner.invoke(state)) if is_inner else inner
    agent = repo.wrap(graph, "s", effects={"pay": effect("irreversible", verify=lambda made: None)})
    with pytest.raises(Fenced, match=r"repo\.resolve"):
        turn(agent, is_async)
    assert paid == [6]


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_repeated_by_middleware_are_answered_on_resume(repo, is_async):
    made: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        made.append(amount)
        if len(made) == 3:
            raise KeyboardInterrupt
        return f"{len(made)}"

    @wrap_tool_call
    def thrice(request: Any, handler: Any) -> Any:
        return [handler(request), handler(request), handler(request)][-1]

    graph = agent_graph(scripted(call("pay", amount=5), "done"), [pay], middleware=[thrice])
    agent = repo.wrap(graph, "s", effects={"pay": effect("irreversible", verify=lambda call: False)})
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(say())
    assert agent.invoke(None)["messages"][-2].content == "4"
    assert len(made) == 4
    assert [one.status for one in agent.tool_track()] == ["done", "done", "failed", "done"]


def test_concurrent_calls_by_middleware_all_run(repo):
    made: list[str] = []

    @tool
    async def ask(name: str) -> str:
        """Ask."""
        made.append(name)
        await asyncio.sleep(0)
        return f"{name} {len(made)}"

    class Twice(AgentMiddleware):
        """Middleware that calls its handler twice concurrently."""

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return (await asyncio.gather(handler(request), handler(request)))[0]

    graph = agent_graph(scripted(call("ask", name="x"), "done"), [ask], middleware=[Twice()])
    agent = repo.wrap(graph, "s", effects={"ask": "irreversible"})
    turn(agent, is_async=True)
    assert made == ["x", "x"]
    assert len(agent.tool_track()) == 2


# -- return values

VALUES = {"number": 3, "nothing": None, "text": "3", "flag": True, "list": [1, None], "dict": {"id": 7}, "null": "null"}


def returning(value: Any) -> BaseTool:
    """Make a tool that returns a value."""

    @tool
    def order(item: str) -> Any:
        """Order."""
        return value

    return order


def in_a_node(order: BaseTool) -> Any:
    """Compile a graph whose node calls the tool."""
    return node_graph(lambda state: {"messages": [("ai", str(order.invoke(call("order", "c0", item="x"))))]})


def in_an_agent_in_a_tool(order: BaseTool) -> Any:
    """Compile a graph with a tool whose inner agent calls the tool, directly and through another tool."""

    @tool
    def outer(item: str) -> str:
        """Order through an inner agent."""

        @tool
        def middle(item: str) -> str:
            """Order it."""
            return str(order.invoke({"item": item}))

        inner = agent_graph(scripted(calls(call("order", item="x"), call("middle", item="x")), "ok"), [order, middle])
        return str(inner.invoke(say())["messages"][-1].content)

    return tool_node_graph(scripted(call("outer", item="x"), "done"), [outer])


def by_middleware(order: BaseTool) -> Any:
    """Compile a graph whose middleware replaces a stand-in with the tool."""

    @tool("order")
    def stand_in(item: str) -> str:
        """Order."""
        raise AssertionError("this is not called")

    @wrap_tool_call
    def supplying(request: Any, handler: Any) -> Any:
        return handler(request.override(tool=order))

    return agent_graph(scripted(call("order", item="x"), "done"), [stand_in], middleware=[supplying])


@pytest.mark.each_value_once
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("shape", [in_a_node, in_an_agent_in_a_tool, by_middleware])
def test_undo_receives_the_tools_return_value_at_every_depth(repo, shape, value):
    """Undo receives `3`, not `'3'`, and None, not `'null'`, also in nested agents and from middleware."""
    got: list[Any] = []
    undo = reversible(lambda args, result: got.append(result))
    order = returning(value)
    agent = repo.wrap(shape(order), "s", effects={order.func: undo})
    start = agent.checkpoint("start")
    agent.invoke(say())
    agent.rollback(start)
    assert got
    assert all(one == value and type(one) is type(value) for one in got)


def test_a_node_and_an_undo_receive_content_and_artifact(repo):
    made, got = [], []

    @tool(response_format="content_and_artifact")
    def order(item: str) -> tuple[str, dict[str, int]]:
        """Order."""
        made.append(item)
        return "ordered", {"id": 7}

    left = [ValueError("once")]

    def act(state: MessagesState) -> dict[str, Any]:
        message = order.invoke(call("order", "c0", item="x"))
        if left:
            raise left.pop()
        return {"messages": [("ai", f"{message.content} {message.artifact}")]}

    declared = {"order": reversible(lambda args, result: got.append(result))}
    agent = repo.wrap(node_graph(act), "s", effects=declared, check_effects=False)
    start = agent.checkpoint("start")
    with pytest.raises(ValueError, match="once"):
        agent.invoke(say())
    assert agent.invoke(None)["messages"][-1].content == "ordered {'id': 7}"
    assert made == ["x"]
    agent.rollback(start)
    assert got == [["ordered", {"id": 7}]]


# -- issues reported to LangGraph


@pytest.mark.parametrize("is_called", [False, True])
def test_calls_before_a_subgraph_interrupt_are_not_repeated(repo, world, is_called):
    """LangGraph #6792, #7417: code before a subgraph's question runs again, but its effects do not."""
    add = world.tool("add")

    def second(state: MessagesState) -> dict[str, Any]:
        item = add.invoke({"item": "b"})["item"]
        return {"messages": [("ai", f"{item} {interrupt('ok?')} {add.invoke({'item': 'c'})['item']}")]}

    inner = StateGraph(MessagesState)
    inner.add_node("first", lambda state: {"messages": [("ai", str(add.invoke({"item": "a"})))]})
    inner.add_node("second", second)
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    sub = inner.compile()

    def act(state: MessagesState) -> dict[str, Any]:
        add.invoke({"item": "0"})
        return {"messages": sub.invoke({"messages": []})["messages"][-1:]}

    graph = node_graph(act if is_called else sub)
    agent = repo.wrap(graph, "s", effects={"add": "irreversible"}, check_effects=False)
    agent.invoke(say())
    assert agent.invoke(Command(resume="yes"))["messages"][-1].content == "b yes c"
    assert world.items == [*(["0"] if is_called else []), "a", "b", "c"]


def test_an_answer_resumes_at_the_checkpoint_of_its_question(repo, world):
    """LangGraph #7361: an answer with the question's `checkpoint_id` resumes there, and no call is repeated."""
    add = world.tool("add")

    def act(state: MessagesState) -> dict[str, Any]:
        add.invoke({"item": "a"})
        return {"messages": [("ai", interrupt("ok?"))]}

    agent = repo.wrap(node_graph(act), "s", effects={"add": "irreversible"}, check_effects=False)
    agent.invoke(say())
    at = agent.get_state().config["configurable"]["checkpoint_id"]
    state = agent.invoke(Command(resume="yes"), {"configurable": {"checkpoint_id": at}})
    assert state["messages"][-1].content == "yes"
    assert world.items == ["a"]


def test_a_second_answer_to_a_question_is_refused_and_has_no_effect(repo, world):
    """LangGraph #6663."""
    graph = tool_node_graph(scripted(call("add_if_approved", item="x"), "ok"), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.invoke(say())
    agent.invoke(Command(resume="yes"))
    with pytest.raises(Conflict, match="no question waits for this answer"):
        agent.invoke(Command(resume="yes"))
    assert world.items == ["x"]
    assert [one.status for one in agent.tool_track()] == ["done"]


@pytest.mark.parametrize(("is_async", "retry"), [(False, "middleware"), (True, "middleware"), (False, "next turn")])
def test_parallel_questions_receive_their_answers_over_retries_and_act_once(repo, is_async, retry):
    """LangGraph #8464, #6533: three parallel tools ask, one fails and is retried, and each acts once on its answer."""
    done: list[str] = []
    left = [ValueError("once")]

    @tool
    def ask(what: str) -> str:
        """Ask, and act."""
        said = str(interrupt(what))
        done.append(f"{what} {said}")
        return said

    @tool
    def fail(what: str) -> str:
        """Ask, fail once after the answer, and act."""
        said = str(interrupt(what))
        if left:
            raise left.pop()
        done.append(f"{what} {said}")
        return said

    asked = calls(call("ask", "a", what="a"), call("ask", "b", what="b"), call("fail", "c", what="c"))
    middleware = [Around(once_more)] if retry == "middleware" else []
    graph = agent_graph(scripted(asked, "done"), [ask, fail], middleware=middleware)
    agent = repo.wrap(graph, "s", effects={"ask": "irreversible", "fail": "idempotent"})
    state = agent.invoke(say())
    answers = Command(resume={one.id: one.value.upper() for one in state["__interrupt__"]})
    if retry == "next turn":
        with pytest.raises(ValueError, match="once"):
            agent.invoke(answers)
        agent.invoke(None)
    else:
        turn(agent, is_async, answers)
    assert left == []
    assert sorted(done) == ["a A", "b B", "c C"]
    assert [message.content for message in agent.messages() if message.type == "tool"] == ["A", "B", "C"]


def redacting(**options):
    """Build an agent whose middleware redacts e-mail addresses, and whose model answers with one."""
    rules = [PIIMiddleware("email", **{"strategy": "redact", "apply_to_output": True, **options})]
    return create_agent(
        ScriptedModel(rule=lambda messages: AIMessage("Sent to ada@example.org.")), [], middleware=rules
    )


def descriptions(agent):
    return [one.metadata["description"] for one in agent.session.checkpoints()]


@pytest.mark.parametrize("nested", [False, True])
def test_titles_do_not_show_what_a_middleware_redacts(repo, tmp_path, nested):
    graph = redacting()
    if nested:
        graph = StateGraph(MessagesState).add_node("agent", graph).add_edge(START, "agent").compile()
    agent = repo.wrap(graph, "s", workspace=tmp_path / "work")
    agent.run("write to eve@example.com")
    shown = f"{agent.tree()} {list(agent.session.log())} {agent.session.checkpoints()} {agent.history()}"
    assert "example" not in shown
    assert descriptions(agent) == ["write to [REDACTED_EMAIL]", "Sent to [REDACTED_EMAIL]."]
    snapshots = Workspace(tmp_path / "work").list()
    assert snapshots
    assert "example" not in str(snapshots)


def test_a_turn_that_a_middleware_stops_has_no_title(repo):
    """Neither has a later turn whose message has the id of the blocked one, and whose answer is blocked."""
    agent = repo.wrap(redacting(strategy="block"), "s")
    for text in ("write to eve@example.com", "hello"):
        with pytest.raises(PIIDetectionError):
            agent.invoke({"messages": [HumanMessage(text, id="m1")]})
    assert descriptions(agent) == [None, None]
    assert "example" not in str(agent.tree())


def test_a_title_is_redacted_before_a_person_answers(repo, world):
    model = scripted(call("add_if_approved", item="letter"), "done")
    graph = create_agent(model, [world.tool("add_if_approved")], middleware=[PIIMiddleware("email")])
    agent = repo.wrap(graph, "s", effects={"add_if_approved": "irreversible"})
    agent.invoke(say("write to eve@example.com"))
    assert descriptions(agent) == ["write to [REDACTED_EMAIL]"]
    agent.invoke(Command(resume="yes"))
    assert descriptions(agent) == ["write to [REDACTED_EMAIL]", "done"]
