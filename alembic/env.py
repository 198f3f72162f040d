"""Alembic's entry: runs the migrations on the connection that agentgit hands over, or writes them down as SQL."""

from alembic import context
from sqlalchemy import types
from sqlmodel.sql.sqltypes import AutoString

config = context.config


def render_item(kind, item, autogen_context):
    """Write plain SQLAlchemy types into migrations, which must not import live code."""
    if kind == "type":
        impl = item.impl if isinstance(item, types.TypeDecorator) else item
        if isinstance(item, AutoString):
            impl = types.String(item.length)
        return f"sa.{impl!r}"
    return False


def include_name(name, kind, parents):
    """Leave out the tables in which FTS5 keeps its index; the migrations make it by hand."""
    return kind != "table" or not name.startswith("search_words")


if context.is_offline_mode():
    where = {"dialect_name": config.attributes["dialect"], "literal_binds": True, "transactional_ddl": True}
else:
    where = {"connection": config.attributes["connection"]}
context.configure(
    **where,
    target_metadata=config.attributes.get("metadata"),
    version_table=config.attributes["version_table"],
    version_table_schema=config.attributes.get("schema"),
    render_as_batch=True,
    render_item=render_item,
    include_name=include_name,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
