"""`agentgit db`: look at the schema of a database, bring it up to date; its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import AsJson, Brief, Where, database, repository
from agentgit.cli.output import bar
from agentgit.errors import InvalidInput
from agentgit.render.text import Span, clean
from agentgit.render.views import maintenance as drawn

if TYPE_CHECKING:
    from agentgit.store.database import Database

app = typer.Typer(
    name="db",
    help="Look at the schema of a database; bring it up to date; make it smaller; encrypt it.",
    no_args_is_help=True,
    cls=Brief,
    rich_markup_mode=None,
)


@app.callback()
def before(context: typer.Context, db: Where = None) -> None:
    """Keep the database that was named before the command."""
    context.obj = db


@app.command()
def current(db: Where = None, as_json: AsJson = False) -> None:
    """Show which schema a database has, and which is needed."""
    with database(db) as found:
        _report(found, as_json)


@app.command()
def check(
    db: Where = None,
    deep: Annotated[bool, typer.Option("--deep", help="Compare each table with what the migrations make.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fail, and say what to do, if a database does not fit."""
    from agentgit.store.schema import schema

    with database(db) as found:
        schema.check(found, deep=deep)
        _report(found, as_json)


@app.command()
def upgrade(db: Where = None, as_json: AsJson = False) -> None:
    """Bring a database to the schema that is needed, or make it."""
    from agentgit.store.schema import schema

    with database(db, create=True) as found:
        schema.upgrade(found)
        _report(found, as_json)


@app.command()
def downgrade(
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="An earlier schema, or `base` to remove all tables.")
    ],
    db: Where = None,
    yes: Annotated[bool, typer.Option("--yes", help="Also if data is lost.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a database back to an earlier schema; what would be lost is told first."""
    from agentgit.store.schema import schema

    with database(db) as found:
        schema.downgrade(found, revision, lose=yes)
        _report(found, as_json)


@app.command()
def stamp(
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="The schema that the tables have.")],
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Note which schema tables have that were made by hand, after a look that they have it."""
    from agentgit.store.schema import schema

    with database(db) as found:
        schema.stamp(found, revision)
        _report(found, as_json)


@app.command()
def sql(
    start: Annotated[
        str | None, typer.Argument(metavar="FROM", help="The schema that is there; none if empty.")
    ] = None,
    end: Annotated[str | None, typer.Argument(metavar="TO", help="The schema that is wanted; else the newest.")] = None,
    kind: Annotated[
        str, typer.Option("--for", help="postgresql or sqlite; of an empty database also citus, cockroach, yugabyte.")
    ] = "postgresql",
) -> None:
    """Write the SQL of an upgrade, for an administrator who runs it by hand."""
    from agentgit.store.schema import partitioning, schema

    if kind in partitioning.KINDS and start is not None:
        raise InvalidInput(f"For {kind} there is a script of the whole schema only: agentgit db sql --for {kind}")
    output.say(partitioning.spread(kind) if kind in partitioning.KINDS else schema.script(kind, start, end))


@app.command()
def grant(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of the server, which must not own the tables.")],
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Grant a PostgreSQL role the rights that agentgit needs, and no more; run it again after each upgrade."""
    from agentgit.store.schema import roles

    with database(db) as found:
        count = roles.grant(found, role)
        data = {"database": found.name, "role": role, "tables": count}
        text = f"{role} may work on {count} tables of {found.name}"
        output.line(as_json, lambda: data, clean(text))


@app.command()
def partition(
    parts: Annotated[int, typer.Argument(metavar="PARTS", min=2, help="How many parts each table gets.")],
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Divide the tables of a PostgreSQL by tenant; nobody else can work while it runs."""
    from agentgit.store.schema import partitioning

    with database(db) as found:
        count = partitioning.partition(found, parts)
        data = {"database": found.name, "divided": count, "parts": parts}
        text = f"{count} tables of {found.name} divided into {parts} parts"
        output.line(as_json, lambda: data, clean(text))


@app.command()
def keys(
    new: Annotated[bool, typer.Option("--new", help="Make a key, and write it; nothing else is done.")] = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Count how many stored values and codes of rows each key has; or make a key."""
    from agentgit.auth import Keyring

    if new:
        made = Keyring.new_key()
        output.line(as_json, lambda: {"key": made}, made)
        return
    with repository(db) as repo:
        found = repo.maintenance.encryption_keys()
        output.emit(as_json, lambda: found, lambda width: drawn.key_lines(found, width=width))


@app.command()
def rotate(
    off: Annotated[bool, typer.Option("--off", help="Store everything in clear again.")] = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Encrypt all that is stored with the first key; $AGENTGIT_ENCRYPTION_KEYS has them."""
    with repository(db) as repo, bar("encrypting", as_json) as progress:
        done = repo.maintenance.rotate_keys(off=off, progress=progress)
    output.emit(as_json, done.to_dict, lambda width: drawn.rotated_lines(done, width=width))


def _report(found: Database, as_json: bool) -> None:
    """Write what is there and what is needed."""
    from agentgit.store.schema import schema

    revision = schema.current(found)
    output.emit(
        as_json,
        lambda: {"database": found.name, "schema": revision, "needed": schema.REVISION},
        lambda _: [(Span(found.name, "reference"), Span(f"  schema {revision or 'none'}, needed {schema.REVISION}"))],
    )
