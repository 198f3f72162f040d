"""The commands `diff`, `compare` and `start`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import AsJson, Where, places_too, repository
from agentgit.errors import InvalidInput
from agentgit.render import records
from agentgit.render.views import diff as diffs
from agentgit.render.views.sessions import session_lines

if TYPE_CHECKING:
    from agentgit.values import Drawn


def _places(words: list[str]) -> tuple[str | None, str, str]:
    """Read `[SESSION] A B`."""
    if len(words) not in (2, 3):
        raise typer.BadParameter("give two places, and before them a session if it is not the most recent one")
    (*session, a, b) = words
    return session[0] if session else None, a, b


AsPage = Annotated[bool, typer.Option("--html", help="Print an HTML page.")]


def diff(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] A B", autocompletion=places_too, help="Two checkpoints, like main#7 and HEAD."
        ),
    ],
    other: Annotated[str | None, typer.Option("--other", metavar="SESSION", help="Look up B in this session.")] = None,
    patch: Annotated[bool, typer.Option("--patch", "-p", help="Also show file changes line by line.")] = False,
    as_page: AsPage = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints: state, messages, tool calls, files, tokens."""
    session, a, b = _places(words)
    with repository(db) as repo:
        found = repo.session(session).diff(a, b, other=other)
        if as_page:
            _write_page(f"{found.from_reference} -> {found.to_reference}", found, as_json)
            return
        shown = diffs.patch(found.diff_content) if patch else []
        output.emit(as_json, found.to_dict, lambda width: [*diffs.lines(found, width=width), *shown])


def _write_page(title: str, value: Drawn, as_json: bool) -> None:
    """Write a value as HTML.

    Raises:
        InvalidInput: JSON is to be written too.
    """
    if as_json:
        raise InvalidInput("Write --html or --json, not both.")
    output.page(title, value._repr_html_())


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] A B", autocompletion=places_too, help="Two branches, or checkpoints like main#7."
        ),
    ],
    as_page: AsPage = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Show what two branches did since they diverged."""
    session, a, b = _places(words)
    with repository(db) as repo:
        found = repo.session(session).compare(a, b)
        if as_page:
            _write_page(found.heading, found, as_json)
            return
        output.emit(as_json, found.to_dict, lambda width: diffs.lines(found, width=width))


def start(
    session: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new session.")],
    template: Annotated[
        str,
        typer.Argument(
            metavar="SESSION[@REF]", help="The checkpoint to start from, like support-42@main#3; by default HEAD."
        ),
    ],
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Create a session from a checkpoint of another one, with a world of its own."""
    with repository(db) as repo:
        made = repo.session(session, create=True, template=template)
        output.emit(
            as_json,
            lambda: records.of_session(made.info),
            lambda width: session_lines([made.info], width=width, zone=None),
        )
