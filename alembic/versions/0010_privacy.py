"""Privacy: which keys a database is encrypted with, and sessions that were erased with their trail

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

REFUSED = "The audit trail cannot be changed"
FUNCTION = "CREATE OR REPLACE FUNCTION agentgit_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
RAISE = f"RAISE EXCEPTION '{REFUSED}';"

ERASED = (
    "EXISTS (SELECT 1 FROM erasure WHERE erasure.tenant_id = OLD.tenant_id "
    "AND erasure.external_session_id = OLD.external_session_id)"
)
"""What lets a row of the trail go."""


def upgrade() -> None:
    op.create_table(
        "encryption_key",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("proof", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_encryption_key")),
    )
    op.create_table(
        "erasure",
        sa.Column("tenant_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_session_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("last_hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "external_session_id", name=op.f("pk_erasure")),
        sa.CheckConstraint("external_session_id > 0", name=op.f("ck_erasure_session")),
    )
    if op.get_context().dialect.name == "postgresql":
        _postgresql()
    else:
        _sqlite()


def _postgresql() -> None:
    """Look at each row that goes; what changes rows, or takes all at once, stays refused."""
    op.execute("DROP TRIGGER audit_event_stays ON audit_event")
    body = f"IF NOT {ERASED} THEN {RAISE} END IF; RETURN OLD;"
    op.execute(FUNCTION.format(name="audit_event_goes", body=body))
    op.execute(
        "CREATE TRIGGER audit_event_stays BEFORE UPDATE OR TRUNCATE ON audit_event "
        "FOR EACH STATEMENT EXECUTE FUNCTION agentgit_audit_event_stays()"
    )
    op.execute(
        "CREATE TRIGGER audit_event_goes BEFORE DELETE ON audit_event "
        "FOR EACH ROW EXECUTE FUNCTION agentgit_audit_event_goes()"
    )
    op.execute(
        "CREATE TRIGGER erasure_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON erasure "
        "FOR EACH STATEMENT EXECUTE FUNCTION agentgit_audit_event_stays()"
    )


def _sqlite() -> None:
    op.execute("DROP TRIGGER audit_event_no_delete")
    op.execute(
        f"CREATE TRIGGER audit_event_no_delete BEFORE DELETE ON audit_event WHEN NOT {ERASED} "
        f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
    )
    for action in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER erasure_no_{action.lower()} BEFORE {action} ON erasure "
            f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )
    # Without this, REPLACE would change a row past the trigger.
    op.execute(
        "CREATE TRIGGER erasure_no_replace BEFORE INSERT ON erasure WHEN EXISTS (SELECT 1 FROM erasure "
        "WHERE tenant_id = NEW.tenant_id AND external_session_id = NEW.external_session_id OR rowid = NEW.rowid) "
        "BEGIN SELECT RAISE(ABORT, 'UNIQUE constraint failed: erasure'); END"
    )


def downgrade() -> None:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    if is_postgresql:
        op.execute("DROP TRIGGER audit_event_goes ON audit_event")
        op.execute("DROP TRIGGER audit_event_stays ON audit_event")
        op.execute(
            "CREATE TRIGGER audit_event_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_event "
            "FOR EACH STATEMENT EXECUTE FUNCTION agentgit_audit_event_stays()"
        )
    else:
        op.execute("DROP TRIGGER audit_event_no_delete")
        op.execute(
            "CREATE TRIGGER audit_event_no_delete BEFORE DELETE ON audit_event "
            f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )
    op.drop_table("erasure")
    op.drop_table("encryption_key")
    if is_postgresql:
        op.execute("DROP FUNCTION agentgit_audit_event_goes()")
