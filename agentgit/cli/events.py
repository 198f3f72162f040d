"""The commands for events: events, audit, webhooks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output
from agentgit.cli.options import TIME_HELP, AsJson, CommandGroup, DatabaseOption, repository
from agentgit.cli.output import bar
from agentgit.errors import Corrupt, InvalidInput, NotFound
from agentgit.render.text import Line, Span
from agentgit.render.views import events as drawn
from agentgit.times import parse_time

if TYPE_CHECKING:
    from agentgit.sessions.events import Event
    from agentgit.sessions.webhooks import Delivered

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        "-k",
        metavar="KIND",
        help="Only events of this kind, like checkpoint.created or rollback.*; repeatable.",
    ),
]
WebhookId = Annotated[int, typer.Argument(metavar="ID", help="The id that `agentgit webhooks list` shows.")]
OfSession = Annotated[
    str | None, typer.Argument(metavar="SESSION", help="The name or id of a session; by default all your sessions.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep running until Ctrl-C or SIGTERM.")]

POLL_SECONDS = 1.0
"""The pause in seconds between two rounds of `webhooks deliver --follow`."""

audit = typer.Typer(
    name="audit",
    help="Show and verify the audit trail.",
    no_args_is_help=True,
    cls=CommandGroup,
    rich_markup_mode=None,
)
webhooks = typer.Typer(
    name="webhooks",
    help="Send signed events to URLs, with retries.",
    no_args_is_help=True,
    cls=CommandGroup,
    rich_markup_mode=None,
)


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(events)
    app.add_typer(audit)
    app.add_typer(webhooks)


def events(
    session: OfSession = None,
    kind: Kinds = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Only events at this time or later, {TIME_HELP}")
    ] = None,
    after: Annotated[int | None, typer.Option(metavar="ID", help="Only events after the one with this id.")] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, help="The number of newest events to show; not with --after."
        ),
    ] = 50,
    follow: Follow = False,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """List events, newest last."""
    kinds, since_time = kind or "*", parse_time(since)
    with repository(db) as repo:
        if after is not None and not follow:
            matches = list(repo.events.list(session=session, after=after, kinds=kinds, since=since_time))
        else:
            newest = (
                repo.events.newest(session=session, kinds=kinds, since=since_time, limit=limit) if after is None else []
            )
            matches = list(newest)
        if not follow:
            placeholder: list[Line] = [(Span("no events found"),)]
            output.emit(
                as_json,
                lambda: [event.to_dict() for event in matches],
                lambda width: drawn.event_lines(matches, width=width, zone=output.zone()) or placeholder,
            )
            return
        for event in matches:
            _print_event(event, as_json)
        start_id = after if after is not None else matches[-1].id if matches else repo.events.last_id()
        with _until_stopped():
            for event in repo.events.list(session=session, after=start_id, kinds=kinds, since=since_time, follow=True):
                _print_event(event, as_json)


@contextmanager
def _until_stopped() -> Iterator[None]:
    """Run the block until Ctrl-C or SIGTERM, then leave it without an error.

    SIGTERM, which service managers send, raises KeyboardInterrupt here, so that context managers still clean up.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        yield


def _print_event(event: Event, as_json: bool) -> None:
    _print_result(as_json, event.to_dict, lambda width: drawn.event_lines([event], width=width, zone=output.zone()))


def _delivered_lines(delivered: Delivered, width: int) -> list[Line]:
    return drawn.delivered_lines(delivered)


def _print_result(as_json: bool, data: Callable[[], Any], lines: Callable[[int], list[Line]]) -> None:
    """Write one result of a stream immediately; as JSON it is one line."""
    if as_json:
        output.stream(f"{output.dump(data())}\n")
    else:
        output.show(lines(output.width()))
    output.flush()


@audit.command("show")
def audit_show(
    kind: Kinds = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="The number of newest events to show.")
    ] = 50,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """List events that belong to no session: logins, users, keys, refusals; for admins."""
    with repository(db) as repo:
        matches = repo.events.audit(kinds=kind or "*", limit=limit)
        user_names = {user.id: user.name for user in repo.users.list()}
        output.emit(
            as_json,
            lambda: [event.to_dict() for event in matches],
            lambda width: (
                drawn.event_lines(matches, width=width, zone=output.zone(), user_names=user_names)
                or [(Span("no events found"),)]
            ),
        )


