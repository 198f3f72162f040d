"""Checkpoints keep the pending writes of their moment

Revision ID: 0012
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("pending", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoint", "pending")
