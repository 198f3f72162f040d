"""The first schema

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


# -- what tables are made of


def _table(name, *parts):
    sa.Table(name, TABLES, _id("tenant_id", key=True), *parts)


def _column(name, kind, *, key=False, null=False, default=None):
    return sa.Column(name, kind, primary_key=key, autoincrement=False, nullable=null, server_default=default)


def _id(name, **more):
    return _column(name, sa.BigInteger, **more)


def _number(name, **more):
    return _column(name, sa.Integer, **more)


def _word(name, length, **more):
    return _column(name, sa.String(length), **more)


def _words(name, **more):
    return _column(name, sa.Text, **more)


def _bytes(name, **more):
    return _column(name, sa.LargeBinary, **more)


def _flag(name, **more):
    return _column(name, sa.Boolean, **more)


def _moment(name, **more):
    return _column(name, sa.DateTime(timezone=True), **more)


def _unique(*columns):
    return sa.UniqueConstraint("tenant_id", *columns)


def _index(*columns, only=None):
    where = None if only is None else sa.text(f"{only} IS NOT NULL")
    return sa.Index(None, "tenant_id", *columns, sqlite_where=where, postgresql_where=where)


def _of(column, table, name=None):
    return sa.ForeignKeyConstraint(["tenant_id", column], [f"{table}.tenant_id", f"{table}.id"], name=name)


# -- who is there


sa.Table(
    "tenant", TABLES,
    _id("id", key=True), _words("name"), _moment("created_at"), _moment("tokens_revoked_at", null=True),
    sa.Index(None, "name", unique=True),
)  # fmt: skip
_table(
    "user",
    _id("id", key=True), _words("name"), _moment("created_at"), _flag("is_admin", default=sa.text("false")),
    _moment("disabled_at", null=True), _word("password", 255, null=True), _moment("tokens_revoked_at", null=True),
    _unique("name"),
)  # fmt: skip
_table(
    "api_key",
    _id("id", key=True), _id("user_id"), _words("name"), _bytes("hash"), _word("scope", 16), _moment("created_at"),
    _moment("expires_at", null=True), _moment("last_used_at", null=True), _moment("revoked_at", null=True),
    _of("user_id", "user"), _index("user_id", "id"),
)  # fmt: skip
_table(
    "login_failure",
    _bytes("subject", key=True), _number("failures"), _moment("blocked_until"), _moment("forget_at"),
    _index("forget_at"),
)  # fmt: skip
_table("erased_name", _bytes("hash", key=True), _moment("erased_at"))


# -- sessions, their branches and what those have


_table(
    "external_session",
    _id("id", key=True), _id("user_id"), _words("session_name"), _words("thread_id", null=True),
    _moment("created_at"), _moment("updated_at"), _flag("is_active"), _id("current_branch_id", null=True),
    _bytes("meta"), _unique("user_id", "session_name"), _index("user_id", "thread_id"),
    _index("user_id", "updated_at", "id"),
)  # fmt: skip
_table(
    "session_member",
    _id("external_session_id", key=True), _id("user_id", key=True), _id("link_id", key=True), _word("role", 16),
    _moment("created_at"), _moment("expires_at", null=True),
    _of("external_session_id", "external_session"), _of("user_id", "user"), _index("user_id"),
)  # fmt: skip
_table(
    "session_link",
    _id("id", key=True), _id("external_session_id"), _bytes("hash"), _word("role", 16), _moment("created_at"),
    _moment("expires_at", null=True), _moment("revoked_at", null=True),
    _of("external_session_id", "external_session"), _index("external_session_id"),
)  # fmt: skip
_table(
    "internal_session",
    _id("id", key=True), _id("external_session_id"), _word("thread_id", 64), _words("name"), _word("status", 16),
    _word("owner", 128, null=True), _id("head_id", null=True), _id("parent_id", null=True),
    _id("branch_point_id", null=True), _number("inherited"), _moment("created_at"), _bytes("meta"),
    _number("epoch", default="0"), _number("world_seen", default="0"), _number("searched", default="0"),
    _moment("lease_until", null=True),
    _of("external_session_id", "external_session", "fk_internal_session_tenant_id_external_session_id"),
    _unique("external_session_id", "name"), _unique("thread_id"),
    sa.Index(
        "ix_internal_session_running", "tenant_id", "external_session_id",
        sqlite_where=sa.text("status = 'running'"), postgresql_where=sa.text("status = 'running'"),
    ),
)  # fmt: skip
_table(
    "checkpoint",
    _id("id", key=True), _id("internal_session_id"), _number("number"), _words("name", null=True),
    _words("description", null=True), _word("kind", 16), _flag("is_auto"), _id("user_id"), _moment("created_at"),
    _word("graph_checkpoint_id", 64, null=True), _bytes("state_hash"), _number("position"), _number("message_count"),
    _words("restore_point", null=True), _bytes("data", null=True), _id("workspace_snapshot_id", null=True),
    _bytes("pending", null=True),
    _of("internal_session_id", "internal_session", "fk_checkpoint_tenant_id_internal_session_id"),
    _unique("internal_session_id", "number"),
    sa.Index(
        "ix_checkpoint_log",
        "internal_session_id", "tenant_id", "created_at", "id", "number", "is_auto", "user_id",
    ),
    sa.Index(
        "ix_checkpoint_name", "tenant_id", "internal_session_id", "name", "created_at", "id",
        sqlite_where=sa.text("name IS NOT NULL"), postgresql_where=sa.text("name IS NOT NULL"),
    ),
)  # fmt: skip
_table(
    "tag",
    _id("external_session_id", key=True), _words("name", key=True), _id("checkpoint_id"),
    _words("description", null=True), _id("user_id"), _moment("created_at"),
    _of("checkpoint_id", "checkpoint"), _of("external_session_id", "external_session"), _index("checkpoint_id"),
)  # fmt: skip
_table(
    "search_text",
    _id("id", key=True), _id("internal_session_id"), _number("number"), _word("kind", 16), _bytes("hash", null=True),
    _id("row_id", null=True), _column("words", sa.Text().with_variant(postgresql.TSVECTOR(), "postgresql"), null=True),
    _of("internal_session_id", "internal_session"), _index("internal_session_id", "number"),
)  # fmt: skip
_table(
    "workspace_snapshot",
    _id("id", key=True), _id("external_session_id"), _id("internal_session_id"), _words("snapshot"),
    _bytes("settings"), _moment("created_at"),
    _of("external_session_id", "external_session"), _index("external_session_id", "id"),
)  # fmt: skip


# -- what tools did, and what was taken back


_table(
    "tool_invocation",
    _id("id", key=True), _id("external_session_id"), _id("internal_session_id"), _number("arrival"), _number("batch"),
    _number("batch_index"), _words("tool_name"), _words("tool_call_id", null=True), _word("effect", 16),
    _word("status", 16), _bytes("args"), _bytes("result", null=True), _words("error_message", null=True),
    _moment("started_at"), _moment("ended_at", null=True), _word("idempotency_key", 64), _words("undo", null=True),
    _word("owner", 128, null=True), _id("replay_of", null=True), _word("kind", 16, default="call"),
    _word("identity", 64, null=True), _words("verify", null=True), _words("precheck", null=True),
    _bytes("answers", null=True), _id("made_on", null=True), _word("task", 32, null=True),
    _of("internal_session_id", "internal_session", "fk_tool_invocation_tenant_id_internal_session_id"),
    _unique("internal_session_id", "arrival"), _index("external_session_id", "status"),
    *(_index("external_session_id", name, only=name) for name in ("identity", "replay_of", "task")),
    sa.Index(
        "ix_tool_invocation_memory", "tenant_id", "identity",
        sqlite_where=sa.text("effect = 'memory'"), postgresql_where=sa.text("effect = 'memory'"),
    ),
)  # fmt: skip
_table(
    "world_log",
    _id("external_session_id", key=True), _number("seq", key=True), _id("invocation_id"), _word("action", 16),
    _id("operation_id", null=True), _moment("created_at"),
    _of("external_session_id", "external_session", "fk_world_log_tenant_id_external_session_id"),
    _index("invocation_id"),
)  # fmt: skip
_table(
    "operation",
    _id("id", key=True), _id("external_session_id"), _id("user_id"), _word("kind", 16), _word("status", 16),
    _word("request_id", 64), _id("source_id"), _id("target_id"), _id("internal_session_id"),
    _word("owner", 128, null=True), _bytes("request"), _bytes("report"), _moment("created_at"),
    _moment("ended_at", null=True), _moment("lease_until", null=True),
    _of("external_session_id", "external_session", "fk_operation_tenant_id_external_session_id"),
    _unique("external_session_id", "request_id"),
)  # fmt: skip


# -- what LangGraph saves


_table(
    "graph_checkpoint",
    _words("thread_id", key=True), _words("ns", key=True), _word("checkpoint_id", 64, key=True),
    _id("external_session_id"), _number("seq"), _word("parent_id", 64, null=True), _word("root_id", 64, null=True),
    _words("run_id", null=True), _number("message_count"), _bytes("meta"), _bytes("header"), _bytes("channels"),
    _bytes("state_hash"),
    _unique("thread_id", "ns", "seq"), _index("thread_id", "root_id", only="root_id"),
    _index("external_session_id"),
)  # fmt: skip
_table(
    "graph_write",
    _words("thread_id", key=True), _words("ns", key=True), _word("checkpoint_id", 64, key=True),
    _word("task_id", 64, key=True), _number("idx", key=True), _id("external_session_id"), _words("task_path"),
    _words("channel"), _bytes("value"),
    _index("external_session_id"),
)  # fmt: skip
_table(
    "blob",
    _id("external_session_id", key=True), _bytes("hash", key=True), _word("type", 32),
    _column("codec", sa.SmallInteger), _number("size"), _bytes("data"),
)  # fmt: skip


# -- the audit trail and privacy


_table(
    "audit_event",
    _id("external_session_id", key=True), _number("seq", key=True), _id("id"), _id("internal_session_id", null=True),
    _id("owner_id", null=True), _id("user_id", null=True), _word("kind", 32), _bytes("detail"), _moment("created_at"),
    _bytes("hash"),
    _unique("owner_id", "id"),
)  # fmt: skip
_table("encryption_key", _word("id", 32, key=True), _bytes("proof"), _moment("created_at"))
_table(
    "erasure",
    _id("external_session_id", key=True), _id("user_id", null=True), _number("last_seq"), _bytes("last_hash"),
    _moment("created_at"),
    sa.CheckConstraint("external_session_id > 0", name="ck_erasure_session"),
)  # fmt: skip


# -- triggers: nobody changes the trail, and only an erased session's goes


REFUSED = "The audit trail cannot be changed"

ERASED = (
    "EXISTS (SELECT 1 FROM erasure WHERE erasure.tenant_id = OLD.tenant_id "
    "AND erasure.external_session_id = OLD.external_session_id)"
)
"""What lets a row of the trail go."""

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


def _triggers_of_sqlite():
    for table, action, when in (
        ("audit_event", "UPDATE", ""),
        ("audit_event", "DELETE", f"WHEN NOT {ERASED} "),
        ("erasure", "UPDATE", ""),
        ("erasure", "DELETE", ""),
    ):
        op.execute(
            f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} {when}"
            f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )
    # Without these, REPLACE would delete or change a row past the triggers.
    for table, same in (
        (
            "audit_event",
            "tenant_id = NEW.tenant_id AND external_session_id = NEW.external_session_id AND seq = NEW.seq "
            "OR tenant_id = NEW.tenant_id AND owner_id = NEW.owner_id AND id = NEW.id",
        ),
        ("erasure", "tenant_id = NEW.tenant_id AND external_session_id = NEW.external_session_id"),
    ):
        op.execute(
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} "  # noqa: S608  # our own names
            f"WHERE {same} OR rowid = NEW.rowid) BEGIN SELECT RAISE(ABORT, 'UNIQUE constraint failed: {table}'); END"
        )
    of = "json_extract(CAST(e.detail AS TEXT), '$.{}')"
    told = TOLD % (*map(of.format, ("erased", "events", "hash")), "lower(hex(NEW.last_hash))")
    op.execute(
        f"CREATE TRIGGER erasure_is_told BEFORE INSERT ON erasure WHEN NEW.external_session_id > 0 "
        f"AND ({told}) IS NOT TRUE BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
    )


ASKING = """
CREATE FUNCTION agentgit_{name}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$ DECLARE is_so boolean;
BEGIN
    PERFORM set_config('search_path', quote_ident(TG_TABLE_SCHEMA) || ', pg_temp', true);
    is_so := {condition};
    IF is_so IS NOT TRUE THEN RAISE EXCEPTION '{refused}'; END IF;
    RETURN {row};
