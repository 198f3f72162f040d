"""Identity and rights: admins, disabled users, passwords, API keys, members and links of sessions, failed logins

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

WHEN = sa.DateTime(timezone=True)


def _id(name, **kwargs):
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False, **kwargs)


def _same_tenant(table, column, other):
    return sa.ForeignKeyConstraint(
        ["tenant_id", column],
        [f"{other}.tenant_id", f"{other}.id"],
        name=op.f(f"fk_{table}_tenant_id_{column}_{other}"),
    )


def upgrade() -> None:
    op.add_column("tenant", sa.Column("tokens_revoked_at", WHEN, nullable=True))
    op.create_index(op.f("ix_tenant_name"), "tenant", ["name"], unique=True)
    op.add_column("user", sa.Column("is_admin", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("user", sa.Column("disabled_at", WHEN, nullable=True))
    op.add_column("user", sa.Column("password", sa.String(length=255), nullable=True))
    op.add_column("user", sa.Column("tokens_revoked_at", WHEN, nullable=True))
    op.execute("UPDATE \"user\" SET is_admin = true WHERE name = 'local'")
    op.create_index(
        op.f("ix_external_session_tenant_id_user_id_updated_at_id"),
        "external_session",
        ["tenant_id", "user_id", "updated_at", "id"],
    )
    op.create_table(
        "api_key",
        _id("tenant_id"),
        _id("id"),
        _id("user_id"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=True),
        sa.Column("last_used_at", WHEN, nullable=True),
        sa.Column("revoked_at", WHEN, nullable=True),
        _same_tenant("api_key", "user_id", "user"),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_api_key")),
    )
    op.create_index(op.f("ix_api_key_tenant_id_user_id_id"), "api_key", ["tenant_id", "user_id", "id"])
    op.create_table(
        "login_failure",
        _id("tenant_id"),
        sa.Column("subject", sa.LargeBinary(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("blocked_until", WHEN, nullable=False),
        sa.Column("forget_at", WHEN, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "subject", name=op.f("pk_login_failure")),
    )
    op.create_index(op.f("ix_login_failure_tenant_id_forget_at"), "login_failure", ["tenant_id", "forget_at"])
    _sharing()


def _sharing():
    op.create_table(
        "session_member",
        _id("tenant_id"),
        _id("external_session_id"),
        _id("user_id"),
        _id("link_id"),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=True),
        _same_tenant("session_member", "external_session_id", "external_session"),
        _same_tenant("session_member", "user_id", "user"),
        sa.PrimaryKeyConstraint(
            "tenant_id", "external_session_id", "user_id", "link_id", name=op.f("pk_session_member")
        ),
    )
    op.create_index(op.f("ix_session_member_tenant_id_user_id"), "session_member", ["tenant_id", "user_id"])
    op.create_table(
        "session_link",
        _id("tenant_id"),
        _id("id"),
        _id("external_session_id"),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", WHEN, nullable=False),
        sa.Column("expires_at", WHEN, nullable=True),
        sa.Column("revoked_at", WHEN, nullable=True),
        _same_tenant("session_link", "external_session_id", "external_session"),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_session_link")),
    )
    op.create_index(
        op.f("ix_session_link_tenant_id_external_session_id"), "session_link", ["tenant_id", "external_session_id"]
    )


def downgrade() -> None:
    op.drop_table("session_link")
    op.drop_table("session_member")
    op.drop_table("login_failure")
    op.drop_table("api_key")
    op.drop_index(op.f("ix_external_session_tenant_id_user_id_updated_at_id"), "external_session")
    for name in ("tokens_revoked_at", "password", "disabled_at", "is_admin"):
        op.drop_column("user", name)
    op.drop_index(op.f("ix_tenant_name"), "tenant")
    op.drop_column("tenant", "tokens_revoked_at")
