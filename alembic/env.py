"""The environment of Alembic's commands: in a checkout, and of the library, which hands over a connection."""

from contextlib import closing

from alembic import context
from alembic.util import CommandError
from sqlalchemy import types
from sqlmodel.sql.sqltypes import AutoString

from agentgit.errors import AgentGitError
from agentgit.location import default_location
from agentgit.store.database import Database
from agentgit.store.schema import migrations
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.url import parse_url

FTS_INDEX = "ix_search_text_words"
"""PostgreSQL's full-text index, which no model has."""

config = context.config


def include_name(name, kind, _parents):
    """Compare nothing of the full-text indexes and, for the library, no table of another application."""
    if kind == "table" and config.attributes.get("connection") is not None:
        return name in METADATA.tables
    return name != FTS_INDEX if kind == "index" else kind != "table" or not name.startswith(migrations.FTS_TABLE)


def render_item(kind, item, autogen_context):
    """Write plain SQLAlchemy types into migrations, which must not import live code."""
    if kind == "type":
        impl = item.impl if isinstance(item, types.TypeDecorator) else item
        if isinstance(item, AutoString):
            impl = types.String(item.length)
        return f"sa.{impl!r}"
    return False


def number(_context, _revision, directives):
    """Give a new migration the next number as its revision, unless the command names one."""
    if not getattr(config.cmd_opts, "rev_id", None):  # `alembic check` has no such option
        directives[0].rev_id = f"{len(list(context.script.walk_revisions())) + 1:04}"


def run(connection=None, **where):
    """Run the migrations in the transaction of a connection, or write them as SQL."""
    context.configure(
        connection=connection,
        **where,
        target_metadata=METADATA,
        version_table=migrations.VERSION_TABLE,
        render_as_batch=True,
        render_item=render_item,
        include_name=include_name,
        process_revision_directives=number,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_command():
    """Run a command of `alembic` on its database: `-x db=URL`, `sqlalchemy.url`, or the library's default."""
    named = context.get_x_argument(as_dictionary=True).get("db") or config.get_alembic_option("sqlalchemy.url")
    url = parse_url(named or default_location())
    if context.is_offline_mode():
        run(dialect_name=url.get_backend_name(), literal_binds=True, transactional_ddl=True)
        return
    with closing(Database(url)) as database:
        if database.is_sqlite:
            database.use_wal()
        database.write(lambda transaction: run(transaction.connection), durable=True)


if (given := config.attributes.get("connection")) is not None:
    run(given)
else:
    try:
        run_command()
    except AgentGitError as error:
        raise CommandError(str(error)) from error
