"""The maintenance commands: stats, retention, gc, fsck, delete."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output, references
from agentgit.cli.completion import complete_session
from agentgit.cli.options import (
    AllSchemas,
    ForceErase,
    OfBranch,
    Price,
    SchemaName,
    Session,
    Yes,
    each_schema,
    parse_prices,
    repository,
)
from agentgit.cli.output import bar
from agentgit.errors import Corrupt, InvalidInput
from agentgit.render.text import place
from agentgit.render.views import maintenance as views

if TYPE_CHECKING:
    from agentgit.checkpoints import Retention

DAY = timedelta(days=1)
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")]
Most = Annotated[
    int | None,
    typer.Option("--max", metavar="N", min=0, help="The maximum number of checkpoints to keep; 0 means no limit."),
]
After = Annotated[
    int | None,
    typer.Option(
        "--compress-after",
        metavar="N",
        min=0,
        help="Above this number, keep only the first, the newest, and the newest of each name; 0 means never.",
    ),
]
Last = Annotated[
    int | None,
    typer.Option("--keep-last", metavar="N", min=1, help="The number of newest checkpoints that are always kept."),
]
Age = Annotated[
    float | None,
    typer.Option(
        "--max-age", metavar="DAYS", min=0, help="Delete checkpoints that are older than this; 0 means no limit."
    ),
]


def retention(
    session_ref: Session = None,
    on: Annotated[bool, typer.Option("--on", help="Use the default limits.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Keep everything from now on.")] = False,
    most: Most = None,
    after: After = None,
    last: Last = None,
    age: Age = None,
    now: Annotated[bool, typer.Option("--now", help="Also delete the checkpoints that exceed the limits now.")] = False,
    dry_run: DryRun = False,
) -> None:
    if off and (now or dry_run):
        raise InvalidInput("--off keeps everything, so there is nothing to delete. Leave out --now and --dry-run.")
    with repository() as repo:
        has_changes = on or off or any(option is not None for option in (most, after, last, age))
        needs_name = has_changes or now
        session = references.changed_session(repo, session_ref) if needs_name else repo.session(session_ref)
        current = session.retention.get()
        limits = _apply_options(current, on, off, most, after, last, age) if has_changes else current
        if has_changes and not dry_run:
            session.retention.set(limits)
        if now or dry_run:
            result = session.retention.apply(limits, dry_run=dry_run)
            output.emit_at(session, None, result.to_dict, lambda: views.thinned(result))
            return
        output.emit(
            lambda: {"session_name": session.name, "retention": limits.to_dict() if limits else None},
            lambda: views.retention(session.reference, limits),
        )


def _apply_options(
    current: Retention | None,
    on: bool,
    off: bool,
    most: int | None,
    after: int | None,
    last: int | None,
    age: float | None,
) -> Retention | None:
    """Return the retention with the options applied; other limits are unchanged. None keeps everything."""
    from agentgit.checkpoints import Retention

    if off:
        if on or any(option is not None for option in (most, after, last, age)):
            raise InvalidInput("--off keeps everything. Leave out the other options.")
        return None
    limits = Retention() if on or current is None else current
    if most is not None:
        limits = replace(limits, max_checkpoints=most or None)
    if after is not None:
        limits = replace(limits, compress_after=after or None)
    if last is not None:
        limits = replace(limits, keep_last=last)
    if age is not None:
        limits = replace(limits, max_age=_parse_age(age))
    return limits


def _parse_age(days: float) -> timedelta | None:
    try:
        return days * DAY or None
    except (OverflowError, ValueError) as error:
        raise InvalidInput(f"{days} is not a valid number of days.") from error


def gc(
    dry_run: DryRun = False,
    keep_steps: Annotated[
        bool, typer.Option("--keep-steps", help="Keep the steps that LangGraph saved between checkpoints.")
    ] = False,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="Do not shrink the database.")] = False,
    imports: Annotated[
        bool, typer.Option("--imports", help="Also delete what interrupted imports left behind.")
    ] = False,
    schema_name: SchemaName = None,
    every: AllSchemas = False,
) -> None:
    for attempt in each_schema(schema_name, every):
        with attempt:
            with repository() as repo, bar("collecting") as progress:
                reclaimed = repo.maintenance.gc(
                    dry_run=dry_run, steps=not keep_steps, shrink=not no_shrink, imports=imports, progress=progress
                )
            output.emit(reclaimed.to_dict, partial(views.reclaimed, reclaimed))


def fsck(
    session_ref: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", autocompletion=complete_session, help="A session; by default all."),
    ] = None,
    level: Annotated[
        int,
        typer.Option(
            "--level", metavar="N", help="What to check: 1 references, 2 also hashes, 3 also the state of every head."
        ),
    ] = 2,
    schema_name: SchemaName = None,
    every: AllSchemas = False,
) -> None:
    is_sound = True
    for attempt in each_schema(schema_name, every):
        with attempt:
            with repository() as repo, bar("checking") as progress:
                checked = repo.maintenance.fsck(level, session=session_ref, progress=progress)
            output.emit(checked.to_dict, partial(views.checked, checked))
            is_sound &= checked.is_sound
    if not is_sound:
        raise typer.Exit(Corrupt.exit_code)


def delete(
    session_ref: Annotated[
        str, typer.Argument(metavar="SESSION", autocompletion=complete_session, help="The name or id of a session.")
    ],
    yes: Yes = False,
    force: ForceErase = False,
) -> None:
    with repository() as repo:
        session = repo.session(session_ref)
        name = session.reference
        output.confirm(f"Permanently delete {place(name)}?", yes=yes)
        erased = session.delete(force=force)
    output.emit(erased.to_dict, lambda: views.erased(name, erased))


def stats(
    session_ref: OfBranch = None,
    every: Annotated[bool, typer.Option("--all", help="Count all your sessions.")] = False,
    price: Price = None,
    storage: Annotated[bool, typer.Option("--storage", help="Also measure the space used in the database.")] = False,
) -> None:
    prices = parse_prices(price)
    with repository() as repo:
        if every and session_ref is not None:
            raise InvalidInput("--all counts all sessions. Leave out the session.")
        if every:
            result = repo.maintenance.stats(prices=prices, storage=storage)
        else:
            session, branch = references.parse_session(repo, session_ref)
            result = session.stats(branch=branch, prices=prices, storage=storage)
        output.emit(result.to_dict, lambda: views.stats(result), result)
