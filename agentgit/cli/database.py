"""`agentgit db`: look at the schema of a database, bring it up to date, and train what packs its values."""

from __future__ import annotations

import typer

from agentgit.cli import output
from agentgit.cli.options import AsJson, Where, database, repository
from agentgit.render.lines import Span

app = typer.Typer(
    name="db", help="Look at the schema of a database; bring it up to date; make it smaller.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip


@app.callback()
def before(context: typer.Context, db: Where = None) -> None:
    """Keep the database that was named before the command."""
    context.obj = db


@app.command()
def current(db: Where = None, as_json: AsJson = False) -> None:
    """Tell which schema a database has, and which is needed."""
    from agentgit.store import schema

    with database(db) as found:
        _report(found.url.render_as_string(), schema.current(found), as_json)


@app.command()
def check(db: Where = None, as_json: AsJson = False) -> None:
    """Fail, and say what to do, if a database does not fit."""
    from agentgit.store import schema

    with database(db) as found:
        schema.check(found)
        _report(found.url.render_as_string(), schema.current(found), as_json)


@app.command()
def upgrade(db: Where = None, as_json: AsJson = False) -> None:
    """Bring a database to the schema that is needed, or make it."""
    from agentgit.store import schema

    with database(db, create=True) as found:
        _report(found.url.render_as_string(), schema.upgrade(found), as_json)


@app.command()
def train(db: Where = None, as_json: AsJson = False) -> None:
    """Make a zstd dictionary from the stored messages, for smaller new ones."""
    with repository(db) as repo:
        made = repo.train_dictionary()
        text = f"dictionary {made.id}, {made.bytes} bytes, from {made.samples} values"
        output.emit(as_json, made._asdict, lambda _: [(Span(text),)])


def _report(url: str, revision: str | None, as_json: bool) -> None:
    """Write what is there and what is needed. A rendered URL hides its password."""
    from agentgit.store.schema import REVISION

    output.emit(
        as_json,
        lambda: {"database": url, "schema": revision, "needed": REVISION},
        lambda _: [(Span(url, "reference"), Span(f"  schema {revision or 'none'}, needed {REVISION}"))],
    )
