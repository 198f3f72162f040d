"""Telling: the audit trail, which nobody can change, and webhooks with what is still to be sent

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

REFUSED = "The audit trail cannot be changed"


def upgrade() -> None:
    op.create_table(
        "audit_event",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_session_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("internal_session_id", sa.BigInteger(), nullable=True),
        sa.Column("owner_id", sa.BigInteger(), nullable=True),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "external_session_id", "seq", name=op.f("pk_audit_event")),
        sa.UniqueConstraint("tenant_id", "owner_id", "id", name=op.f("uq_audit_event_tenant_id_owner_id_id")),
    )
    op.create_table(
        "webhook",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("user_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_session_id", sa.BigInteger(), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kinds", sa.LargeBinary(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_webhook")),
    )
    op.create_table(
        "webhook_delivery",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("webhook_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_session_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "webhook_id"],
            ["webhook.tenant_id", "webhook.id"],
            name=op.f("fk_webhook_delivery_tenant_id_webhook_id_webhook"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_webhook_delivery")),
    )
    op.create_index(
        op.f("ix_webhook_delivery_tenant_id_status_next_at"), "webhook_delivery", ["tenant_id", "status", "next_at"]
    )
    op.create_index(
        op.f("ix_webhook_delivery_tenant_id_webhook_id_status"),
        "webhook_delivery",
        ["tenant_id", "webhook_id", "status"],
    )
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION agentgit_audit_event_stays() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{REFUSED}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_event_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_event "
            "FOR EACH STATEMENT EXECUTE FUNCTION agentgit_audit_event_stays()"
        )
    else:
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_event_no_{action.lower()} BEFORE {action} ON audit_event "
                f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
            )
        # Without this, REPLACE would delete a row past the trigger.
        op.execute(
            "CREATE TRIGGER audit_event_no_replace BEFORE INSERT ON audit_event WHEN EXISTS (SELECT 1 FROM audit_event "
            "WHERE tenant_id = NEW.tenant_id AND external_session_id = NEW.external_session_id AND seq = NEW.seq "
            "OR tenant_id = NEW.tenant_id AND owner_id = NEW.owner_id AND id = NEW.id OR rowid = NEW.rowid) "
            "BEGIN SELECT RAISE(ABORT, 'UNIQUE constraint failed: audit_event'); END"
        )


def downgrade() -> None:
    op.drop_table("webhook_delivery")
    op.drop_table("webhook")
    op.drop_table("audit_event")
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION agentgit_audit_event_stays()")
