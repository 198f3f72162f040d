"""The commands that read the history: log, search, tag, diff."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.checkpoints.queries import Tag
from agentgit.cli import output, references
from agentgit.cli.completion import complete_checkpoint
from agentgit.cli.options import COMMAND_PATH, TIME_HELP, Limit, OfBranch, repository
from agentgit.cli.output import bar
from agentgit.errors import InvalidInput, NotFound
from agentgit.render.records import record
from agentgit.render.text import clean, place
from agentgit.render.view import Span, View
from agentgit.render.views import checkpoints as views
from agentgit.render.views import diff as diffs
from agentgit.values import parse_time, quote_name

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.checkpoints.comparison import Comparison
    from agentgit.checkpoints.diff import Diff
    from agentgit.handles.log import Log
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

Own = Annotated[
    bool, typer.Option("--branch-only", help="Only checkpoints made on this branch, not on its whole path.")
]
Every = Annotated[bool, typer.Option("--all-branches", help="Checkpoints of all branches of the session.")]


def log(
    session_ref: OfBranch = None,
    limit: Limit = None,
    after: Annotated[str | None, typer.Option(metavar="REF", help="Continue after this checkpoint.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only checkpoints with exactly this name.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Only checkpoints made at this time or later, {TIME_HELP}")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Only checkpoints made at this time or earlier, {TIME_HELP}")
    ] = None,
    tagged: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Only the checkpoint with this tag.")
    ] = None,
    author: Annotated[str | None, typer.Option(metavar="USER", help="Only checkpoints that this user created.")] = None,
    auto: Annotated[
        bool | None,
        typer.Option(
            "--auto/--named", help="Only automatic checkpoints, or only checkpoints that were created on request."
        ),
    ] = None,
    with_calls: Annotated[
        bool | None,
        typer.Option(
            "--with-calls/--without-calls", help="Only checkpoints with, or without, tool calls on the path to them."
        ),
    ] = None,
    branch_only: Own = False,
    all_branches: Every = False,
    count: Annotated[bool, typer.Option("--count", help="Print only the number.")] = False,
) -> None:
    if branch_only and all_branches:
        raise InvalidInput("Write --branch-only or --all-branches, not both.")
    with repository() as repo:
        session, branch = references.parse_session(repo, session_ref)
        query = session.log(
            branch=branch,
            which="all" if all_branches else "branch" if branch_only else "path",
            name=name,
            since=parse_time(since),
            until=parse_time(until),
            tag=tagged,
            author=author,
            auto=auto,
            with_calls=with_calls,
        )
        if count:
            total = len(query)
            output.line(lambda: {"count": total}, str(total))
            return
        start = session.get_checkpoint(after, branch=branch) if after is not None else None
        checkpoints = list(islice(_iterate(query, start), limit))
        listed = Checkpoints(checkpoints[::-1])
        listed.questions = query.questions if start is None else []
        has_none = not checkpoints and (query.is_filtered or start is not None)
        output.emit(
            lambda: [record(checkpoint) for checkpoint in checkpoints],
            lambda: [(Span("no matching checkpoints"),)] if has_none else views.log(listed, listed.questions),
            listed,
        )


def _iterate(query: Log, after: Checkpoint | str | None) -> Iterator[Checkpoint]:
    while True:
        page = query.page(after=after)
        yield from page
        if (after := page.next) is None:
            return


def search(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[SESSION[@BRANCH]] TEXT", help="The words to find; put quotes around several."),
    ],
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="The maximum number of results.")
    ] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after this place; --json shows the next one.")
    ] = None,
    all_branches: Every = False,
) -> None:
    with repository() as repo:
        session, branch, text = references.parse_optional(repo, words)
        with bar("reading") as progress:
            hits = session.search(
                text, branch=branch, all_branches=all_branches, limit=limit, after=after, progress=progress
            )
        hint: View = [(Span("Only one branch was searched: --all-branches searches the others too.", "dim"),)]
        output.emit(
            hits.to_dict,
            lambda: [*views.hits(hits), *(() if hits.items or all_branches else hint)],
            hits,
        )


def tag(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION] [REF NAME]",
            autocompletion=complete_checkpoint,
            help="A checkpoint and its new tag; without them, the tags are listed.",
        ),
    ] = None,
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="A description of the tag.")] = None,
    delete: Annotated[str | None, typer.Option("--delete", "-d", metavar="NAME", help="Remove this tag.")] = None,
) -> None:
    parts = list(words or [])
    if len(parts) > (1 if delete else 3):
        raise InvalidInput(f"{' '.join(parts)}: write a session, a reference and a name; put quotes around each.")
    # Two words are a reference and a name; with one or three the first is a session.
    session = parts[0] if len(parts) in (1, 3) else None
    with repository() as repo:
        if delete is not None:
            changed = references.changed_session(repo, session)
            removed = changed.untag(delete)
            text = f"{clean(removed.reference)} of {place(changed.reference)} no longer has that tag"
            output.line(lambda: {"session_name": changed.reference, **removed.to_dict()}, text)
        elif len(parts) > 1:
            changed = references.changed_session(repo, session, "SESSION REF NAME")
            new_tag = changed.tag(parts[-2], parts[-1], description=description)
            output.emit_at(changed, None, new_tag.to_dict, lambda: views.tags([new_tag]))
        else:
            output.emit_list(_session_of_tags(repo, session).tags(), views.tags, Tag.to_dict)


def _session_of_tags(repo: Repository, name: str | None) -> Session:
    try:
        return references.read_session(repo, name)
    except NotFound:
        if name is None or not references.has_checkpoint(repo.session(), name):
            raise
        command = f"{COMMAND_PATH.get()} {shlex.quote(clean(name))} NAME"
        raise InvalidInput(f"{quote_name(name)} is a checkpoint. Name its new tag too: {command}") from None


AsPage = Annotated[bool, typer.Option("--html", help="Print an HTML page.")]


def diff(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION] [A B]",
            autocompletion=complete_checkpoint,
            help="Two checkpoints, like main#7 and HEAD; by default what the last turn changed.",
        ),
    ] = None,
    other: Annotated[str | None, typer.Option("--other", metavar="SESSION", help="Look up B in this session.")] = None,
    since_fork: Annotated[
        bool, typer.Option("--since-fork", help="Show what each of two branches did since they diverged.")
    ] = False,
    patch: Annotated[bool, typer.Option("--patch", "-p", help="Also show file changes line by line.")] = False,
    as_page: AsPage = False,
) -> None:
    with repository() as repo:
        found: Comparison | Diff
        if since_fork:
            session, a, b = references.parse_pair(repo, words or [])
            found = session.compare(a, b)
            title, patch_lines = found.heading, []
        else:
            session, a, b = _parse_diff(repo, words or [])
            found = session.diff(a, b, other=other)
            title = f"{found.from_reference} -> {found.to_reference}"
            patch_lines = diffs.patch(found.diff_content) if patch else []
        if as_page and output.as_json():
            raise InvalidInput("Write --html or --json, not both.")
        if as_page:
            output.page(title, found._repr_html_())
            return
        view = lambda: [*diffs.differences(found), *patch_lines]  # noqa: E731
        output.emit(found.to_dict, view, None if patch_lines else found)


def _parse_diff(repo: Repository, words: list[str]) -> tuple[Session, Any, Any]:
    """Parse `[SESSION[@BRANCH]] [A [B]]`; without B it is HEAD, and without A the checkpoint before the last turn."""
    if len(words) > 1:
        return references.parse_pair(repo, words)
    a = words[0] if words and not references.is_session(repo, words[0]) else None
    session, branch = references.parse_session(repo, None if a else next(iter(words), None))
    refs = (a or session.plan_undo(branch=branch).checkpoint_id, "HEAD")
    before, after = (session.get_checkpoint(ref, branch=branch) for ref in refs)
    return session, before, after
