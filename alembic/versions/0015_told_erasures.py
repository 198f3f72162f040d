"""Told erasures: a row of `erasure` is taken only if the tenant's own chain ends with the event that says the same

Revision ID: 0015
Revises: 0014
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

REFUSED = "The audit trail cannot be changed"

ERASED = (
    "EXISTS (SELECT 1 FROM erasure WHERE erasure.tenant_id = OLD.tenant_id "
    "AND erasure.external_session_id = OLD.external_session_id)"
)
"""What lets a row of the trail go, as in 0010."""

OF_TENANT = "FROM audit_event e WHERE e.tenant_id = NEW.tenant_id AND e.external_session_id"

TOLD = f"""NOT EXISTS (SELECT 1 FROM external_session s WHERE s.tenant_id = NEW.tenant_id
        AND s.id = NEW.external_session_id)
    AND NEW.last_seq = coalesce((SELECT max(e.seq) {OF_TENANT} = NEW.external_session_id), 0)
    AND (NEW.last_seq = 0
        OR EXISTS (SELECT 1 {OF_TENANT} = NEW.external_session_id AND e.seq = NEW.last_seq AND e.hash = NEW.last_hash))
    AND EXISTS (SELECT 1 {OF_TENANT} = 0 AND e.seq = (SELECT max(e.seq) {OF_TENANT} = 0)
        AND CAST(e.kind AS text) = 'session.erased' AND %s = NEW.external_session_id AND %s = NEW.last_seq
        AND %s = %s)"""  # noqa: S608  # our own names
"""What lets a row of `erasure` in: the session is gone, its trail ends so, the newest event of no session says it."""

ASKING = """
CREATE OR REPLACE FUNCTION agentgit_{name}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$ DECLARE
    asks text := current_setting('agentgit.user_id', true);
    is_so boolean;
BEGIN
    PERFORM set_config('search_path', quote_ident(TG_TABLE_SCHEMA) || ', pg_temp', true);
    PERFORM set_config('agentgit.user_id', 'all', true);
    is_so := {condition};
    PERFORM pg_catalog.set_config('agentgit.user_id', coalesce(asks, ''), true);
    IF is_so IS NOT TRUE THEN RAISE EXCEPTION '{refused}'; END IF;
    RETURN {row};
END $$
"""
"""A function that looks at the tables of its own schema, whatever temporary tables or settings there are."""

BEFORE = "CREATE OR REPLACE FUNCTION agentgit_audit_event_goes() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$"


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        # Each type is said, so that no function or operator of a schema in which others may make some fits better.
        of = "(CAST(pg_catalog.convert_from(e.detail, 'UTF8') AS jsonb) ->> CAST('{}' AS text))"
        digest = "pg_catalog.encode(NEW.last_hash, 'hex')"
        told = TOLD % (f"CAST({of.format('erased')} AS bigint)", f"CAST({of.format('events')} AS bigint)",
                       of.format("hash"), digest)  # fmt: skip
        op.execute(ASKING.format(name="audit_event_goes", condition=ERASED, row="OLD", refused=REFUSED))
        op.execute(ASKING.format(name="erasure_is_told", condition=told, row="NEW", refused=REFUSED))
        op.execute(
            "CREATE TRIGGER erasure_is_told BEFORE INSERT ON erasure FOR EACH ROW "
            "WHEN (NEW.external_session_id > 0) EXECUTE FUNCTION agentgit_erasure_is_told()"
        )
    else:
        of = "json_extract(CAST(e.detail AS TEXT), '$.{}')"
        told = TOLD % (*map(of.format, ("erased", "events", "hash")), "lower(hex(NEW.last_hash))")
        op.execute(
            f"CREATE TRIGGER erasure_is_told BEFORE INSERT ON erasure WHEN NEW.external_session_id > 0 "
            f"AND ({told}) IS NOT TRUE BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP TRIGGER erasure_is_told ON erasure")
        op.execute("DROP FUNCTION agentgit_erasure_is_told()")
        op.execute(BEFORE.format(f"IF NOT {ERASED} THEN RAISE EXCEPTION '{REFUSED}'; END IF; RETURN OLD;"))
    else:
        op.execute("DROP TRIGGER erasure_is_told")
