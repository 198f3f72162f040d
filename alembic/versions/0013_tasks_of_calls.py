"""A call that no AI message asked for says which task made it, so that it is found when the task runs again

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INDEX = "ix_tool_invocation_tenant_id_external_session_id_task"


def upgrade() -> None:
    with op.batch_alter_table("tool_invocation") as table:
        table.add_column(sa.Column("task", sa.String(32), nullable=True))
    has_one = sa.text("task IS NOT NULL")
    op.create_index(
        INDEX, "tool_invocation", ["tenant_id", "external_session_id", "task"],
        sqlite_where=has_one, postgresql_where=has_one,
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index(INDEX, "tool_invocation")
    op.drop_column("tool_invocation", "task")
