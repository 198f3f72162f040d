"""The commands that find checkpoints: log, search, tag."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output, references
from agentgit.cli.options import AsJson, Limit, OfBranch, Where, places_too, repository, usage
from agentgit.cli.progress import bar
from agentgit.errors import InvalidInput
from agentgit.render import records
from agentgit.render.lines import Line, Span
from agentgit.render.views import log as logs
from agentgit.render.views import search as searches

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.handles.log import Log
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

After = Annotated[
    str | None,
    typer.Option("--after", metavar="CURSOR", help="Continue after this cursor, or in a log after a checkpoint."),
]
Own = Annotated[
    bool, typer.Option("--branch-only", help="Only checkpoints of the branch itself, not of its whole path.")
]
Every = Annotated[bool, typer.Option("--all-branches", help="Include all branches of the session.")]
Time = "like 2026-11-21 or '2026-11-21 14:30', in the local time zone."


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(log)
    app.command(cls=usage("[SESSION[@BRANCH]]", "TEXT"))(search)
    app.command(cls=usage("[SESSION]", "[PLACE NAME]"))(tag)


def log(
    session: OfBranch = None,
    limit: Limit = None,
    after: After = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only checkpoints with exactly this name.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only those from this time on, {Time}")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only those up to this time.")] = None,
    tagged: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only the one with this tag.")] = None,
    author: Annotated[str | None, typer.Option(metavar="USER", help="Only those by this user.")] = None,
    auto: Annotated[
        bool | None, typer.Option("--auto/--named", help="Only automatic checkpoints, or only requested ones.")
    ] = None,
    branch_only: Own = False,
    all_branches: Every = False,
    count: Annotated[bool, typer.Option("--count", help="Print only their number.")] = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a branch, newest first."""
    if branch_only and all_branches:
        raise InvalidInput("Write --branch-only or --all-branches, not both.")
    with repository(db) as repo:
        found, branch = references.path(repo, session)
        asked = found.log(
            branch=branch,
            which="all" if all_branches else "branch" if branch_only else "path",
            name=name,
            since=time_of(since),
            until=time_of(until),
            tag=tagged,
            author=author,
            auto=auto,
        )
        if count:
            number = len(asked)
            output.line(as_json, lambda: {"count": number}, str(number))
            return
        shown = _shown(asked, limit, _place(repo, found, branch, after))
        output.emit(
            as_json,
            lambda: [records.of_checkpoint(checkpoint) for checkpoint in shown],
            lambda width: logs.lines(shown[::-1], width=width, zone=None) or _nothing(asked, after),
        )


def _shown(asked: Log, limit: int | None, after: Checkpoint | str | None) -> list[Checkpoint]:
    """Read the requested number of checkpoints, or all."""
    from agentgit.checkpoints.queries import LARGEST_PAGE

    shown: list[Checkpoint] = []
    while limit is None or len(shown) < limit:
        page = asked.page(min(LARGEST_PAGE, limit - len(shown) if limit else LARGEST_PAGE), after=after)
        shown, after = shown + page.items, page.next
        if after is None:
            break
    return shown


def _place(repo: Repository, session: Session, branch: str | None, after: str | None) -> Checkpoint | str | None:
    """Return where to continue: a cursor, or any checkpoint."""
    from agentgit.checkpoints.queries import mark

    try:
        mark(after)
    except InvalidInput:
        return session.get_checkpoint(after or "", branch=branch)
    return after


def _nothing(asked: Log, after: str | None) -> list[Line]:
    return [(Span("no such checkpoints" if after or asked.is_filtered else "no checkpoints yet"),)]


def time_of(text: str | None) -> datetime | None:
    """Read a time as ISO 8601; without a zone it is this machine's."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{text!r} is no time; write like 2026-11-21 or '2026-11-21 14:30'.") from error


def search(
    words: Annotated[
        list[str], typer.Argument(metavar="[SESSION[@BRANCH]] TEXT", help="The words to find; quote several words.")
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="The maximum number of results.")] = 20,
    after: After = None,
    all_branches: Every = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Find messages, tool calls and named checkpoints: names first, then newest first."""
    with repository(db) as repo:
        session, branch, text = references.last(repo, words)
        with bar("reading", as_json) as progress:
            found = session.search(
                text, branch=branch, all_branches=all_branches, limit=limit, after=after, progress=progress
            )
        output.emit(as_json, found.to_dict, lambda width: searches.lines(found, width=width, zone=None))


def tag(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION] [PLACE NAME]",
            autocompletion=places_too,
            help="The checkpoint and its tag; without them, tags are listed.",
        ),
    ] = None,
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="A description of the tag.")] = None,
    delete: Annotated[str | None, typer.Option("--delete", "-d", metavar="NAME", help="Delete this tag.")] = None,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Tag a checkpoint, or list the tags; a tagged checkpoint is kept."""
    given = list(words or [])
    if len(given) > (1 if delete else 3):
        raise InvalidInput(f"{' '.join(given)}: write a session, a place and a name; put quotes around each.")
    # Two words are a place and a name; with one or three the first is a session.
    session = given[0] if len(given) in (1, 3) else None
    with repository(db) as repo:
        if delete is not None:
            gone = repo.session(session).untag(delete)
            output.line(as_json, gone.to_dict, f"{gone.reference} has that tag no more")
        elif len(given) > 1:
            made = repo.session(session).tag(given[-2], given[-1], description=description)
            output.emit(as_json, made.to_dict, lambda width: searches.tag_lines([made], width=width, zone=None))
        else:
            found = repo.session(session).tags()
            nothing: list[Line] = [(Span("no tags yet; give one with: agentgit tag PLACE NAME"),)]
            output.emit(
                as_json,
                lambda: [one.to_dict() for one in found],
                lambda width: searches.tag_lines(found, width=width, zone=None) or nothing,
            )
