"""Effects that are answered from the record or run again, and what a branch has seen of the world

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("internal_session") as table:
        table.add_column(sa.Column("epoch", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("world_seen", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("tool_invocation") as table:
        table.add_column(sa.Column("kind", sa.String(length=16), nullable=False, server_default="call"))
        table.add_column(sa.Column("identity", sa.String(length=64), nullable=True))
        table.add_column(sa.Column("verify", sa.Text(), nullable=True))
        table.add_column(sa.Column("precheck", sa.Text(), nullable=True))
    for name in ("identity", "replay_of"):
        where = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"ix_tool_invocation_tenant_id_external_session_id_{name}",
            "tool_invocation",
            ["tenant_id", "external_session_id", name],
            sqlite_where=where,
            postgresql_where=where,
        )
    # What happened before this release was seen by every branch: none of them is asked about the past.
    op.execute(
        "UPDATE internal_session SET world_seen = coalesce((SELECT max(w.seq) FROM world_log w "
        "WHERE w.tenant_id = internal_session.tenant_id "
        "AND w.external_session_id = internal_session.external_session_id), 0)"
    )


def downgrade() -> None:
    for name in ("replay_of", "identity"):
        op.drop_index(f"ix_tool_invocation_tenant_id_external_session_id_{name}", "tool_invocation")
    # Column by column: a table that others refer to cannot be made anew while SQLite looks after foreign keys.
    for name in ("precheck", "verify", "identity", "kind"):
        op.drop_column("tool_invocation", name)
    for name in ("world_seen", "epoch"):
        op.drop_column("internal_session", name)