@audit.command("tips")
def audit_tips(db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Print the tip of each trail as a line of JSON; keep them where the database owner cannot write."""
    with repository(db) as repo:
        tips = [vars(tip) for tip in repo.events.tips()]
    output.emit(as_json, lambda: tips, lambda _: [(Span(output.dump(tip)),) for tip in tips])


@audit.command("verify")
def audit_verify(
    tips: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The output of `agentgit audit tips`; the trails must still contain it."),
    ] = None,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Check that nobody has changed the audit trail."""
    from agentgit.sessions.events import tips_of

    try:
        known_tips = tips_of(tips.read_text("utf-8")) if tips is not None else []
    except OSError as error:
        raise NotFound(f"{tips} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{tips} is not a file written by `agentgit audit tips`.") from error
    with repository(db) as repo, bar("verifying", as_json) as progress:
        verification = repo.events.verify(known_tips, progress=progress)
    output.emit(as_json, verification.to_dict, lambda _: drawn.verified_lines(verification))
    if not verification.is_sound:
        raise typer.Exit(Corrupt.exit_code)


@webhooks.command("add")
def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="An http or https URL.")],
    kind: Kinds = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="SESSION", help="Only events of this session; by default those of all your sessions."
        ),
    ] = None,
    secret_env: Annotated[
        str | None, typer.Option("--secret-env", metavar="NAME", help="The environment variable with the secret.")
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option("--secret-file", metavar="FILE", help="The file with the secret; created if it does not exist."),
    ] = None,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Add a URL that events are sent to; `agentgit webhooks deliver` sends them."""
    if (secret_env is None) == (secret_file is None):
        raise InvalidInput(
            "Name the secret that signs the messages: --secret-env NAME, or --secret-file FILE, which is created "
            "if it does not exist."
        )
    with repository(db) as repo:
        secret = _read_secret(secret_file) if secret_file is not None else os.environ.get(secret_env or "")
        if not secret:
            raise InvalidInput(f"The secret is empty: set the variable {secret_env}, or name another file.")
        webhook = repo.webhooks.add(url, kind or "*", secret, session=session)
    output.emit(as_json, webhook.to_dict, lambda width: drawn.webhook_lines([webhook], width=width))


def _read_secret(file: Path) -> str:
    """Read a secret from a file.

    If the file does not exist, it is created with a new secret and is readable only by its owner.
    """
    from agentgit.sessions.webhooks import new_secret

    try:
        with (
            suppress(FileExistsError),
            os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new_file,
        ):
            new_file.write(new_secret() + "\n")
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read as a secret: {type(error).__name__}.") from error


@webhooks.command("list")
def list_(db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """List the webhooks, with their pending and failed deliveries."""
    with repository(db) as repo:
        hooks = repo.webhooks.list()
    placeholder: list[Line] = [(Span("no webhooks yet; add one with: agentgit webhooks add URL"),)]
    output.emit(
        as_json,
        lambda: [hook.to_dict() for hook in hooks],
        lambda width: drawn.webhook_lines(hooks, width=width) or placeholder,
    )


@webhooks.command("remove")
def remove(webhook: WebhookId, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Remove a webhook, with its pending deliveries."""
    with repository(db) as repo:
        removed = repo.webhooks.remove(webhook)
    output.line(as_json, removed.to_dict, f"no more events are sent to {removed.url}")


@webhooks.command("retry")
def retry(webhook: WebhookId, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Make the pending and failed deliveries of a webhook due now."""
    with repository(db) as repo:
        due_count = repo.webhooks.retry(webhook)
    output.line(as_json, lambda: {"count": due_count}, f"{due_count} due")


@webhooks.command("deliver")
def deliver(follow: Follow = False, db: DatabaseOption = None, as_json: AsJson = False) -> None:
    """Send the due events of all users; several processes can do this at the same time."""
    with repository(db) as repo, _until_stopped() if follow else nullcontext():
        delivered = repo.webhooks.deliver()
        if not follow:
            output.emit(as_json, delivered.to_dict, lambda _: drawn.delivered_lines(delivered))
            return
        while True:
            if delivered.sent or delivered.failed or delivered.dead:
                _print_result(as_json, delivered.to_dict, partial(_delivered_lines, delivered))
            time.sleep(POLL_SECONDS)
            delivered = repo.webhooks.deliver()
