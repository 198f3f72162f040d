"""The page of the audit trail, and the live feed that the pages listen to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from agentgit.sessions.events import KINDS
from agentgit.web.api.asking import LARGEST_ID
from agentgit.web.pages.visiting import Visit

router = APIRouter()

MOST = 200
"""The number of events that the page shows."""


@router.get("/audit")
def audit(
    visit: Visit,
    session: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    kind: Annotated[str, Query(max_length=100)] = "*",
) -> Response:
    """Show what happened, the newest first."""
    found = visit.repo.events.newest(session=session, kinds=kind or "*", limit=MOST)
    of = visit.repo.session(session).info if session is not None else None
    me = visit.repo.user
    names = {one.id: one.name for one in (visit.repo.users.all() if me.is_admin else [me])}
    groups = sorted({name.partition(".")[0] for name in KINDS})
    return visit.page("audit", events=found[::-1], of=of, kind=kind, groups=groups, kinds=KINDS, names=names)
