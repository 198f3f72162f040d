"""The commands that read the history: log, search, tag, diff, compare."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output, references
from agentgit.cli.options import AsJson, DatabaseOption, Limit, OfBranch, complete_checkpoint, repository, usage
from agentgit.cli.output import bar
from agentgit.errors import InvalidInput
from agentgit.render import records
from agentgit.render.text import Line, Span
from agentgit.render.views import diff as diffs
from agentgit.render.views import log as logs
from agentgit.render.views.lists import session_lines

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.handles.log import Log
    from agentgit.handles.session import Session
    from agentgit.repository import Repository
    from agentgit.values import PrintableDrawing

After = Annotated[
    str | None,
    typer.Option("--after", metavar="CURSOR", help="Go on behind the page before, or in a log behind a place."),
]
Own = Annotated[bool, typer.Option("--branch-only", help="Only those made on the branch, not of its whole path.")]
Every = Annotated[bool, typer.Option("--all-branches", help="Of all branches of the session, not of the path.")]
Time = "like 2026-11-21 or '2026-11-21 14:30', in this machine's zone."


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(log)
    app.command(cls=usage("[SESSION[@BRANCH]]", "TEXT"))(search)
    app.command(cls=usage("[SESSION]", "[PLACE NAME]"))(tag)


def log(
    session: OfBranch = None,
    limit: Limit = None,
    after: After = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only those called exactly so.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only those made then or later, {Time}")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only those made then or earlier.")] = None,
    tagged: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only the one with this tag.")] = None,
    author: Annotated[str | None, typer.Option(metavar="USER", help="Only those that this user made.")] = None,
    auto: Annotated[
        bool | None, typer.Option("--auto/--named", help="Only automatic ones; or only those somebody asked for.")
    ] = None,
    branch_only: Own = False,
    all_branches: Every = False,
    count: Annotated[bool, typer.Option("--count", help="Write only how many there are.")] = False,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a branch, the newest first."""
    if branch_only and all_branches:
        raise InvalidInput("Write --branch-only or --all-branches, not both.")
    with repository(db) as repo:
        found, branch = references.parse_session(repo, session)
        asked = found.log(
            branch=branch,
            which="all" if all_branches else "branch" if branch_only else "path",
            name=name,
            since=parse_time(since),
            until=parse_time(until),
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
    """Read checkpoints of a log, up to the limit or to the end."""
    from agentgit.checkpoints.queries import LARGEST_PAGE

    shown: list[Checkpoint] = []
    while limit is None or len(shown) < limit:
        page = asked.page(min(LARGEST_PAGE, limit - len(shown) if limit else LARGEST_PAGE), after=after)
        shown, after = shown + page.items, page.next
        if after is None:
            break
    return shown


def _place(repo: Repository, session: Session, branch: str | None, after: str | None) -> Checkpoint | str | None:
    """Return where to continue: the cursor itself, or the checkpoint that a reference names."""
    from agentgit.checkpoints.queries import mark

    try:
        mark(after)
    except InvalidInput:
        return session.get_checkpoint(after or "", branch=branch)
    return after


def _nothing(asked: Log, after: str | None) -> list[Line]:
    return [(Span("no matching checkpoints" if after or asked.is_filtered else "no checkpoints yet"),)]


def parse_time(text: str | None) -> datetime | None:
    """Parse an ISO 8601 time; without an offset it is in this machine's time zone."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{text!r} is not a time; write it like 2026-11-21 or '2026-11-21 14:30'.") from error


def search(
    words: Annotated[
        list[str], typer.Argument(metavar="[SESSION[@BRANCH]] TEXT", help="What to look for; quote several words.")
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 20,
    after: After = None,
    all_branches: Every = False,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Find messages, tool calls and named checkpoints by words: names first, then the newest."""
    with repository(db) as repo:
        session, branch, text = references.parse_required(repo, words)
        with bar("reading", as_json) as progress:
            found = session.search(
                text, branch=branch, all_branches=all_branches, limit=limit, after=after, progress=progress
            )
        output.emit(as_json, found.to_dict, lambda width: logs.hit_lines(found, width=width, zone=None))


def tag(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION] [PLACE NAME]",
            autocompletion=complete_checkpoint,
            help="The place and its new name; else the tags are listed.",
        ),
    ] = None,
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="A description of the checkpoint.")] = None,
    delete: Annotated[str | None, typer.Option("--delete", "-d", metavar="NAME", help="Take this tag away.")] = None,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Tag a checkpoint, which is kept as long as it has the tag; or list the tags."""
    given = list(words or [])
    if len(given) > (1 if delete else 3):
        raise InvalidInput(f"{' '.join(given)}: write a session, a place and a name; put quotes around each.")
    # Two words are a place and a name; with one or three the first is a session.
    session = given[0] if len(given) in (1, 3) else None
    with repository(db) as repo:
        if delete is not None:
            gone = repo.session(session).untag(delete)
            output.line(as_json, gone.to_dict, f"{gone.reference} no longer has that tag")
        elif len(given) > 1:
            made = repo.session(session).tag(given[-2], given[-1], description=description)
            output.emit(as_json, made.to_dict, lambda width: logs.tag_lines([made], width=width, zone=None))
        else:
            found = repo.session(session).tags()
            nothing: list[Line] = [(Span("no tags yet; add one with: agentgit tag PLACE NAME"),)]
            output.emit(
                as_json,
                lambda: [one.to_dict() for one in found],
                lambda width: logs.tag_lines(found, width=width, zone=None) or nothing,
            )


def _places(words: list[str]) -> tuple[str | None, str, str]:
    """Parse `[SESSION] A B`."""
    if len(words) not in (2, 3):
        raise typer.BadParameter("give two places, and before them a session if it is not the most recent one")
    (*session, a, b) = words
    return session[0] if session else None, a, b


AsPage = Annotated[bool, typer.Option("--html", help="Print an HTML page.")]


def diff(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] A B", autocompletion=complete_checkpoint, help="Two checkpoints, like main#7 and HEAD."
        ),
    ],
    other: Annotated[str | None, typer.Option("--other", metavar="SESSION", help="Look up B in this session.")] = None,
    patch: Annotated[bool, typer.Option("--patch", "-p", help="Also show file changes line by line.")] = False,
    as_page: AsPage = False,
    db: DatabaseOption = None,
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


def _write_page(title: str, value: PrintableDrawing, as_json: bool) -> None:
    """Write a value as HTML.

    Raises:
        InvalidInput: `--json` was given too.
    """
    if as_json:
        raise InvalidInput("Write --html or --json, not both.")
    output.page(title, value._repr_html_())


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] A B",
            autocompletion=complete_checkpoint,
            help="Two branches, or checkpoints like main#7.",
        ),
    ],
    as_page: AsPage = False,
    db: DatabaseOption = None,
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
    db: DatabaseOption = None,
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
