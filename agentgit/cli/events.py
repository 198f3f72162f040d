"""The commands for events: events, audit."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output
from agentgit.cli.options import TIME_HELP, repository
from agentgit.render.view import View
from agentgit.render.views import lists
from agentgit.values import parse_time

if TYPE_CHECKING:
    from agentgit.sessions.events import Event

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        "-k",
        metavar="KIND",
        help="Only events of this kind, like checkpoint.created or rollback.*; repeatable.",
    ),
]
OfSession = Annotated[
    str | None, typer.Argument(metavar="SESSION", help="The name or id of a session; by default all your sessions.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep running until Ctrl-C or SIGTERM.")]


def events(
    session: OfSession = None,
    kind: Kinds = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Only events at this time or later, {TIME_HELP}")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Only events after this place; --json shows the cursors."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="The number of newest events to show; not with --after."
        ),
    ] = 50,
    follow: Follow = False,
) -> None:
    kinds, since_time = kind or "*", parse_time(since)
    with repository() as repo:
        if after is not None and not follow:
            matches = list(repo.events.list(session=session, after=after, kinds=kinds, since=since_time))
        else:
            newest = (
                repo.events.newest(session=session, kinds=kinds, since=since_time, limit=limit) if after is None else []
            )
            matches = list(newest)
        if not follow:
            output.emit(
                lambda: [event.to_dict() for event in matches],
                lambda: lists.events(matches),
            )
            return
        start = after or (matches[-1].cursor if matches else repo.events.end())
        with _until_stopped():
            for event in matches:
                _print_event(event)
            for event in repo.events.follow(session=session, after=start, kinds=kinds, since=since_time):
                if event not in matches:
                    _print_event(event)


@contextmanager
def _until_stopped() -> Iterator[None]:
    """Run the block until Ctrl-C or SIGTERM, then leave it without an error.

    SIGTERM, which service managers send, raises KeyboardInterrupt here, so that context managers still clean up.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        yield


def _print_event(event: Event) -> None:
    _print_result(event.to_dict, lambda: lists.events([event]))


def _print_result(data: Callable[[], Any], view: Callable[[], View]) -> None:
    """Write one result of a stream immediately; as JSON it is one line."""
    if output.as_json():
        output.stream(f"{output.dump(data())}\n")
    else:
        output.show(view())
    output.flush()


def audit(
    kind: Kinds = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="The number of newest events to show.")
    ] = 50,
) -> None:
    with repository() as repo:
        matches = repo.events.audit(kinds=kind or "*", limit=limit)
        user_names = {user.id: user.name for user in repo.users.list()}
        output.emit(
            lambda: [event.to_dict() for event in matches],
            lambda: lists.events(matches, user_names),
        )
