"""The environment of the `alembic` command in a checkout. The library runs the migrations without it."""

from alembic import context
from sqlalchemy import types
from sqlmodel.sql.sqltypes import AutoString

from agentgit.store.schema import alembic_command, migrations
from agentgit.store.schema.introspection import is_compared
from agentgit.store.sql.tables import METADATA

config = context.config


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


def run(**where):
    """Run the migrations on a connection, or write them as SQL."""
    context.configure(
        **where,
        target_metadata=METADATA,
        version_table=migrations.VERSION_TABLE,
        render_as_batch=True,
        render_item=render_item,
        include_name=is_compared,
        process_revision_directives=number,
    )
    with context.begin_transaction():
        context.run_migrations()


url = alembic_command.database_url(config, context.get_x_argument(as_dictionary=True))
if context.is_offline_mode():
    run(dialect_name=url.get_backend_name(), literal_binds=True, transactional_ddl=True)
else:
    alembic_command.run(config, url, lambda connection: run(connection=connection))
