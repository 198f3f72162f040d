"""Files belong to checkpoints: which snapshot of which workspace; and answers to the tool calls that asked

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workspace_snapshot",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_session_id", sa.BigInteger(), nullable=False),
        sa.Column("internal_session_id", sa.BigInteger(), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=False),
        sa.Column("settings", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "external_session_id"],
            ["external_session.tenant_id", "external_session.id"],
            name=op.f("fk_workspace_snapshot_tenant_id_external_session_id_external_session"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_workspace_snapshot")),
    )
    op.create_index(
        op.f("ix_workspace_snapshot_tenant_id_external_session_id_id"),
        "workspace_snapshot",
        ["tenant_id", "external_session_id", "id"],
    )
    with op.batch_alter_table("checkpoint") as table:
        table.add_column(sa.Column("workspace_snapshot_id", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("tool_invocation") as table:
        table.add_column(sa.Column("answers", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("tool_invocation", "answers")
    op.drop_column("checkpoint", "workspace_snapshot_id")
    op.drop_table("workspace_snapshot")
