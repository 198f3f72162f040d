"""`agentgit db`: the schema of a database, its roles, and its encryption keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import (
    GROUP,
    AllSchemas,
    SchemaName,
    database,
    each_schema,
    repository,
)
from agentgit.cli.output import bar
from agentgit.render.text import clean
from agentgit.render.view import Span
from agentgit.render.views import maintenance as views

if TYPE_CHECKING:
    from agentgit.store.database import Database

app = typer.Typer(**GROUP)


@app.command()
def check(schema_name: SchemaName = None, every: AllSchemas = False) -> None:
    """Check the schema, and compare it with the models; if it does not fit, fail and print what to do."""
    from agentgit.store.schema import schema

    for attempt in each_schema(schema_name, every):
        with attempt, database() as target_db:
            schema.compare(target_db)
            _print_revision(target_db)


@app.command()
def upgrade(schema_name: SchemaName = None, every: AllSchemas = False) -> None:
    """Upgrade the schema to the required revision, or create it."""
    from agentgit.store.schema import schema

    for attempt in each_schema(schema_name, every):
        with attempt, database(create=True) as target_db:
            schema.upgrade(target_db)
            _print_revision(target_db)


@app.command()
def grant(
    schema_name: Annotated[str, typer.Option("--schema", metavar="NAME", help="The schema of the tables.")],
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="The role, which owns no table.")],
) -> None:
    """Let a PostgreSQL role use the tables of a schema, and nothing else; what is missing is created."""
    from agentgit.store.schema import schema

    with database() as target_db:
        count = schema.grant(target_db, schema_name, role)
        data = {"database": target_db.name, "schema": schema_name, "role": role, "tables": count}
        output.line(lambda: data, clean(f"{role} can use the {count} tables in {schema_name}"))


@app.command()
def rotate(
    off: Annotated[bool, typer.Option("--off", help="Decrypt everything.")] = False,
    new_key: Annotated[bool, typer.Option("--new-key", help="Generate a key, print it, and do nothing else.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only count the stored values of each key.")] = False,
) -> None:
    """Encrypt all stored data with the first key; $AGENTGIT_ENCRYPTION_KEYS lists the keys."""
    from agentgit.auth import Keyring

    if new_key:
        key = Keyring.new_key()
        output.line(lambda: {"key": key}, key)
        return
    with repository() as repo, bar("encrypting") as progress:
        if count:
            counts = repo.maintenance.encryption_keys()
            output.emit(lambda: counts, lambda: views.encryption_keys(counts))
            return
        rotated = repo.maintenance.rotate_keys(off=off, progress=progress)
    output.emit(rotated.to_dict, lambda: views.rotated(rotated))


def _print_revision(target_db: Database) -> None:
    from agentgit.store.schema import schema

    revision = schema.current_revision(target_db)
    output.emit(
        lambda: {"database": target_db.name, "schema": revision, "needed": schema.REVISION},
        lambda: [(Span(target_db.name, "reference"), Span(f"  schema {revision or 'none'}, needed {schema.REVISION}"))],
    )
