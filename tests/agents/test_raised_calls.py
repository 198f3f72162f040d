"""An error does not prove that nothing happened, so a call that raised is unknown until it is settled.

The ledger of a till shows which charges were made.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
from chats import chatting
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.types import Command, RetryPolicy
from pydantic import BaseModel
from scripted import GRAPHS, call, calls, node_graph, say, saying, scripted, tool_node_graph
from web_visitors import Visitor, fields_of

import agentgit
from agentgit import (
    Fenced,
    InvalidInput,
    NotDone,
    RollbackBlocked,
    RollbackIncomplete,
    WorldDiverged,
    compensable,
    effect,
    reversible,
)

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
        undoable = {"reversible": reversible, "compensable": compensable}
        return {"charge": undoable[kind](self.refund, **more) if kind in undoable else effect(kind, **more)}

    def tool(self, **settings: Any) -> BaseTool:
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


def retrying(till: Till) -> Any:
    """Build a graph whose ToolNode has a RetryPolicy."""
    policy = RetryPolicy(initial_interval=0.001, retry_on=(ConnectionError, ToolException))
    return tool_node_graph(charging(5), [till.tool()], retry=policy)


# -- blocked rollbacks, and how to settle them


@pytest.mark.each_value_once
@pytest.mark.parametrize("effect_kind", BLOCKING)
@pytest.mark.parametrize("graph_kind", ["tool_node", "create_agent", "nested"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_raised_after_acting_blocks_a_rollback(repo, effect_kind, graph_kind, is_async):
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
        "it raised ConnectionError: no answer, but may have happened; "
        f"repo.resolve({raised.id}, 'happened'), or 'did_not_happen', records what you find"
    )
    with pytest.raises(RollbackBlocked):
        agent.rollback("before")
    assert till.ledger == [5]
    assert repo.maintenance.fsck().is_sound


@pytest.mark.parametrize("effect_kind", BLOCKING)
def test_a_raised_call_can_be_resolved_either_way(repo, effect_kind):
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


def test_a_repeated_request_after_a_raised_call_is_a_new_call(repo):
    """As in plain LangGraph, in the same turn and in the next one."""
    till = Till(("after", LOST))
    graph = tool_node_graph(
        scripted(*[call("charge", euros=5)] * 2, "ok", call("charge", euros=5), "ok"),
        [till.tool()],
        handle_tool_errors=True,
    )
    agent = repo.wrap(graph, "s", effects=till.effects("irreversible"))
    assert agent.run("five") == "ok"
    assert "no answer" in agent.history()[2]["content"]
    agent.run("five")
    assert (till.ledger, statuses(agent)) == ([5, 5, 5], ["unknown", "done", "done"])


@pytest.mark.parametrize("told", ["happened", "did_not_happen"])
def test_the_fence_refuses_a_raised_call_until_it_is_resolved(repo, told):
    till = Till(("after" if told == "happened" else "before", LOST))
    agent = wrapped(repo, till, "irreversible", 5, 5)
    agent.run("five")
    raised = agent.tool_track()[0]
    back = agent.rollback("before", force=True)
    with pytest.raises(
        Fenced, match=r"It raised ConnectionError: no answer, and it is unknown.*repo.resolve"
    ) as refused:
        back.invoke(say("five"))
    assert refused.value.invocation == raised.id
    repo.resolve(raised, told, result={"charged": 5} if told == "happened" else None)
    back.invoke(None)
    assert till.ledger == [5]
    assert [(one.kind, one.status) for one in back.tool_track()] == [
        ("replay" if told == "happened" else "call", "done")
    ]


@pytest.mark.parametrize("error", [LOST, KeyboardInterrupt()], ids=["raised", "interrupted"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_verify_settles_a_raised_or_interrupted_call(repo, when, error):
    """At once, or when the same request comes again on another branch, so that no person has to decide."""
    till = Till((when, error))
    agent = wrapped(repo, till, "irreversible", 5, 5, verify=till.look)
    if error is LOST:
        agent.run("five")
        assert statuses(agent) == ["done" if when == "after" else "failed"]
    else:
        with pytest.raises(KeyboardInterrupt):
            agent.run("five")
    back = agent.rollback("before", tools="keep")
    back.run("five")
    assert till.ledger == [5]


def test_a_call_of_which_verify_cannot_tell_stays_unknown(here):
    agent = wrapped(here, Till(("after", LOST)), "irreversible", verify=lambda call: None)
    agent.run("five")
    assert statuses(agent) == ["unknown"]
    with pytest.raises(RollbackBlocked, match=r"repo\.resolve"):
        agent.rollback("before")


# -- repeated calls


@pytest.mark.parametrize("effect_kind", BLOCKING)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_retried_node_does_not_repeat_a_raised_call(repo, effect_kind, when):
    till = Till((when, LOST))
    agent = repo.wrap(retrying(till), "s", effects=till.effects(effect_kind))
    with pytest.raises(Fenced, match=r"repo\.resolve"):
        agent.invoke(say())
    assert (till.ledger, statuses(agent)) == ([5] * (when == "after"), ["unknown"])
    with pytest.raises(Fenced, match=r"repo\.resolve"):
        agent.invoke(None)
    happened = {"outcome": "happened", "result": {"charged": 5}} if when == "after" else {"outcome": "did_not_happen"}
    repo.resolve(agent.tool_track()[0], **happened)
    agent.invoke(None)
    assert till.ledger == [5]
    assert agent.history()[2]["content"] == '{"charged": 5}'


@pytest.mark.parametrize("effect_kind", ["irreversible", "reversible"])
@pytest.mark.parametrize(
    ("when", "error", "expected"),
    [
        ("before", ConnectionError, ["failed", "done"]),
        ("after", ConnectionError, ["done"]),
        ("before", NotDone, ["failed", "done"]),
    ],
)
def test_a_retried_node_continues_if_the_outcome_is_known(here, effect_kind, when, error, expected):
    """A call that did not happen runs again, one that happened is answered, and no person has to decide."""
    till = Till((when, error("busy")))
    verify = till.look if error is ConnectionError else None
    agent = here.wrap(retrying(till), "s", effects=till.effects(effect_kind, verify=verify))
    agent.checkpoint("before")
    agent.invoke(say())
    assert (till.ledger, statuses(agent)) == ([5], expected)
    if effect_kind == "reversible":
        agent.rollback("before")
        assert till.ledger == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_tool_with_retry_records_each_attempt(here, when):
    till = Till((when, LOST))
    stubborn = till.tool().with_retry(wait_exponential_jitter=False, retry_if_exception_type=(ConnectionError,))
    graph = node_graph(lambda state: {"messages": [("ai", str(stubborn.invoke({"euros": 5})))]})
    agent = here.wrap(graph, "s", effects=till.effects("reversible", verify=till.look), check_effects=False)
    agent.checkpoint("before")
    agent.invoke(say())
    assert statuses(agent) == ["failed" if when == "before" else "done", "done"]
    agent.rollback("before")
    assert till.ledger == []


@pytest.mark.long
@pytest.mark.parametrize("effect_kind", ["idempotent", "reversible", "irreversible"])
def test_a_once_tool_is_not_repeated_after_an_error(here, effect_kind):
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


@pytest.mark.each_value_once
@pytest.mark.parametrize(
    ("error", "failed_on", "status"),
    [
        (NotDone, (), "failed"),
        (ToolException, (ToolException,), "failed"),
        (Declined, (ToolException,), "failed"),
        (ConnectionError, (ToolException,), "unknown"),
        (lambda text: ExceptionGroup("several", [ToolException(text)]), (ToolException,), "unknown"),
        (ToolException, (), "unknown"),
    ],
)
@pytest.mark.parametrize("handled_by", ["tool", "node"])
def test_only_not_done_and_errors_listed_in_failed_on_prove_that_a_call_failed(
    here, error, failed_on, status, handled_by
):
    till = Till(("after", error("declined")))
    made = till.tool(handle_tool_error=handled_by == "tool")
    graph = tool_node_graph(charging(5), [made], handle_tool_errors=True)
    agent = here.wrap(graph, "s", effects=till.effects("irreversible", failed_on=failed_on))
    agent.run("five")
    assert "declined" in agent.history()[2]["content"]
    assert statuses(agent) == [status]
    assert agent.plan_rollback("main#1").is_admissible is (status == "failed")


class Receipt(BaseModel):
    """What a till prints."""

    number: int


def test_no_rollback_has_kept_a_call_that_did_nothing(here):
    agent = wrapped(here, Till(("before", NotDone("declined"))), "compensable")
    agent.invoke(say())
    told = "it failed (NotDone: declined), so there is no result to reverse"
    for _ in range(2):
        agent = agent.rollback("before")
        assert [item.reason for item in agent.report.kept] == [told]


@pytest.mark.parametrize("error", ["a result of another form", "a validation error inside", "a returned message"])
def test_an_error_after_the_tool_has_acted_leaves_its_call_unknown(here, error):
    till = Till()

    @tool(response_format="content_and_artifact" if error == "a result of another form" else "content")
    def charge(euros: int) -> Any:
        """Charge a card."""
        charged = till.charge(euros)
        if error == "a validation error inside":
            Receipt.model_validate(charged)
        return ToolMessage("no answer", tool_call_id="c1", status="error") if error == "a returned message" else charged

    graph = tool_node_graph(scripted(call("charge", "c1", euros=5), "ok"), [charge], handle_tool_errors=True)
    failed_on = () if error == "a validation error inside" else (ToolException, ValueError)
    agent = here.wrap(graph, "s", effects=till.effects("irreversible", failed_on=failed_on))
    agent.run("five")
    assert (till.ledger, statuses(agent)) == ([5], ["unknown"])


def returning_an_error(till: Till, *, in_command: bool = False) -> BaseTool:
    """Make a tool that charges a card, and returns an error message instead of raising."""
    told = ToolMessage("no answer", tool_call_id="c1", status="error")

    def charge(euros: int) -> Any:
        """Charge a card."""
        till.charge(euros)
        return Command(update={"messages": [AIMessage("I tried"), told]}) if in_command else told

    return tool(charge)


@pytest.mark.parametrize("in_command", [False, True], ids=["message", "command"])
@pytest.mark.parametrize("kind", ["irreversible", "compensable", "reversible", "idempotent", "read_only"])
def test_an_error_that_a_tool_returned_is_recorded_and_told_as_returned(here, kind, in_command):
    """It did not raise, so no sentence says that it did; whether it acted, only the ledger knows."""
    till, replies = Till(), [call("charge", "c1", euros=5), "ok"]
    graph = tool_node_graph(saying(*replies, *replies), [returning_an_error(till, in_command=in_command)])
    agent = here.wrap(graph, "s", effects=till.effects(kind))
    agent.checkpoint("before")
    agent.run("five")
    (made,) = agent.tool_track()
    is_open = kind not in ("idempotent", "read_only")
    assert (till.ledger, made.status, made.error_message) == ([5], "unknown" if is_open else "failed", "no answer")
    told = made.result["update"]["messages"][-1] if in_command else made.result
    assert (told["content"], told["status"]) == ("no answer", "error")
    (message,) = [one for one in agent.messages() if isinstance(one, ToolMessage)]
    assert (message.content, message.status) == ("no answer", "error")
    plan = str(agent.plan_rollback("before"))
    assert "raised" not in plan
    assert ("it returned the error no answer, but may have happened" in plan) == is_open
    if kind in BLOCKING:
        back = agent.rollback("before", force=True)
        with pytest.raises(Fenced, match="It returned the error no answer, and it is unknown"):
            back.invoke(say("five"))
        assert till.ledger == [5]
    assert here.maintenance.fsck().is_sound


def test_a_redo_tells_of_an_error_that_its_tool_returned(here):
    """Outside a turn, as in one: it is not known whether the call acted."""
    till, answers = Till(), [{"charged": 5}, ToolMessage("no answer", tool_call_id="c1", status="error")]

    @tool
    def charge(euros: int) -> Any:
        """Charge a card."""
        till.charge(euros)
        return answers.pop(0)

    graph = tool_node_graph(charging(5), [charge])
    agent = here.wrap(graph, "s", effects=till.effects("compensable"))
    agent.checkpoint("before")
    agent.run("five")
    back = agent.rollback("before")
    with pytest.raises(RollbackIncomplete) as caught:
        back.session.switch("main", sync="world")
    assert till.ledger == [5]
    (failed,) = caught.value.report.failed
    assert "it returned the error no answer when it ran again, but may have happened" in failed.reason


def test_a_rerun_returns_the_error_that_a_tool_returned(here):
    """The code of a node calls the tool, and goes on with the message that it returned."""
    till = Till()

    def act(state: Any) -> Any:
        returned = returning_an_error(till).invoke({"euros": 5})
        return {"messages": [("ai", f"{returned.status}: {returned.content}")]}

    agent = here.wrap(node_graph(act), "s", effects=till.effects("irreversible"), check_effects=False)
    agent.run("five")
    again = agent.rerun()
    assert [one["content"] for one in again.history()] == ["five", "error: no answer"]
    assert (till.ledger, again.report.match_rate) == ([5], 1.0)


def test_an_error_that_a_node_gets_as_text_is_text_in_a_rerun_too(here):
    """LangChain makes text of the error for a caller without a tool call id."""
    till = Till(("after", ToolException("declined")))

    def act(state: Any) -> Any:
        return {"messages": [("ai", str(till.tool(handle_tool_error=True).invoke({"euros": 5})))]}

    agent = here.wrap(node_graph(act), "s", effects=till.effects("irreversible"), check_effects=False)
    agent.run("five")
    again = agent.rerun()
    assert [one["content"] for one in again.history()] == ["five", "declined"]
    assert (till.ledger, again.report.match_rate) == ([5], 1.0)
    assert [(one.status, one.error_message) for one in again.tool_track()] == [("simulated", "declined")]


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("kind", ["tool_node", "functional"])
def test_a_call_with_invalid_arguments_is_failed(here, kind, handled):
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


@pytest.mark.parametrize("says", [False, True])
def test_not_done_counts_only_for_the_tool_that_raises_it(here, says):
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
            "it raised ConnectionError: no answer, but may have happened; "
            f"repo.resolve({raised.id}, 'happened') has the next rollback reverse it, if it did"
        )
        repo.resolve(raised, "happened")
        agent.rollback("before")
        assert till.ledger == []
    assert repo.maintenance.fsck().is_sound


@pytest.mark.parametrize("way", ["rollback", "switch"])
def test_a_raised_call_that_a_rollback_kept_is_reversed_once_somebody_says_that_it_happened(repo, way):
    till = Till(("after", LOST))
    agent = wrapped(repo, till, "reversible")
    agent.run("five")
    (raised,) = agent.tool_track()
    agent = agent.rollback("before")
    assert till.ledger == [5]
    repo.resolve(raised, "happened")
    with pytest.raises(WorldDiverged, match="reverse charge"):
        agent.run("five")
    if way == "rollback":
        agent.rollback("before")
    else:
        agent.switch(agent.branch, sync="world")
    assert till.ledger == []


def test_a_retry_repeats_a_raised_reversible_call(repo):
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
    till = Till(None, ("after" if told == "happened" else "before", LOST))
    back = gone(repo, till, "compensable")
    with pytest.raises(
        RollbackIncomplete, match=r"it raised ConnectionError.*may have happened.*repo.resolve"
    ) as error:
        back.redo()
    with pytest.raises(RollbackIncomplete):
        repo.resume(error.value.operation)
    assert till.ledger == [5] * (told == "happened")
    (failed,) = error.value.report.failed
    assert f"repo.resolve({failed.invocation.id}, " in failed.reason
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
    with pytest.raises(InvalidInput, match="failed_on"):
        effect("irreversible", failed_on=given)


def test_every_declaration_but_read_only_accepts_failed_on():
    made = [declare(lambda args, result: None, failed_on=(ToolException,)) for declare in (reversible, compensable)]
    made.append(effect("irreversible", failed_on=[ToolException]))
    assert [one.failed_on for one in made] == [(ToolException,)] * 3
    with pytest.raises(InvalidInput, match="leave out failed_on"):
        effect("read_only", failed_on=(ToolException,))


# -- all interfaces


def test_the_chat_resolves_a_raised_call(here):
    till, err = Till(("after", LOST)), io.StringIO()
    agent = wrapped(here, till, "compensable")
    agent.run("five")
    raised = agent.tool_track()[0].id
    with chatting(here, agent, yes=True) as chat, redirect_stdout(io.StringIO()), redirect_stderr(err):
        for line in ("/undo", f"/resolve {raised} happened --result nothing"):
            chat.handle_line(line)
        chat.handle_line(f"/resolve {raised} happened --result '{{\"charged\": 5}}'")
        assert agent.tool_track()[0].result == {"charged": 5}
        chat.handle_line("/undo")
    blocked, no_json = err.getvalue().splitlines()
    assert f"/resolve {raised} happened, or did-not-happen, records what you find. --force keeps" in blocked
    assert "--result is not valid JSON" in no_json
    assert till.ledger == []


@pytest.mark.long
def test_only_an_editor_resolves_a_raised_call_on_its_page(here):
    till = Till(("after", LOST))
    ada, bob = (here.as_user(here.users.add(name)) for name in ("ada", "bob"))
    agent = wrapped(ada, till, "irreversible")
    agent.run("five")
    at, action = f"/sessions/{agent.session.id}", f"/invocations/{agent.tool_track()[0].id}/resolve"
    agent.session.sharing.share("bob", "viewer")
    browser = Visitor(bob)
    assert action not in browser.get(f"{at}/rollback?to=before").text
    agent.session.sharing.share("bob", "editor")
    page = browser.get(f"{at}/rollback?to=before")
    assert action in browser.get(f"{at}/tool-track").text
    wrong = browser.post(page, action, 422, outcome="happened", result="{")
    assert "The result is not valid JSON" in wrong.text
    elsewhere = fields_of(page, action) | {"outcome": "happened", "result": '{"charged": 5}', "back": "//evil.example"}
    after = browser.client.post(action, data=elsewhere, follow_redirects=False)
    assert (after.headers["location"], agent.tool_track()[0].result) == ("/", {"charged": 5})
