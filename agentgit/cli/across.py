"""The commands that put two places side by side, or carry one elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import AsJson, Where, repository
from agentgit.render import diff as diffs
from agentgit.render import records
from agentgit.render.sessions import session_lines


def _places(words: list[str]) -> tuple[str | None, str, str]:
    """Read `[SESSION] A B`."""
    if len(words) not in (2, 3):
        raise typer.BadParameter("give two places, and before them a session if it is not the most recent one")
    (*session, a, b) = words
    return session[0] if session else None, a, b


def diff(
    places: Annotated[list[str], typer.Argument(metavar="[SESSION] A B", help="Two places like main#7 or HEAD.")],
    other: Annotated[str | None, typer.Option("--other", metavar="SESSION", help="B is of this session.")] = None,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints: state, messages, tool calls, files, tokens."""
    session, a, b = _places(places)
    with repository(db) as repo:
        found = repo.diff(a, b, session, other=other)
        output.emit(as_json, found.to_dict, lambda width: diffs.lines(found, width=width))


def compare(
    places: Annotated[list[str], typer.Argument(metavar="[SESSION] A B", help="Two branches, or places like main#7.")],
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Tell what two branches did since they parted."""
    session, a, b = _places(places)
    with repository(db) as repo:
        found = repo.compare(a, b, session)
        output.emit(as_json, found.to_dict, lambda width: diffs.lines(found, width=width))


def start(
    session: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new session.")],
    template: Annotated[
        str, typer.Argument(metavar="SESSION[@REF]", help="What it begins as, like support-42@main#3; else its HEAD.")
    ],
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Make a session that begins as a checkpoint of another one, with a world of its own."""
    with repository(db) as repo:
        made = repo.ensure_session(session, template)
        output.emit(
            as_json, lambda: records.of_session(made), lambda width: session_lines([made], width=width, zone=None)
        )
