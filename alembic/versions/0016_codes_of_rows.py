"""Codes of rows: in an encrypted database the rows that decide what is done have a message authentication code

Revision ID: 0016
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op

from agentgit.errors import InvalidInput

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

TABLES = (
    "user", "api_key", "session_member", "session_link",
    "external_session", "internal_session", "checkpoint", "tag", "workspace_snapshot",
    "tool_invocation", "world_log", "operation", "graph_checkpoint", "graph_write",
)  # fmt: skip


def upgrade() -> None:
    for name in TABLES:
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("mac", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    if (
        not op.get_context().as_sql
        and op.get_bind().execute(sa.text("SELECT 1 FROM encryption_key")).first() is not None
    ):
        raise InvalidInput(
            "This database is encrypted, and its rows would lose their codes. Store everything in clear before: "
            "agentgit db rotate --off"
        )
    for name in TABLES:
        op.drop_column(name, "mac")
