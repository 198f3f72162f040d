"""Why a call was not made, and what to do next; and how that ends the turn."""

from __future__ import annotations

from typing import Any

from langgraph.errors import GraphBubbleUp

from agentgit.agents.turn.recorded_results import Unreadable
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import INTENDED, REVERSE_UNKNOWN, REVERSING, UNKNOWN
from agentgit.errors import AgentGitError, Fenced
from agentgit.store.records.journal import Intent

UNREACHABLE = (
    "The class of its tool has a run() or arun() of its own, so that it cannot be answered from the record: put the "
    "work into _run() and _arun()"
)


def require_same(intent: Intent, args: Any) -> None:
    """Check that a call has the same arguments as before.

    Raises:
        Fenced: Its arguments are different.
    """
    if args != intent.args:
        raise Fenced(
            f"The call {intent.tool_call_id} of {intent.tool_name} was made before, with other arguments: {args}. "
            "It was not made again. Give a call that is to be another one an id of its own."
        )


def unreachable(intent: Intent) -> Fenced:
    """Refuse a call that is done, and of whose tool nobody can answer it."""
    return Fenced(
        f"The call of {intent.tool_name} with {intent.args} is done already, and was not made again. {UNREACHABLE}, or "
        "go back before it with agent.rollback(...)."
    )


def unmatched(call: ToolInvocation, intent: Intent) -> Fenced:
    """Refuse a call of a task that runs again, because one that it made before has not come again.

    Args:
        call: The earlier call.
        intent: The call that is refused.
    """
    settle = (
        f"repo.resolve({call.id}, 'happened') or repo.resolve({call.id}, 'did_not_happen')"
        if call.status == UNKNOWN
        else "it is done, so repo.resolve() has nothing to decide"
    )
    return Fenced(
        f"This task runs again, and calls {intent.tool_name} with {intent.args}. Before, it called {call} (invocation "
        f"{call.id}, {call.status}), which cannot be undone and has not come again; so nobody can tell whether this is "
        f"another call, or that one with other arguments. It was not made. Settle the earlier one ({settle}); then let "
        "the task call it with the same arguments first, name in identity_args those that count, go back before it "
        "with agent.rollback(..., force=True), or wrap with fence='off' if both are meant. Go on with "
        "agent.invoke(None).",
        invocation=call.id,
    )


def standing_already(call: ToolInvocation, *, is_reachable: bool) -> Fenced:
    """Refuse a call because the same one stands."""
    where = "" if is_reachable else f" {UNREACHABLE}."
    return Fenced(
        f"{call} stands already (invocation {call.id}), and the same call was not made again.{where} Change its "
        "identity arguments if it is to be another one, or have it taken back first.",
        invocation=call.id,
    )


def unreadable(call: ToolInvocation, error: Unreadable) -> Fenced:
    """Refuse a call that is done, and whose result cannot be given back."""
    return Fenced(
        f"{call} is done already (invocation {call.id}), and was not made again; but {error}. Let the tool return "
        "plain data, or a Command of plain data; go back before this call with agent.rollback(...).",
        invocation=call.id,
    )


def broken_off(intent: Intent, invocation_id: int | None) -> Fenced:
    """Refuse a call because it was broken off in this turn."""
    return Fenced(
        f"The call {intent.tool_call_id} of {intent.tool_name} (invocation {invocation_id}) was broken off, and nobody "
        "knows whether it happened. It was not made again. Look, and say so: "
        f"repo.resolve({invocation_id}, 'happened', result=...) or repo.resolve({invocation_id}, 'did_not_happen'). "
        "Then go on with this turn: agent.invoke(None).",
        invocation=invocation_id,
    )


def refusal(call: ToolInvocation, what: str) -> Fenced:
    """Refuse a call because of one of which nobody can tell what it left in the world.

    Args:
        call: The earlier call.
        what: Its relation to the call that was refused.
    """
    left = f"It raised {call.error_message}, and" if call.has_raised else "It was broken off, and"
    todo = {
        INTENDED: "It runs at this moment. Wait until it has ended, and go on with this turn: agent.invoke(None).",
        REVERSING: "It is being reversed at this moment. Wait until that has ended, and go on: agent.invoke(None).",
        UNKNOWN: (
            f"{left} nobody knows whether it happened. Look, and say so: "
            f"repo.resolve({call.id}, 'happened', result=...) or repo.resolve({call.id}, 'did_not_happen'). Then go on "
            "with this turn: agent.invoke(None)."
        ),
        REVERSE_UNKNOWN: (
            "Its reversal was broken off, and nobody knows whether that happened. Look, and say so: "
            f"repo.resolve({call.id}, 'happened') or repo.resolve({call.id}, 'did_not_happen'). Then go on with this "
            "turn: agent.invoke(None)."
        ),
    }[call.status]
    return Fenced(f"{call} (invocation {call.id}) is {call.status}. {what} {todo}", invocation=call.id)


def unswallowed(error: AgentGitError) -> AgentGitError:
    """Make an error that ends the turn: a ToolNode must not tell the model of a refused call as of a failed one.

    It stays what it was, and becomes one of those that LangGraph passes through whatever handles a tool's errors, and
    whatever retries a node.
    """
    if not isinstance(error, GraphBubbleUp):
        error.__class__ = _BUBBLING[type(error)]
    return error


class _Bubbling(dict[type[AgentGitError], Any]):
    """The classes of such errors, made when they are first needed."""

    def __missing__(self, kind: type[AgentGitError]) -> Any:
        of_kind = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        return self.setdefault(kind, type(kind.__name__, (kind, GraphBubbleUp), of_kind))


_BUBBLING = _Bubbling()
