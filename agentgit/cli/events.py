"""The commands for events: events, audit."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Annotated, Any

import typer

from agentgit.cli import output
from agentgit.cli.options import TIME_HELP, repository
from agentgit.render.views import lists
from agentgit.sessions.events import Event
from agentgit.values import parse_time

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
        chosen: Any = {"session": session, "kinds": kinds, "since": since_time}
        if after is None:
            matches = list(repo.events.newest(limit=limit, **chosen))
        else:
            matches = [] if follow else list(repo.events.list(after=after, **chosen))
        if not follow:
            output.emit_list(matches, lists.events, Event.to_dict)
            return
        start = after or (matches[-1].cursor if matches else repo.events.end())
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # which service managers send
        with suppress(KeyboardInterrupt):
            for event in matches:
                _print_now(event)
            for event in repo.events.follow(after=start, **chosen):
                if event not in matches:
                    _print_now(event)


def _print_now(event: Event) -> None:
    """Write one event of a stream immediately; as JSON it is one line."""
    if output.as_json():
        output.stream(f"{output.dump(event.to_dict())}\n")
    else:
        output.show(lists.events([event]))
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
        output.emit_list(matches, lambda shown: lists.events(shown, user_names), Event.to_dict)
