"""Errors for calls that were not made: the reason, what to do next, and how they end the turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.errors import GraphBubbleUp

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import INTENDED, REVERSE_UNKNOWN, REVERSING, UNKNOWN, call_text
from agentgit.errors import AgentGitError, Conflict, Fenced, InvalidInput
from agentgit.next_steps import Next
from agentgit.store.records.journal import Intent


def other_args_error(intent: Intent, args: Any) -> Fenced:
    """Return the error for a call that was made before with other arguments."""
    return Fenced(
        f"The call {intent.tool_call_id} of {intent.tool_name} was made before, with other arguments: {args}. "
        "It was not made again. To make a different call, give it its own id."
    )


def unreachable_error(name: str) -> InvalidInput:
    """Return the error for a tool whose class calls its function past LangChain's `run` and `arun`."""
    return InvalidInput(
        f"The tool {name} was not run: its class overrides run() or arun(), so its calls can be neither recorded nor "
        "answered from the record. Put the work into _run() and _arun()."
    )


def late_call_error(name: str, args: Mapping[str, Any]) -> Conflict:
    """Return the error for a call that is made after its turn has ended."""
    return Conflict(
        f"{call_text(name, args)} was not made: it was called after its turn had ended, so the turn could not record "
        "it. Let the node wait for what it starts, or make the call in a new turn."
    )


def unrecorded_call_error(name: str, caller: str) -> Fenced:
    """Return the error for a call that acts, made by a tool that an operation runs again."""
    return Fenced(
        f"{name} was called by {caller}, which runs again outside a turn, so the call could not be recorded, and was "
        f"not made. Run {caller} in a turn. Or declare the effects: {name} as read_only, if it is, or only {caller}, "
        f"with an undo that takes back what {name} does."
    )


def unmatched_error(call: ToolInvocation, intent: Intent) -> Fenced:
    """Return the error for a call of a task that runs again without repeating an earlier call."""
    is_unknown, then = call.status == UNKNOWN, [Next("force_rollback"), Next("unfenced"), Next("continue")]
    return Fenced(
        f"This task runs again and calls {intent.tool_name} with {intent.args}. Earlier it called {call} (invocation "
        f"{call.id}, {call.status}), which cannot be undone and has not been repeated; so this may be a new call, or "
        "that one with other arguments. It was not made. Let the task call it with the same arguments first, or list "
        "the arguments that count in identity_args.",
        *([Next("resolve", call=call.id)] if is_unknown else []),
        *then,
        invocation=call.id,
    )


def done_error(call: ToolInvocation, consequence: str) -> Fenced:
    """Return the error for a call whose effect is already in place."""
    return Fenced(f"{call} is already done (invocation {call.id}){consequence}.", Next("rollback"), invocation=call.id)


def other_tool_error(call: ToolInvocation, intent: Intent) -> Fenced:
    """Return the error for a call of which it is not known whether a tool of the same name has made it before."""
    return Fenced(
        f"{call} (invocation {call.id}, {call.status}) was made by {call.tool_path}. It is not known whether "
        f"{intent.tool_path} is the same tool, so this call was not made. If they are two tools, rename one.",
        Next("rollback"),
        Next("unfenced"),
        invocation=call.id,
    )


def parallel_graphs_error(intent: Intent, reason: str) -> Fenced:
    """Return the error for a graph that a tool runs beside others, if it is not known which one it was before."""
    return Fenced(
        f"{call_text(intent.tool_name, intent.args)} runs again. It ran graphs in tasks or threads of their own, and "
        f"it is not known which of them this is: they {reason}. It was not run, so that none takes another's place. "
        "Give such graphs inputs that stay the same, and names or tags of their own (run_name, tags) if their inputs "
        "are equal; or let the tool itself call them one after the other.",
        Next("rollback"),
    )


def aborted_call_error(intent: Intent) -> Fenced:
    """Return the error for a call that was aborted earlier in this turn."""
    return Fenced(
        f"The call {intent.tool_call_id} of {intent.tool_name} (invocation {intent.id}) was interrupted, and it "
        "is unknown whether it happened. It was not made again.",
        Next("resolve", call=intent.id),
        Next("continue"),
        invocation=intent.id,
    )


def open_outcome_error(call: ToolInvocation, relation: str) -> Fenced:
    """Return the error for a call that is refused because the outcome of an earlier call is open."""
    cause = f"It {call.failure}, and" if call.ended_with_error else "It was interrupted, and"
    state = {
        INTENDED: "It is running now. Wait until it ends.",
        REVERSING: "It is being reversed now. Wait until that ends.",
        UNKNOWN: f"{cause} it is unknown whether it happened.",
        REVERSE_UNKNOWN: "Its reversal was interrupted, and it is unknown whether that happened.",
    }[call.status]
    return Fenced(
        f"{call} (invocation {call.id}) is {call.status}. {relation} {state}",
        *([Next("resolve", call=call.id)] if call.status in (UNKNOWN, REVERSE_UNKNOWN) else []),
        Next("continue"),
        invocation=call.id,
    )


def as_bubble_up(error: AgentGitError) -> AgentGitError:
    """Make an error a `GraphBubbleUp`, too, which LangGraph neither reports to the model nor retries."""
    kind = type(error)
    if not issubclass(kind, GraphBubbleUp):
        namespace = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        error.__class__ = type(kind.__name__, (kind, GraphBubbleUp), namespace)
    return error
