"""The codes that a plan gives: who shows one has seen exactly what would be done, and nothing has changed since.

A code is a hash of the plan, and of the newest operation of the session: once it was used, it names what was done, and
never lets the same be done a second time.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agentgit.errors import Conflict
from agentgit.values import to_json

if TYPE_CHECKING:
    from agentgit.effects import RollbackPlan
    from agentgit.handles.session import Session
    from agentgit.repository import Repository
    from agentgit.sessions.operation import Operation

PREFIX = "mcp-"
"""The beginning of the request id of an operation that was confirmed here."""


def of_rollback(
    repo: Repository, session: Session, branch: str | None, plan: RollbackPlan, *, force: bool, **how: Any
) -> str:
    """Return the code of a rollback.

    Args:
        repo: The repository of the session.
        session: The session of the branch.
        branch: The one that is left; None is the current one.
        plan: The plan to confirm.
        force: True if what cannot be undone is kept.
        how: The other options that were asked for.
    """
    return _code(repo, session, plan, session.branch(branch).id, force, how)


def of_switch(repo: Repository, session: Session, branch: str, plan: RollbackPlan, *, force: bool) -> str:
    """Return the code of a switch that brings the world along; the arguments are those of `of_rollback`."""
    return _code(repo, session, plan, session.branch(branch).id, force, {})


def _code(
    repo: Repository, session: Session, plan: RollbackPlan, branch_id: int, force: bool, how: dict[str, Any]
) -> str:
    files = plan.files.to_dict() if plan.files is not None else None
    newest = [operation.id for operation in session.operations()[:1]]
    seen = [session.id, branch_id, plan.kind, plan.checkpoint_id, plan.as_request(), files, force, how, newest]
    return sha256(to_json(seen)).hexdigest()[:16]


def done_before(repo: Repository, session: Session, code: str) -> Operation | None:
    """Find the operation that a code has led to already; None if it has not."""
    return next((one for one in session.operations() if one.request_id == PREFIX + code), None)


def expect(code: str, now: str, plan: RollbackPlan) -> None:
    """Check that a code belongs to the plan as it is now.

    Raises:
        Conflict: It does not.
    """
    if code != now:
        raise Conflict(f"Nothing was done: this is not the plan of confirm={code!r}. Plan again, and look. Now: {plan}")
