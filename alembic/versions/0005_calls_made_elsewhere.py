"""Calls that came with an import say on which branch they were made, in the session that was exported

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tool_invocation") as table:
        table.add_column(sa.Column("made_on", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("tool_invocation", "made_on")
