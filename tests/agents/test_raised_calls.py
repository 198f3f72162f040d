"""An error does not prove that nothing happened, so a call that raised is unknown until it is settled.

The ledger of a till shows which charges were made.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from html import unescape
from typing import Any

import command_line
import pytest
from chats import chatting
from fastapi.testclient import TestClient
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import RetryPolicy
from pydantic import BaseModel
from scripted import GRAPHS, call, calls, scripted, tool_node_graph

import agentgit
from agentgit import (
    Fenced,
    InvalidInput,
    NotAllowed,
    NotDone,
    RollbackBlocked,
    RollbackIncomplete,
    compensable,
    effect,
    reversible,
)
from agentgit.web import app as site

LOST = ConnectionError("no answer")
"""The error of a tool that lost the answer to its request."""

BLOCKING = ("irreversible", "compensable")


class Declined(ToolException):
    """The error of a bank that declines a payment."""


class Till:
    """A till that charges cards; `ledger` has each charge that was made.

    Args:
        moods: For each call in turn, the error to raise and whether `before` or `after` the charge, or None.
    """

    def __init__(self, *moods: tuple[str, BaseException] | None) -> None:
        self.ledger: list[int] = []
        self.moods = list(moods)

    def charge(self, euros: int) -> dict[str, int]:
        """Charge a card, and raise the error of the call's mood before or after that."""
        when, error = (self.moods.pop(0) if self.moods else None) or ("", None)
        if error is not None and when == "before":
            raise error
        self.ledger.append(euros)
        if error is not None:
            raise error
        return {"charged": euros}

    def refund(self, args: dict[str, Any], result: Any) -> None:
        """Undo a charge."""
        self.ledger.remove(args["euros"])

    def look(self, invocation: Any) -> Any:
        """Return the result of a charge that is in the ledger, or False."""
        return {"charged": args["euros"]} if (args := invocation.args)["euros"] in self.ledger else False

    def effects(self, kind: str, **more: Any) -> dict[str, Any]:
        """Declare the tool `charge`."""
        undoable = {"reversible": reversible, "compensable": compensable}
        return {"charge": undoable[kind](self.refund, **more) if kind in undoable else effect(kind, **more)}

    def tool(self, **settings: Any) -> BaseTool:
        """Make the tool `charge`."""

        def charge(euros: int) -> dict[str, int]:
            """Charge a card."""
            return self.charge(euros)

        made = tool(charge)
        for name, value in settings.items():
            setattr(made, name, value)
        return made


@pytest.fixture
def here() -> Any:
    """Open a repository in memory, because the outcome of a call does not depend on the database."""
    with agentgit.open(":memory:") as repo:
        yield repo


def say(text: str = "go") -> dict[str, Any]:
    return {"messages": [("user", text)]}


def charging(*euros: int, then: str = "ok") -> Any:
    """Make a model that asks for one charge in each turn."""
    return scripted(*(reply for amount in euros for reply in (call("charge", euros=amount), then)))


def wrapped(repo: Any, till: Till, kind: str, *euros: int, **declared: Any) -> Any:
    """Wrap a graph that passes tool errors to its model, and make the checkpoint `before`."""
    graph = tool_node_graph(charging(*(euros or (5,))), [till.tool()], handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=till.effects(kind, **declared))
    agent.checkpoint("before")
    return agent


def statuses(agent: Any) -> list[str]:
    return [one.status for one in agent.tool_track()]


def retrying(till: Till, made: BaseTool | None = None) -> Any:
    """Build a graph whose ToolNode has a RetryPolicy."""
    model, graph = charging(5), StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    policy = RetryPolicy(initial_interval=0.001, retry_on=(ConnectionError, ToolException))
    graph.add_node("tools", ToolNode([made or till.tool()], handle_tool_errors=False), retry_policy=policy)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


# -- blocked rollbacks, and how to settle them


