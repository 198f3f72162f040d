"""Routes of events: the newest ones, and a live feed as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from agentgit.repository import Repository
from agentgit.repository.events import PAGE
from agentgit.sessions.events import Event
from agentgit.web.api import responses
from agentgit.web.api.dependencies import MAX_ID, Caller, Limit, failures
from agentgit.web.api.responses import JsonResponse
from agentgit.web.event_stream import feed
from agentgit.web.site import Site, site_of

router = APIRouter(tags=["events"])

OfSession = Annotated[
    int | None, Query(ge=1, le=MAX_ID, description="Only events of this session; by default of all yours.")
]
Kinds = Annotated[list[str] | None, Query(max_length=40, description="A kind, like `rollback.*`; repeatable.")]


@router.get("/events", response_model=responses.EventsAnswer, responses=failures())
def list_events(
    caller: Caller,
    session: OfSession = None,
    kind: Kinds = None,
    since: datetime | None = None,
    limit: Limit = 50,
) -> JsonResponse:
    """List the newest events, in the order of the feed."""
    events = caller.events.newest(session=session, kinds=kind or "*", since=since, limit=limit)
    return JsonResponse({"items": [event.to_dict() for event in events]})


@router.get(
    "/events/live",
    response_class=StreamingResponse,
    responses={**failures(429), 200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
)
def follow_events(
    request: Request,
    caller: Caller,
    session: OfSession = None,
    after: Annotated[str | None, Query(max_length=50, description="The cursor of your last event.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=50)] = None,
) -> StreamingResponse:
    """Stream events as they happen. To continue, send the cursor of your last event in the header `Last-Event-ID`."""
    start = last_event_id or after
    site = site_of(request)
    return live(site, caller, session, start, lambda: site.is_closing)


def live(
    site: Site, repo: Repository, session_id: int | None, start: str | None, is_over: Callable[[], bool]
) -> StreamingResponse:
    """Open a live feed. It counts towards the user's limit until it ends or the client disconnects."""

    def read(cursor: str) -> Sequence[Event]:
        return list(islice(repo.events.list(session=session_id, after=cursor), PAGE))

    start = start or repo.events.end()
    read(start)  # so that the response reports what is wrong with the session or the cursor
    if not site.feed_counter.acquire(repo.user.id):
        detail = f"You have {site.limits.feeds} live feeds open, which is the limit. Close one, and try again."
        raise HTTPException(429, detail, {"retry-after": "5"})
    return Feed(feed(read, start, is_over), lambda: site.feed_counter.release(repo.user.id))


class Feed(StreamingResponse):
    def __init__(self, content: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
