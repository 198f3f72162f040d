"""The names of erased users, as hashes: a token from before the erasure is not the next user's of that name

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TENANT = "(SELECT nullif(current_setting('agentgit.tenant_id', true), '')::bigint)"
"""As in 0011."""


def upgrade() -> None:
    op.create_table(
        "erased_name",
        sa.Column("tenant_id", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "hash", name=op.f("pk_erased_name")),
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE erased_name ENABLE ROW LEVEL SECURITY")
        op.execute("ALTER TABLE erased_name FORCE ROW LEVEL SECURITY")
        sees = f"tenant_id = {TENANT}"
        op.execute(f"CREATE POLICY agentgit_wall ON erased_name USING ({sees}) WITH CHECK ({sees})")


def downgrade() -> None:
    op.drop_table("erased_name")