@pytest.mark.parametrize("effect_kind", BLOCKING)
@pytest.mark.parametrize("graph_kind", ["tool_node", "create_agent", "nested"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_raised_after_acting_blocks_a_rollback(repo, effect_kind, graph_kind, is_async):
    """The call is `unknown`, the plan names the error and the remedy, and the rollback is refused."""
    till = Till(("after", LOST))

    async def charge(euros: int) -> dict[str, int]:
        """Charge a card."""
        return till.charge(euros)

    made = tool(charge) if is_async else till.tool()
    agent = repo.wrap(GRAPHS[graph_kind](charging(5), [made]), "s", effects=till.effects(effect_kind))
    agent.checkpoint("before")
    with pytest.raises(ConnectionError):
        asyncio.run(agent.ainvoke(say())) if is_async else agent.invoke(say())
    (raised,) = agent.tool_track()
    assert (raised.status, raised.error_message) == ("unknown", "ConnectionError: no answer")
    (step,) = agent.plan_rollback("before").steps
    assert step.action == "block"
    assert step.why == (
        "it raised ConnectionError: no answer, but may have happened; check, then "
        f"resolve call {raised.id}: happened, or did not happen"
    )
    with pytest.raises(RollbackBlocked):
        agent.rollback("before")
    assert till.ledger == [5]
    assert repo.maintenance.fsck().is_sound


@pytest.mark.parametrize("effect_kind", BLOCKING)
def test_a_raised_call_can_be_resolved_either_way(repo, effect_kind):
    """A call resolved as happened is done, with its result; one resolved as did_not_happen is failed."""
    till = Till(("after", LOST), ("before", LOST))
    agent = wrapped(repo, till, effect_kind, 5, 7)
    agent.run("five")
    agent.run("seven")
    five, seven = agent.tool_track()
    assert repo.resolve(five, "happened", result={"charged": 5}).result == {"charged": 5}
    told = repo.resolve(seven, "did_not_happen")
    assert (told.status, told.error_message) == ("failed", "ConnectionError: no answer")
    if effect_kind == "compensable":
        agent.rollback("before")
        assert till.ledger == []
    else:
        with pytest.raises(RollbackBlocked, match="it cannot be undone"):
            agent.rollback("before")
    assert repo.maintenance.fsck().is_sound


def test_the_branch_continues_after_a_raised_call(repo):
    """The model sees the error as in plain LangGraph, and the same request in the next turn is a new call."""
    till = Till(("after", LOST))
    agent = wrapped(repo, till, "irreversible", 5, 5)
    agent.run("five")
    assert "no answer" in agent.history()[2]["content"]
    agent.run("five")
    assert till.ledger == [5, 5]
    assert statuses(agent) == ["unknown", "done"]


def test_a_repeated_request_in_the_same_turn_is_a_new_call(here):
    """A request with a new tool-call id runs as a new call, as in plain LangGraph."""
    till = Till(("before", LOST))
    graph = tool_node_graph(
        scripted(call("charge", euros=5), call("charge", euros=5), "ok"), [till.tool()], handle_tool_errors=True
    )
    agent = here.wrap(graph, "s", effects=till.effects("irreversible"))
    assert agent.run("five") == "ok"
    assert (till.ledger, statuses(agent)) == ([5], ["unknown", "done"])


@pytest.mark.parametrize("told", ["happened", "did_not_happen"])
def test_the_fence_refuses_a_raised_call_until_it_is_resolved(repo, told):
    """After a forced rollback the same request raises Fenced with the call's id until the call is resolved."""
    till = Till(("after" if told == "happened" else "before", LOST))
    agent = wrapped(repo, till, "irreversible", 5, 5)
    agent.run("five")
    raised = agent.tool_track()[0]
    back = agent.rollback("before", force=True)
    with pytest.raises(
        Fenced, match=r"It raised ConnectionError: no answer, and it is unknown.*resolve call"
    ) as refused:
        back.invoke(say("five"))
    assert refused.value.invocation == raised.id
    repo.resolve(raised, told, result={"charged": 5} if told == "happened" else None)
    back.invoke(None)
    assert till.ledger == [5]
    assert [(one.kind, one.status) for one in back.tool_track()] == [
        ("replay" if told == "happened" else "call", "done")
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_verify_settles_a_raised_call(repo, when):
    """The `verify` of a tool settles a raised call at once, so that no person has to decide."""
    till = Till((when, LOST))
    agent = wrapped(repo, till, "irreversible", 5, 5, verify=till.look)
    agent.run("five")
    assert statuses(agent) == ["done" if when == "after" else "failed"]
    back = agent.rollback("before", force=True)
    back.run("five")
    assert till.ledger == [5]


# -- repeated calls


@pytest.mark.parametrize("effect_kind", BLOCKING)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_retried_node_does_not_repeat_a_raised_call(repo, effect_kind, when):
    """RetryPolicy raises `Fenced` with the remedy; once resolved, the turn continues, and there is one charge."""
    till = Till((when, LOST))
    agent = repo.wrap(retrying(till), "s", effects=till.effects(effect_kind))
    with pytest.raises(Fenced, match=r"resolve call"):
        agent.invoke(say())
    assert (till.ledger, statuses(agent)) == ([5] * (when == "after"), ["unknown"])
    with pytest.raises(Fenced, match=r"resolve call"):
        agent.invoke(None)
    happened = {"outcome": "happened", "result": {"charged": 5}} if when == "after" else {"outcome": "did_not_happen"}
    repo.resolve(agent.tool_track()[0], **happened)
    agent.invoke(None)
    assert till.ledger == [5]
    assert agent.history()[2]["content"] == '{"charged": 5}'


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_retried_node_continues_if_verify_settles_the_call(here, when):
    """A call that did not happen runs again, one that happened is answered, and no person has to decide."""
    till = Till((when, LOST))
    agent = here.wrap(retrying(till), "s", effects=till.effects("irreversible", verify=till.look))
    agent.invoke(say())
    assert till.ledger == [5]


@pytest.mark.parametrize("is_async", [False, True])
async def test_middleware_cannot_repeat_a_raised_call(here, is_async):
    """`wrap_tool_call` that calls its handler again after an error raises `Fenced`; there is one charge."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware

    class Again(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
            try:
                return handler(request)
            except ConnectionError:
                return handler(request)

        async def awrap_tool_call(self, request: Any, handler: Callable[..., Any]) -> Any:
            try:
                return await handler(request)
            except ConnectionError:
                return await handler(request)

    till = Till(("after", LOST))
    graph = create_agent(charging(5), [till.tool()], middleware=[Again()])
    agent = here.wrap(graph, "s", effects=till.effects("irreversible"))
    with pytest.raises(Fenced, match="is unknown whether"):
        await agent.ainvoke(say()) if is_async else agent.invoke(say())
    assert (till.ledger, statuses(agent)) == ([5], ["unknown"])


@pytest.mark.long
@pytest.mark.parametrize("effect_kind", ["idempotent", "reversible", "irreversible"])
def test_a_once_tool_is_not_repeated_after_an_error(here, effect_kind):
    """`once=True` counts a raised call, whatever its effect, in the same turn and in later ones."""
    till = Till(("after", LOST))
    agent = here.wrap(retrying(till), "s", effects=till.effects(effect_kind, once=True))
    with pytest.raises(Fenced, match="is unknown whether"):
        agent.invoke(say())
    model = scripted("asked already", call("charge", euros=5), "ok")
    later = here.wrap(tool_node_graph(model, [till.tool()]), "s", effects=till.effects(effect_kind, once=True))
    with pytest.raises(Fenced, match="is unknown whether"):
        later.run("five")
    assert till.ledger == [5]


# -- proof that nothing happened


@pytest.mark.parametrize("effect_kind", ["irreversible", "compensable", "reversible"])
def test_a_call_that_raises_not_done_is_failed(here, effect_kind):
    """The model sees the tool's error as usual, the call is `failed`, and nothing blocks."""
    till = Till(("before", NotDone("declined")))
    agent = wrapped(here, till, effect_kind, 5, 5)
    agent.run("five")
    assert "declined" in agent.history()[2]["content"]
    assert statuses(agent) == ["failed"]
    back = agent.rollback("before")
    back.run("five")
    assert till.ledger == [5]


def test_a_tool_that_handles_its_errors_handles_not_done(here):
    """With `handle_tool_error=True` the model sees `NotDone` like any other ToolException."""
    till = Till(("before", NotDone("declined")))
    graph = tool_node_graph(charging(5), [till.tool(handle_tool_error=True)])
    agent = here.wrap(graph, "s", effects=till.effects("irreversible"))
    agent.run("five")
    assert (agent.history()[2]["content"], statuses(agent)) == ("declined", ["failed"])


@pytest.mark.long
def test_a_retry_repeats_a_call_that_raised_not_done(here):
    """A retry repeats a call that certainly did not happen, as in plain LangGraph."""
    till = Till(("before", NotDone("busy")))
    agent = here.wrap(retrying(till), "s", effects=till.effects("irreversible"))
    agent.invoke(say())
    assert (till.ledger, statuses(agent)) == ([5], ["failed", "done"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ToolException("declined"), "failed"),
        (Declined("declined"), "failed"),
        (LOST, "unknown"),
        (ExceptionGroup("several", [ToolException("declined")]), "unknown"),
    ],
)
@pytest.mark.parametrize("handled", [False, True])
def test_failed_on_lists_the_errors_of_calls_that_did_nothing(here, error, status, handled):
    """`failed_on` covers subclasses and errors that the tool turns into messages, and no other errors."""
    till = Till(("before", error))
    graph = tool_node_graph(charging(5), [till.tool(handle_tool_error=handled)], handle_tool_errors=True)
    agent = here.wrap(graph, "s", effects=till.effects("irreversible", failed_on=(ToolException,)))
    agent.run("five")
    assert statuses(agent) == [status]


@pytest.mark.parametrize("node_handles", [False, True])
def test_a_tool_exception_alone_leaves_the_call_unknown(here, node_handles):
    """A ToolException may follow an effect, so the call is `unknown`, whether tool or node handles the error."""
    till = Till(("after", ToolException("timeout")))
    made = till.tool(handle_tool_error=not node_handles)
    agent = here.wrap(
        tool_node_graph(charging(5), [made], handle_tool_errors=node_handles), "s", effects=till.effects("irreversible")
    )
    agent.run("five")
    assert "timeout" in agent.history()[2]["content"]
    assert (till.ledger, statuses(agent)) == ([5], ["unknown"])


def test_an_error_message_returned_by_a_tool_leaves_its_call_unknown(here):
    """A tool that catches its error and returns a message with status `error` may have acted."""
    till = Till(("after", LOST))

    @tool
    def charge(euros: int) -> Any:
        """Charge a card."""
        try:
            return till.charge(euros)
        except ConnectionError as error:
            return ToolMessage(str(error), tool_call_id="c1", status="error")

    graph = tool_node_graph(scripted(call("charge", "c1", euros=5), "ok"), [charge])
    agent = here.wrap(graph, "s", effects=till.effects("irreversible", failed_on=(ToolException, ConnectionError)))
    agent.run("five")
    assert statuses(agent) == ["unknown"]


def test_an_error_about_the_result_format_leaves_the_call_unknown(here):
    """LangChain checks a result after the tool has acted, so such an error is `unknown` despite `failed_on`."""
    till = Till()
    made = till.tool(response_format="content_and_artifact")
    graph = tool_node_graph(charging(5), [made], handle_tool_errors=True)
    agent = here.wrap(graph, "s", effects=till.effects("irreversible", failed_on=(ValueError,)))
    agent.run("five")
    assert (till.ledger, statuses(agent)) == ([5], ["unknown"])


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("kind", ["tool_node", "functional"])
def test_a_call_with_invalid_arguments_is_failed(here, kind, handled):
    """A call with invalid arguments never ran its function, whether or not the tool handles the error."""
    till = Till()
    made = till.tool(handle_validation_error=handled)
    replies = scripted(calls(call("charge", euros="many")), "ok")
    if kind == "functional":
        graph, effects = GRAPHS[kind](replies, [made]), till.effects("irreversible", verify=till.look)
    else:
        graph, effects = tool_node_graph(replies, [made], handle_tool_errors=True), till.effects("irreversible")
    agent = here.wrap(graph, "s", effects=effects, check_effects=False)
    if kind == "functional" and not handled:
        with pytest.raises(ValueError, match="euros"):
            agent.invoke(say())
    else:
        agent.invoke(say())
    assert (till.ledger, statuses(agent)) == ([], ["failed"])


def test_a_raised_call_made_directly_by_a_task_is_unknown(here):
    """An error of a tool that a task calls directly leaves the call `unknown`, and a second run is refused."""
    till = Till(("after", LOST))
    agent = here.wrap(
        GRAPHS["functional"](charging(5), [till.tool()]), "s", effects=till.effects("irreversible"), check_effects=False
    )
    with pytest.raises(ConnectionError):
        agent.invoke(say())
    assert statuses(agent) == ["unknown"]
    with pytest.raises(Fenced, match="is unknown whether"):
        agent.invoke(None)
    assert till.ledger == [5]


def test_a_validation_error_inside_the_tool_leaves_the_call_unknown(here):
    """A tool that acts and then raises ValidationError is not taken for a call with invalid arguments."""
    till = Till()

    class Receipt(BaseModel):
        number: int

    @tool
    def charge(euros: int) -> Any:
        """Charge a card."""
        return Receipt.model_validate(till.charge(euros))

    graph = tool_node_graph(charging(5), [charge], handle_tool_errors=True)
    agent = here.wrap(graph, "s", effects=till.effects("irreversible"))
    agent.run("five")
    assert (till.ledger, statuses(agent)) == ([5], ["unknown"])


@pytest.mark.parametrize("says", [False, True])
def test_not_done_counts_only_for_the_tool_that_raises_it(here, says):
    """A tool that charged and lets the `NotDone` of an inner tool pass may have acted."""
    till = Till(None if not says else ("before", NotDone("declined")))

    @tool
    def deliver(euros: int) -> str:
        """Deliver."""
        raise NotDone("sold out")

    @tool
    def charge(euros: int) -> str:
        """Charge a card and deliver."""
        till.charge(euros)
        return str(deliver.invoke({"euros": euros}))

    graph = tool_node_graph(charging(5), [charge, deliver], handle_tool_errors=True)
    agent = here.wrap(graph, "s", effects=till.effects("irreversible") | {"deliver": "irreversible"})
    agent.run("five")
    assert {one.tool_name: one.status for one in agent.tool_track()} == (
        {"charge": "failed"} if says else {"charge": "unknown", "deliver": "failed"}
    )


# -- calls that do not block


@pytest.mark.parametrize("told", [None, "happened", "did_not_happen"])
def test_a_raised_reversible_call_does_not_block_a_rollback(repo, told):
    """The report lists the call as kept; once it is resolved as happened, a rollback reverses it."""
    till = Till(("after", LOST))
    agent = wrapped(repo, till, "reversible")
    agent.run("five")
    (raised,) = agent.tool_track()
    if told is not None:
        repo.resolve(raised, told, result={"charged": 5} if told == "happened" else None)
    report = agent.rollback("before").report
    assert till.ledger == ([] if told == "happened" else [5])
    if told is None:
        (item,) = report.kept
        assert item.reason == (
            f"it raised ConnectionError: no answer, but may have happened; if it did, resolve call {raised.id} as "
            "happened to have it reversed"
        )
        repo.resolve(raised, "happened")
        agent.rollback("before")
        assert till.ledger == []
    assert repo.maintenance.fsck().is_sound


def test_a_retry_repeats_a_raised_reversible_call(repo):
    """A reversible call can be undone, so a retry runs it again with the same idempotency key."""
    till = Till(("after", LOST))
    agent = repo.wrap(retrying(till), "s", effects=till.effects("reversible"))
    agent.checkpoint("before")
    agent.invoke(say())
    first, second = agent.tool_track()
    assert (first.status, second.status, till.ledger) == ("unknown", "done", [5, 5])
    assert first.idempotency_key == second.idempotency_key
    report = agent.rollback("before").report
    assert ([item.invocation.id for item in report.kept], till.ledger) == ([first.id], [5])
    repo.resolve(first, "happened", result={"charged": 5})
    agent.rollback("before")
    assert till.ledger == []


@pytest.mark.parametrize("effect_kind", ["idempotent", "read_only", None])
def test_raised_calls_with_other_effects_are_failed(here, effect_kind):
    """A raised call of an idempotent, read-only or undeclared tool is `failed` and does not block."""
    till = Till(("after", LOST))
    graph = tool_node_graph(charging(5), [till.tool()], handle_tool_errors=True)
    agent = here.wrap(graph, "s", effects=till.effects(effect_kind) if effect_kind else None)
    agent.checkpoint("before")
    agent.run("five")
    assert statuses(agent) == ["failed"]
    assert agent.plan_rollback("before").is_admissible


# -- interrupted calls


def test_an_interrupted_reversible_call_blocks_a_rollback(repo):
    """Ctrl-C inside a tool is no error of the tool, so the call is `unknown` and blocks."""
    till = Till(("after", KeyboardInterrupt()))
    agent = wrapped(repo, till, "reversible")
    with pytest.raises(KeyboardInterrupt):
        agent.run("five")
    (step,) = agent.plan_rollback("before").steps
    assert (step.action, step.invocation.status) == ("block", "unknown")
    assert "it was interrupted" in step.why


@pytest.mark.parametrize("way", ["cancelled", "timeout"])
async def test_cancelled_and_timed_out_calls_are_unknown(repo, way):
    """A call that was cancelled or timed out may have acted, so it blocks a rollback."""
    till, acted = Till(), asyncio.Event()

    @tool
    async def charge(euros: int) -> str:
        """Charge a card, and wait for an answer that never comes."""
        till.charge(euros)
        acted.set()
        async with asyncio.timeout(0 if way == "timeout" else None):
            await asyncio.Event().wait()
        return "never"

    graph = tool_node_graph(charging(5), [charge], handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=till.effects("irreversible"))
    agent.checkpoint("before")
    turn = asyncio.ensure_future(agent.ainvoke(say()))
    await acted.wait()
    if way == "cancelled":
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
    else:
        await turn
    plan = agent.plan_rollback("before")
    assert [(step.action, step.invocation.status) for step in plan.steps] == [("block", "unknown")]


# -- redone calls


def gone(repo: Any, till: Till, kind: str, **declared: Any) -> Any:
    """Make a charge, reverse it by a rollback, and return the agent on the new branch."""
    agent = wrapped(repo, till, kind, 5, **declared)
    agent.run("five")
    back = agent.rollback("before")
    assert till.ledger == []
    return back


@pytest.mark.parametrize("told", ["happened", "did_not_happen"])
def test_a_redo_stops_at_a_raised_call_until_it_is_resolved(repo, told):
    """A redo whose compensable call raises stops, names the call, and completes once it is resolved."""
    till = Till(None, ("after" if told == "happened" else "before", LOST))
    back = gone(repo, till, "compensable")
    with pytest.raises(
        RollbackIncomplete, match=r"it raised ConnectionError.*may have happened.*resolve call"
    ) as error:
        back.redo()
    with pytest.raises(RollbackIncomplete):
        repo.resume(error.value.operation)
    assert till.ledger == [5] * (told == "happened")
    (failed,) = error.value.report.failed
    assert f"resolve call {failed.invocation.id}: " in failed.reason
    repo.resolve(failed.invocation, told, result={"charged": 5} if told == "happened" else None)
    assert repo.resume(error.value.operation).status == "done"
    assert till.ledger == [5]


@pytest.mark.parametrize(
    ("kind", "error", "declared"),
    [
        ("compensable", NotDone("declined"), {}),
        ("compensable", Declined("declined"), {"failed_on": (Declined,)}),
        ("reversible", LOST, {}),
    ],
)
def test_a_resumed_redo_retries_a_call_that_is_safe_to_repeat(repo, kind, error, declared):
    """A redo retries a raised call on resume if the call did nothing or is reversible."""
    till = Till(None, ("before", error))
    back = gone(repo, till, kind, **declared)
    with pytest.raises(RollbackIncomplete) as stopped:
        back.redo()
    assert repo.resume(stopped.value.operation).status == "done"
    assert till.ledger == [5]
    assert repo.maintenance.fsck().is_sound


# -- declarations


@pytest.mark.parametrize("given", [ToolException, "text", (ToolException("no"),), (KeyboardInterrupt,), (5,), None])
def test_failed_on_accepts_only_exception_classes(given):
    """Anything else than a tuple or list of Exception classes is refused at the declaration."""
    with pytest.raises(InvalidInput, match="failed_on"):
        effect("irreversible", failed_on=given)


def test_failed_on_is_refused_for_a_read_only_tool():
    """`failed_on` has no meaning for a read-only tool and is refused."""
    with pytest.raises(InvalidInput, match="leave out failed_on"):
        effect("read_only", failed_on=(ToolException,))


def test_every_declaration_accepts_failed_on():
    """`effect`, `reversible` and `compensable` accept the same `failed_on`."""
    made = [declare(lambda args, result: None, failed_on=(ToolException,)) for declare in (reversible, compensable)]
    made.append(effect("irreversible", failed_on=[ToolException]))
    assert [one.failed_on for one in made] == [(ToolException,)] * 3


# -- all interfaces


@pytest.mark.long
def test_the_command_line_resolves_a_raised_call(tmp_path):
    """The error names the command, `agentgit tool-track` shows its id, `resolve --result` records the result."""

    def run(*words: str) -> tuple[str, str]:
        done = command_line.run(*words, "--db", url)
        return done.out, done.err

    till, url = Till(("after", LOST)), str(tmp_path / "agentgit.db")
    with agentgit.open(url) as repo:
        agent = wrapped(repo, till, "compensable")
        agent.run("five")
        raised = str(agent.tool_track()[0].id)
    assert raised in run("tool-track", "s")[0]
    blocked = run("rollback", "s", "main#1", "--yes")[1]
    assert f"check, then resolve call {raised}: happened, or did not happen. With force," in blocked
    told, _ = run("resolve", raised, "happened", "--result", '{"charged": 5}', "--json")
    assert (json.loads(told)["status"], json.loads(told)["result"]) == ("done", {"charged": 5})


def test_the_chat_resolves_a_raised_call():
    """The error names the command, and `/resolve --result` records the result."""
    till, out, err = Till(("after", LOST)), io.StringIO(), io.StringIO()
    with agentgit.open(":memory:") as repo:
        agent = wrapped(repo, till, "compensable")
        agent.run("five")
        raised = agent.tool_track()[0].id
        with chatting(repo, agent, yes=True) as chat, redirect_stdout(out), redirect_stderr(err):
            for line in ("/undo", f"/resolve {raised} happened --result nothing"):
                chat.handle_line(line)
            chat.handle_line(f"/resolve {raised} happened --result '{{\"charged\": 5}}'")
            assert agent.tool_track()[0].result == {"charged": 5}
            chat.handle_line("/undo")
    blocked, no_json = err.getvalue().splitlines()
    assert f"check, then resolve call {raised}: happened, or did not happen. With force," in blocked
    assert "--result is not valid JSON" in no_json
    assert till.ledger == []


@pytest.mark.long
def test_only_who_may_change_the_session_resolves_a_raised_call(tmp_path):
    """A viewer is offered no form and is refused by the API, the pages and the library; an editor resolves."""
    till, place = Till(("after", LOST)), tmp_path / "agentgit.db"
    with agentgit.open(place) as operator:
        for name in ("ada", "bob"):
            operator.users.add(name)
    with agentgit.open(place, user="ada") as repo, agentgit.open(place, user="bob") as theirs:
        agent = wrapped(repo, till, "irreversible")
        agent.run("five")
        (five,) = agent.tool_track()
        agent.session.sharing.share("bob", "viewer")
        key = theirs.keys.create("a program", scopes=("admin",)).secret
        origin = {"base_url": "https://git.example", "headers": {"origin": "https://git.example"}}
        program = TestClient(site(repo), base_url="https://git.example", headers={"authorization": f"Bearer {key}"})
        browser = TestClient(site(repo), cookies={"__Host-agentgit": key}, **origin)
        api, action = f"/api/v1/invocations/{five.id}/resolve", f"/invocations/{five.id}/resolve"
        page, body = f"/sessions/{agent.session.id}/rollback?to=before", {"outcome": "happened"}
        shown = browser.get(page)
        assert (shown.status_code, action in shown.text) == (200, False)
        mark = re.search(r'name="csrf" value="([^"]*)"', shown.text)
        assert mark is not None
        assert program.post(api, json=body).status_code == 403
        refused = browser.post(action, data=body | {"csrf": mark[1]}).text
        assert "editor" in refused
        with pytest.raises(NotAllowed):
            theirs.resolve(five, "happened")
        assert statuses(agent) == ["unknown"]
        agent.session.sharing.share("bob", "editor")
        assert action in browser.get(page).text
        assert program.post(api, json=body).json()["status"] == "done"


@pytest.mark.long
def test_the_http_api_and_the_web_pages_resolve_a_raised_call(tmp_path):
    """The API and the plan page record the result; invalid JSON and a foreign redirect are refused."""
    till = Till(("after", LOST), ("after", LOST))
    with agentgit.open(tmp_path / "agentgit.db") as operator:
        operator.users.add("ada", is_admin=True)
    with agentgit.open(tmp_path / "agentgit.db", user="ada") as repo:
        agent = wrapped(repo, till, "irreversible", 5, 7)
        agent.run("five")
        agent.run("seven")
        five, seven = agent.tool_track()
        key = repo.keys.create("a program", scopes=("admin",)).secret
        origin = {"base_url": "https://git.example", "headers": {"origin": "https://git.example"}}
        program = TestClient(site(repo), base_url="https://git.example", headers={"authorization": f"Bearer {key}"})
        body = {"outcome": "happened", "result": {"charged": 5}}
        told = program.post(f"/api/v1/invocations/{five.id}/resolve", json=body).json()
        assert (told["status"], told["result"]) == ("done", {"charged": 5})
        browser = TestClient(site(repo), cookies={"__Host-agentgit": key}, **origin)
        at = f"/sessions/{agent.session.id}"
        page = browser.get(f"{at}/rollback?to=before").text
        form = re.search(rf'action="/invocations/{seven.id}/resolve">(.*?)</form>', page, re.S)
        assert form is not None
        hidden = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form[1])}
        assert f"/invocations/{seven.id}/resolve" in browser.get(f"{at}/tool-track").text
        wrong = browser.post(f"/invocations/{seven.id}/resolve", data=hidden | {"outcome": "happened", "result": "{"})
        assert "The result is not valid JSON" in wrong.text
        fields = {"outcome": "happened", "result": '{"charged": 7}'}
        after = browser.post(f"/invocations/{seven.id}/resolve", data=hidden | fields)
        assert (after.status_code, after.url.path) == (200, f"{at}/rollback")
        assert agent.tool_track()[1].result == {"charged": 7}
        elsewhere = hidden | {"outcome": "happened", "back": "//evil.example"}
        assert browser.post(f"/invocations/{seven.id}/resolve", data=elsewhere, follow_redirects=False).is_client_error
