"""The forms of the session page that change a session: fork, rename, and edit a message and run again."""

from __future__ import annotations

import threading
from hashlib import sha256
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Form, Query
from starlette.responses import Response

from agentgit.errors import Conflict, InvalidInput, NotFound, RollbackIncomplete
from agentgit.handles.session import Session
from agentgit.sessions import InternalSession
from agentgit.sessions.messages import is_text, text_of, with_text
from agentgit.sessions.session import DONE, OPEN
from agentgit.web.api.dependencies import BranchName, CheckpointId, Id
from agentgit.web.pages.dependencies import Name, Text, Visit, Visitor, parse_checkpoint_ref
from agentgit.web.pages.rendering import query
from agentgit.web.problems import LOG
from agentgit.web.security import require_same_site

router = APIRouter(prefix="/sessions/{session_id}")

MAX_RUNS = 8
"""The maximum number of turns that pages have started and that still run, in this process."""

_free_runs = threading.BoundedSemaphore(MAX_RUNS)


def _show_branch(visit: Visitor, session_id: int, branch: str) -> Response:
    return visit.redirect(f"/sessions/{session_id}?{query(branch=branch)}")


@router.post("/fork", dependencies=[Depends(require_same_site)])
def fork(visit: Visit, session_id: Id, ref: Text, name: Name = "", form_id: Text = "") -> Response:
    """Create a branch that starts at a checkpoint, and show it. A form that is sent twice makes one branch.

    A form that was sent, changed and sent again makes another one.
    """
    request_id = f"web-{sha256(repr((form_id, ref, name)).encode()).hexdigest()[:32]}" if form_id else None
    report = visit.repo.session(session_id).fork(parse_checkpoint_ref(ref), name=name or None, request_id=request_id)
    return _show_branch(visit, session_id, report.branch)


@router.post("/branches/rename", dependencies=[Depends(require_same_site)])
def rename_branch(visit: Visit, session_id: Id, branch: Text, name: Name) -> Response:
    return _show_branch(visit, session_id, visit.repo.session(session_id).rename_branch(branch, name).name)


@router.post("/checkpoints/rename", dependencies=[Depends(require_same_site)])
def rename_checkpoint(visit: Visit, session_id: Id, ref: Text, name: Name = "") -> Response:
    point = visit.repo.session(session_id).annotate(parse_checkpoint_ref(ref), name=name or None)
    return visit.redirect(f"/sessions/{session_id}?{query(at=point.id)}")


# -- edit a message and run again


def has_graph(session: Session, branch: str | None = None) -> bool:
    """Return whether this process can run turns of the session."""
    try:
        session.agent(branch)
    except InvalidInput:
        return False
    return True


def _message_to_edit(session: Session, branch: str, message_id: str) -> dict[str, Any]:
    for message in session.branch(branch).conversation_history:
        if message["id"] == message_id and message["role"] == "user":
            return message
    raise NotFound("This message is not in the conversation of the branch any more. Reload the page.")


@router.get("/edit")
def plan_edit(
    visit: Visit,
    session_id: Id,
    message: Annotated[str, Query(max_length=300)] = "",
    branch: BranchName = None,
    at: CheckpointId = None,
) -> Response:
    """Show a message to edit, and what rolling back to it would do: that message, or the last one at a checkpoint."""
    session = visit.repo.session(session_id)
    if at is not None:
        point = session.get_checkpoint(at)
        branch = point.metadata["branch"]
        message = next((str(m["id"]) for m in reversed(point.conversation_history) if m["role"] == "user"), "")
        if not message:
            raise NotFound("No user has written a message before this checkpoint. Choose a later one.")
    line = session.branch(branch).name
    original = _message_to_edit(session, line, message)
    content = original["content"]
    plan = session.plan_rollback(f"message:{message}", branch=line)
    return visit.page(
        "session_edit",
        session=session.info,
        plan=plan,
        text=text_of(original | {"content": list(filter(is_text, content))}) if isinstance(content, list) else content,
        keeps_parts=not isinstance(with_text(content, ""), str),
        message=message,
        branch=line,
        can_run=has_graph(session, line),
        request_id=f"web-{uuid4().hex}",
    )


@router.post("/edit", dependencies=[Depends(require_same_site)])
def edit(
    visit: Visit,
    session_id: Id,
    message: Text,
    branch: Text,
    plan: Text,
    request_id: Text,
    text: Annotated[str, Form(max_length=100_000)],
    force: Annotated[bool, Form()] = False,
) -> Response:
    """Roll back to the point before a message, start a turn with another text, and show the new branch.

    A form that is sent several times, also to several processes, makes one branch and runs one turn: the rollback has
    the id of the form, and a turn begins only if nothing has run on its branch.
    """
    session, ref = visit.repo.session(session_id), f"message:{message}"
    text = text.replace("\r\n", "\n")  # as forms send line ends
    if not text.strip():
        raise InvalidInput("The message is empty. Go back and write one.")
    earlier = next((one for one in session.operations() if one.request_id == request_id), None)
    if (
        earlier is not None
        and earlier.status == DONE
        and not _is_new(session, line := session.branch(earlier.internal_session_id))
    ):
        return _show_branch(visit, session_id, line.name)
    content = with_text(_message_to_edit(session, branch, message)["content"], text)
    if not has_graph(session, branch):
        raise Conflict("Nothing was changed: this server cannot run the agent of the session any more.")
    _reserve_run()
    is_started = False
    try:
        report = session.rollback(ref, branch=branch, force=force, request_id=request_id, plan=plan)
        agent = session.agent(report.branch)  # its turn fails if another one has run since
        if _is_new(session, session.branch(report.branch)):
            threading.Thread(target=_run, args=(agent, content), name="agentgit-page-turn", daemon=True).start()
            is_started = True
    except RollbackIncomplete as error:
        return visit.redirect(f"/operations/{error.operation}")
    finally:
        if not is_started:
            _release_run()
    return _show_branch(visit, session_id, report.branch)


def _reserve_run() -> None:
    """Reserve one of the turns that pages may run at a time."""
    if not _free_runs.acquire(blocking=False):
        raise Conflict(
            f"Nothing was changed: {MAX_RUNS} turns are running on this server. Wait until one has ended, go back, and "
            "send the message again."
        )


def _release_run() -> None:
    _free_runs.release()


def _is_new(session: Session, branch: InternalSession) -> bool:
    """Return whether nothing has run on a branch since it was created."""
    heads = session.log(branch=branch).page(1).items
    return branch.status == OPEN and all(head.metadata["kind"] == "branch" for head in heads)


def _run(agent: Any, content: str | list[Any]) -> None:
    try:
        agent.invoke({"messages": [{"role": "user", "content": content}]})
    except Conflict as error:
        LOG.info("A turn that a page started did not run: %s", error)
    except Exception:  # noqa: BLE001  # a turn can raise anything, and nobody waits for it
        LOG.exception("A turn that a page started failed.")
    finally:
        _release_run()