END $$
"""
"""A function that looks at the tables of its own schema, whatever temporary tables or settings there are."""


def _triggers_of_postgresql():
    op.execute(
        "CREATE FUNCTION agentgit_audit_event_stays() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{REFUSED}'; END $$"
    )
    # Each type is said, so that no function or operator of a schema in which others may make some fits better.
    of = "(CAST(pg_catalog.convert_from(e.detail, 'UTF8') AS jsonb) ->> CAST('{}' AS text))"
    digest = "pg_catalog.encode(NEW.last_hash, 'hex')"
    told = TOLD % (f"CAST({of.format('erased')} AS bigint)", f"CAST({of.format('events')} AS bigint)",
                   of.format("hash"), digest)  # fmt: skip
    op.execute(ASKING.format(name="audit_event_goes", condition=ERASED, row="OLD", refused=REFUSED))
    op.execute(ASKING.format(name="erasure_is_told", condition=told, row="NEW", refused=REFUSED))
    for name, when, function in (
        ("audit_event_stays", "UPDATE OR TRUNCATE ON audit_event FOR EACH STATEMENT", "audit_event_stays"),
        ("audit_event_goes", "DELETE ON audit_event FOR EACH ROW", "audit_event_goes"),
        ("erasure_stays", "UPDATE OR DELETE OR TRUNCATE ON erasure FOR EACH STATEMENT", "audit_event_stays"),
        (
            "erasure_is_told",
            "INSERT ON erasure FOR EACH ROW WHEN (NEW.external_session_id > 0)",
            "erasure_is_told",
        ),
    ):
        op.execute(f"CREATE TRIGGER {name} BEFORE {when} EXECUTE FUNCTION agentgit_{function}()")


# -- there and back


def upgrade() -> None:
    for table in TABLES.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda one: one.name):
            op.execute(CreateIndex(index))
    if op.get_context().dialect.name == "postgresql":
        # A search looks through the whole of what is pending, so that is kept short.
        op.execute(
            "CREATE INDEX ix_search_text_words ON search_text USING gin (words) WITH (gin_pending_list_limit=256)"
        )
        _triggers_of_postgresql()
    else:
        op.execute("CREATE VIRTUAL TABLE search_words USING fts5(words, content='', columnsize=0, tokenize='ascii')")
        _triggers_of_sqlite()


def downgrade() -> None:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    if not is_postgresql:
        op.execute("DROP TABLE search_words")
    for table in reversed(TABLES.sorted_tables):
        op.drop_table(table.name)
    if is_postgresql:
        for name in ("audit_event_stays", "audit_event_goes", "erasure_is_told"):
            op.execute(f"DROP FUNCTION agentgit_{name}()")
