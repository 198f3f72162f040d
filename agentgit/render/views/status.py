"""Status of an agent: its session, its branch, its head, and the tree."""

from __future__ import annotations

from agentgit.checkpoints import Checkpoint
from agentgit.render import html, svg
from agentgit.render.lines import Line, Span
from agentgit.render.text import clean, count
from agentgit.render.views.log import reference, title
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.operation import Operation
from agentgit.sessions.session import OPEN, RUNNING


def lines(session: ExternalSession, branch: InternalSession, head: Checkpoint | None) -> list[Line]:
    """Return lines that show where an agent stands.

    Args:
        session: The session.
        branch: The branch that the agent runs on.
        head: The newest checkpoint of the branch; None before the first.
    """
    status = "" if branch.status == OPEN else f" ({clean(branch.status)})"
    at = [Span("no checkpoints yet")]
    if head is not None:
        at = [Span(f"{reference(head)} "), Span(title(head), "" if head.is_auto else "name")]
    calls = Span(f"  {count(branch.tool_invocation_count, 'tool call')}", "dim")
    return [
        (Span("session  ", "dim"), Span(clean(session.session_name), "heading")),
        (Span("branch   ", "dim"), Span(clean(branch.name), "head"), Span(status, "bad"), calls),
        (Span("head     ", "dim"), *at),
    ]


def stopped(operation: Operation) -> Line:
    """Return a line that shows an operation that is not done, and the command that finishes it if it stopped half way.

    Args:
        operation: The operation.
    """
    if operation.status == RUNNING:
        return (Span("running  ", "dim"), Span(f"{clean(operation.kind)} {operation.id}", "bad"))
    told = f"{clean(operation.kind)} {operation.id}"
    return (Span("stopped  ", "dim"), Span(told, "bad"), Span(f"; agentgit resume {operation.id} finishes it"))


def page(session: ExternalSession, branch: InternalSession, head: Checkpoint | None, tree: Tree) -> str:
    """Draw where an agent stands as HTML, with the picture of the tree.

    Args:
        session: The session.
        branch: The branch that the agent runs on.
        head: The newest checkpoint of the branch; None before the first.
        tree: The tree of the session.
    """
    return f"<div>{html.pre(lines(session, branch, head))}{svg.page(tree)}</div>"
