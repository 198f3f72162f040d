"""The first schema. Until it is released, who edits it gives it another revision, so that older drafts are refused.

Revision ID: 0001f
Revises:
"""

import secrets
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import AddConstraint, CreateIndex, CreateTable, DropConstraint

revision = "0001f"
down_revision = None
branch_labels = None
depends_on = None

TABLES = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)


# -- what tables are made of


def _table(name, *parts):
    table = sa.Table(name, TABLES, *parts, sqlite_strict=True)
    for column in table.c:  # what types do not say, on SQLite alone what has a type of its own on PostgreSQL
        for kind, name, valid in (
            (sa.Integer, "{0}", f"{{0}} >= {column.info.get('least', 0)}"),
            (sa.DateTime, "{0}", "{0} BETWEEN '1970-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'"),
            (sa.DateTime, "{0}_form", "{0} IS NULL OR (date(julianday(substr({0}, 1, 10))) IS substr({0}, 1, 10) "
             "AND datetime({0}) IS NOT NULL AND {0} GLOB '????-??-?? ??:??:??.??????')"),
            (sa.Boolean, "{0}", "{0} IN (0, 1)"),
        ):  # fmt: skip
            if type(column.type) is kind:
                check = sa.CheckConstraint(valid.format(column.name), name=name.format(column.name))
                is_everywhere = kind is sa.Integer or "BETWEEN" in valid
                table.append_constraint(check if is_everywhere else check.ddl_if(dialect="sqlite"))


def _column(name, kind, *, key=False, null=False, default=None, least=0):
    return sa.Column(
        name, kind, primary_key=key, autoincrement=False, nullable=null, server_default=default, info={"least": least}
    )


def _id(name, **more):
    return _column(name, sa.BigInteger().with_variant(sa.Integer, "sqlite"), **more)


def _number(name, **more):
    return _column(name, sa.Integer, **more)


def _words(name, **more):
    return _column(name, sa.Text, **more)


def _bytes(name, **more):
    return _column(name, sa.LargeBinary, **more)


def _flag(name, **more):
    return _column(name, sa.Boolean().with_variant(sa.Integer, "sqlite"), **more)


def _moment(name, **more):
    return _column(name, sa.DateTime(timezone=True).with_variant(sa.Text, "sqlite"), **more)


def _unique(*columns):
    return sa.UniqueConstraint(*columns)


def _index(*columns, only=None):
    where = None if only is None else sa.text(f"{only} IS NOT NULL")
    return sa.Index(None, *columns, sqlite_where=where, postgresql_where=where)


def _of(columns, target, cascade=False, deferred=False, mutual=False):
    """Refer to a row. It is checked at the commit if it is `deferred`, or if two tables refer to each other."""
    table, *others = target.split()
    return sa.ForeignKeyConstraint(
        columns.split(), [f"{table}.{name}" for name in others or ["id"]],
        ondelete="CASCADE" if cascade else None, use_alter=mutual, deferrable=deferred or mutual or None,
        initially="DEFERRED" if deferred or mutual else None,
    )  # fmt: skip


def _one_of(column, values):
    return sa.CheckConstraint(f"{column} IN ({', '.join(map(repr, values.split()))})", name=column)


# -- who is there


_table(
    "user",
    _id("id", key=True), _words("name"), _moment("created_at"), _flag("is_admin", default=sa.text("false")),
    _moment("disabled_at", null=True),
    _unique("name"),
)  # fmt: skip
_table(
    "api_key",
    _id("id", key=True), _id("user_id"), _words("name"), _bytes("hash"), _words("scope"), _moment("created_at"),
    _moment("expires_at", null=True), _moment("last_used_at", null=True), _moment("revoked_at", null=True),
    _of("user_id", "user"), _index("user_id", "id"), _one_of("scope", "admin read sign-in write"),
)  # fmt: skip


# -- sessions, their branches and what those have


_table(
    "external_session",
    _id("id", key=True), _id("user_id"), _words("session_name"), _words("thread_id", null=True),
    _moment("created_at"), _moment("updated_at"), _flag("is_active"), _id("current_branch_id", null=True),
    _bytes("meta"), _unique("user_id", "session_name"), _index("user_id", "thread_id"),
    _index("user_id", "updated_at", "id"),
    _of("user_id", "user"), _of("id current_branch_id", "internal_session external_session_id id", mutual=True),
)  # fmt: skip
_table(
    "session_member",
    _id("external_session_id", key=True), _id("user_id", key=True), _id("link_id", key=True), _words("role"),
    _moment("created_at"), _moment("expires_at", null=True),
    _of("external_session_id", "external_session", cascade=True), _of("user_id", "user"), _index("user_id"),
    _one_of("role", "editor owner viewer"),
)  # fmt: skip
_table(
    "session_link",
    _id("id", key=True), _id("external_session_id"), _bytes("hash"), _words("role"), _moment("created_at"),
    _moment("expires_at", null=True), _moment("revoked_at", null=True),
    _of("external_session_id", "external_session", cascade=True), _index("external_session_id"),
    _one_of("role", "editor viewer"),
)  # fmt: skip
_table(
    "internal_session",
    _id("id", key=True), _id("external_session_id"), _words("thread_id"), _words("name"), _words("status"),
    _words("owner", null=True), _id("head_id", null=True), _id("parent_id", null=True),
    _id("branch_point_id", null=True), _number("inherited"), _moment("created_at"), _bytes("meta"),
    _number("epoch", default="0"), _number("world_seen", default="0"), _number("searched", default="0"),
    _moment("lease_until", null=True),
    _unique("external_session_id", "name"), _unique("thread_id"), _unique("external_session_id", "id"),
    _index("parent_id", only="parent_id"), _of("external_session_id", "external_session", cascade=True),
    _of("external_session_id parent_id", "internal_session external_session_id id"),
    _of("id head_id", "checkpoint internal_session_id id", mutual=True),
    _of("parent_id branch_point_id", "checkpoint internal_session_id id", mutual=True),
    _one_of("status", "open partial replaying running simulated"),
    sa.CheckConstraint("parent_id <> id", name="parent"),
    sa.CheckConstraint("(parent_id IS NULL) = (branch_point_id IS NULL)", name="branch_point"),
    sa.Index(
        "ix_internal_session_running", "external_session_id",
        sqlite_where=sa.text("status = 'running'"), postgresql_where=sa.text("status = 'running'"),
    ),
)  # fmt: skip
_table(
    "checkpoint",
    _id("id", key=True), _id("internal_session_id"), _number("number", least=1), _words("name", null=True),
    _words("description", null=True), _words("kind"), _flag("is_auto"), _id("user_id"), _moment("created_at"),
    _words("graph_checkpoint_id", null=True), _bytes("state_hash"), _number("position"), _number("message_count"),
    _words("restore_point", null=True), _bytes("data", null=True), _id("workspace_snapshot_id", null=True),
    _bytes("pending", null=True),
    _unique("internal_session_id", "number"), _unique("internal_session_id", "id"),
    _index("workspace_snapshot_id", only="workspace_snapshot_id"),
    _of("internal_session_id", "internal_session", cascade=True),
    _of("workspace_snapshot_id", "workspace_snapshot", deferred=True),
    _one_of("kind", "after before branch named tools"),
    sa.CheckConstraint("(kind = 'named') <> is_auto", name="named"),
    sa.Index(
        "ix_checkpoint_log",
        "internal_session_id", "created_at", "id", "number", "is_auto", "user_id",
    ),
    sa.Index(
        "ix_checkpoint_name", "internal_session_id", "name", "created_at", "id",
        sqlite_where=sa.text("name IS NOT NULL"), postgresql_where=sa.text("name IS NOT NULL"),
    ),
)  # fmt: skip
_table(
    "tag",
    _id("external_session_id", key=True), _words("name", key=True), _id("checkpoint_id"),
    _words("description", null=True), _id("user_id"), _moment("created_at"),
    _of("checkpoint_id", "checkpoint"), _of("external_session_id", "external_session", cascade=True),
    _index("checkpoint_id"),
)  # fmt: skip
_table(
    "search_text",
    _id("id", key=True), _id("internal_session_id"), _number("number"), _words("kind"), _bytes("hash", null=True),
    _id("row_id", null=True), _column("words", sa.Text().with_variant(postgresql.TSVECTOR(), "postgresql"), null=True),
    _of("internal_session_id", "internal_session", cascade=True), _index("internal_session_id", "number"),
    _one_of("kind", "call checkpoint message"),
)  # fmt: skip
_table(
    "workspace_snapshot",
    _id("id", key=True), _id("external_session_id"), _id("internal_session_id"), _words("snapshot"),
    _bytes("settings"), _words("changed_by"), _moment("created_at"),
    _of("external_session_id internal_session_id", "internal_session external_session_id id", cascade=True),
    _index("external_session_id", "id"), _one_of("changed_by", "crash person restore stored turn unknown"),
)  # fmt: skip


# -- what tools did, and what was taken back


_table(
    "tool_invocation",
    _id("id", key=True), _id("external_session_id"), _id("internal_session_id"), _number("arrival"),
    _number("batch", least=-1), _number("batch_index"), _words("tool_name"), _words("tool_call_id", null=True),
    _words("effect"), _words("status"), _bytes("args"), _bytes("result", null=True), _words("error_message", null=True),
    _moment("started_at"), _moment("ended_at", null=True), _words("idempotency_key"), _words("undo", null=True),
    _words("owner", null=True), _id("replay_of", null=True), _words("kind", default="call"),
    _words("identity", null=True), _words("verify", null=True), _words("precheck", null=True),
    _words("tool_path", null=True), _words("enclosing", null=True),
    _bytes("answers", null=True), _id("made_on", null=True), _words("task", null=True), _id("parent_id", null=True),
    _of("external_session_id internal_session_id", "internal_session external_session_id id", cascade=True),
    _of("replay_of", "tool_invocation", deferred=True), _of("parent_id", "tool_invocation", deferred=True),
    _unique("internal_session_id", "arrival"), _index("external_session_id", "status"),
    *(_index("external_session_id", name, only=name) for name in ("identity", "task")),
    *(_index(name, only=name) for name in ("parent_id", "replay_of")),
    _one_of(
        "effect",
        "compensable idempotent irreversible memory read_only reversible state undeclared workspace",
    ),
    _one_of(
        "status",
        "done failed intended paused reverse_failed reverse_unknown reversed reversing simulated unknown",
    ),
    _one_of("kind", "call redo replay unowned"),
    sa.Index(
        "ix_tool_invocation_memory", "identity",
        sqlite_where=sa.text("effect = 'memory'"), postgresql_where=sa.text("effect = 'memory'"),
    ),
)  # fmt: skip
_table(
    "world_log",
    _id("external_session_id", key=True), _number("seq", key=True, least=1), _id("invocation_id"), _words("action"),
    _id("operation_id", null=True), _moment("created_at"),
    _of("external_session_id", "external_session", cascade=True), _of("invocation_id", "tool_invocation"),
    _of("operation_id", "operation"), _index("invocation_id"), _index("operation_id", only="operation_id"),
    _one_of("action", "done failed reverse_unknown reversed unknown"),
)  # fmt: skip
_table(
    "operation",
    _id("id", key=True), _id("external_session_id"), _id("user_id"), _words("kind"), _words("status"),
    _words("request_id"), _id("source_id"), _id("target_id", null=True),
    _id("internal_session_id"),
    _words("owner", null=True), _bytes("request"), _bytes("report"), _moment("created_at"),
    _moment("ended_at", null=True), _moment("lease_until", null=True),
    _unique("external_session_id", "request_id"), _index("target_id", only="target_id"),
    _of("external_session_id", "external_session", cascade=True),
    _of("external_session_id source_id", "internal_session external_session_id id"),
    _of("external_session_id internal_session_id", "internal_session external_session_id id"),
    _of("target_id", "checkpoint"), _one_of("kind", "fork rerun rollback switch"),
    _one_of("status", "done partial running"),
)  # fmt: skip


# -- what LangGraph saves


_table(
    "graph_checkpoint",
    _words("thread_id", key=True), _words("ns", key=True), _words("checkpoint_id", key=True),
    _id("external_session_id"), _number("seq", least=1), _words("parent_id", null=True), _words("root_id", null=True),
    _words("run_id", null=True), _number("message_count"), _bytes("meta"), _bytes("header"), _bytes("channels"),
    _bytes("state_hash"),
    _unique("thread_id", "ns", "seq"), _index("thread_id", "root_id", only="root_id"),
    _index("external_session_id"),
)  # fmt: skip
_table(
    "graph_write",
    _words("thread_id", key=True), _words("ns", key=True), _words("checkpoint_id", key=True),
    _words("task_id", key=True), _number("idx", key=True, least=-1000), _id("external_session_id"), _words("task_path"),
    _words("channel"), _bytes("value"),
    _index("external_session_id"),
)  # fmt: skip
_table(
    "blob",
    _id("external_session_id", key=True), _bytes("hash", key=True), _words("type"),
    _number("codec"), _number("size"), _bytes("data"),
    sa.CheckConstraint("codec <= 3", name="known_codec"),
)  # fmt: skip


# -- the audit trail and privacy


EVENT_KINDS = """
    access.denied branch.renamed call.done call.failed call.resolved call.reverse_failed call.reverse_unknown
    call.reversed call.unknown checkpoint.annotated checkpoint.created checkpoint.deleted cherry_pick.done
    feed.restarted fork.done gc.done key.created key.revoked keys.rotated link.made link.revoked link.used merge.done
    rerun.done retention.changed rollback.begun rollback.done rollback.incomplete rollback.resumed session.created
    session.erased session.imported session.renamed session.shared session.unshared switch.begun switch.done
    switch.incomplete switch.resumed tag.created tag.deleted turn.abandoned turn.done turn.failed turn.waiting
    user.added user.disabled user.enabled user.erased
"""
_table(
    "event",
    _id("id", key=True), _number("epoch"),
    _id("ordinal", default=sa.text("CAST(CAST(pg_current_xact_id() AS text) AS bigint)")),
    _id("external_session_id", null=True), _id("internal_session_id", null=True), _id("owner_id", null=True),
    _id("user_id", null=True), _words("kind"), _bytes("detail"), _moment("created_at"),
    _of("external_session_id", "external_session", cascade=True), _one_of("kind", EVENT_KINDS),
    _index("epoch", "ordinal"), _index("owner_id", "epoch", "ordinal", "id"),
    _index("external_session_id", "epoch", "ordinal", "id"),
)  # fmt: skip
EVENT_OF_SQLITE = f"""
CREATE TABLE event (
    ordinal INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id INTEGER NOT NULL UNIQUE,
    epoch INTEGER NOT NULL CONSTRAINT ck_event_epoch CHECK (epoch >= 0),
    external_session_id INTEGER,
    internal_session_id INTEGER,
    owner_id INTEGER,
    user_id INTEGER,
    kind TEXT NOT NULL CONSTRAINT ck_event_kind CHECK (kind IN ({", ".join(map(repr, EVENT_KINDS.split()))})),
    detail BLOB NOT NULL,
    created_at TEXT NOT NULL
        CONSTRAINT ck_event_created_at CHECK (created_at BETWEEN '1970-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00')
        CONSTRAINT ck_event_created_at_form CHECK (
            date(julianday(substr(created_at, 1, 10))) IS substr(created_at, 1, 10)
            AND datetime(created_at) IS NOT NULL AND created_at GLOB '????-??-?? ??:??:??.??????'),
    CONSTRAINT fk_event_external_session_id FOREIGN KEY (external_session_id)
        REFERENCES external_session (id) ON DELETE CASCADE
) STRICT
"""
"""The ordinal has the only form of a number that SQLite never gives twice."""
_table("encryption_key", _words("id", key=True), _bytes("proof"), _moment("created_at"))


# -- triggers: nobody changes an event, and it goes only with its session


REFUSED = "The audit trail cannot be changed"


def _triggers_of_sqlite():
    op.execute(f"CREATE TRIGGER event_no_update BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END")
    op.execute(
        "CREATE TRIGGER event_no_delete BEFORE DELETE ON event WHEN OLD.external_session_id IS NULL "  # noqa: S608  # our own names
        "OR EXISTS (SELECT 1 FROM external_session WHERE id = OLD.external_session_id) "
        f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
    )
    # Without it, REPLACE would delete a row past the triggers.
    op.execute(
        "CREATE TRIGGER event_no_replace BEFORE INSERT ON event WHEN EXISTS (SELECT 1 FROM event "
        "WHERE id = NEW.id OR ordinal = NEW.ordinal) "
        "BEGIN SELECT RAISE(ABORT, 'UNIQUE constraint failed: event'); END"
    )


# It looks at the sessions of its own schema, whatever temporary tables and functions there are.
EVENT_STAYS = f"""
CREATE FUNCTION agentgit_event_stays() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
$$ DECLARE
    has_session boolean := true;
BEGIN
    IF TG_OP = 'DELETE' AND OLD.external_session_id IS NOT NULL THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %I.external_session WHERE id = $1)',
            TG_TABLE_SCHEMA) INTO has_session USING OLD.external_session_id;
    END IF;
    IF has_session THEN RAISE EXCEPTION '{REFUSED}'; END IF;
    RETURN OLD;
END $$
"""  # noqa: S608  # our own names


def _triggers_of_postgresql():
    op.execute(EVENT_STAYS)
    for name, event in (
        ("event_stays", "UPDATE OR DELETE ON event FOR EACH ROW"),
        ("event_stays_whole", "TRUNCATE ON event FOR EACH STATEMENT"),
    ):
        op.execute(f"CREATE TRIGGER {name} BEFORE {event} EXECUTE FUNCTION agentgit_event_stays()")


# -- there and back

FAMILY_LOCKS = """
INSERT INTO blob (external_session_id, hash, type, codec, size, data)
SELECT -number, sha256('list\\000'), 'list', 0, 0, '\\x00' FROM generate_series(1, 64) AS number
"""
"""The empty lists that writers to threads without a session lock."""


def _add_local_owner():
    """Add the user who opens the database without a name. Its id is made as all ids are: of the time."""
    now = datetime.now(UTC)
    milliseconds = int(now.timestamp() * 1000) - 1_735_689_600_000
    if op.get_context().dialect.name == "sqlite":
        now = now.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    row = {"id": milliseconds << 12 | secrets.randbits(11), "name": "local", "created_at": now, "is_admin": True}
    op.bulk_insert(TABLES.tables["user"], [row])


def _mutual():
    """Return the references between tables that refer to each other."""
    tables = TABLES.sorted_tables
    return [one for table in tables for one in sorted(table.foreign_key_constraints, key=str) if one.use_alter]


def upgrade() -> None:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    for table in TABLES.sorted_tables:
        op.execute(CreateTable(table) if is_postgresql or table.name != "event" else EVENT_OF_SQLITE)
        for index in sorted(table.indexes, key=lambda one: one.name):
            op.execute(CreateIndex(index))
    for constraint in _mutual() if is_postgresql else ():  # SQLite takes them with their table
        op.execute(AddConstraint(constraint))
    if is_postgresql:
        # A search looks through the whole of what is pending, so that is kept short.
        op.execute(
            "CREATE INDEX ix_search_text_words ON search_text USING gin (words) WITH (gin_pending_list_limit=256)"
        )
        _triggers_of_postgresql()
        op.execute(FAMILY_LOCKS)
    else:
        op.execute("CREATE VIRTUAL TABLE search_words USING fts5(words, content='', columnsize=0, tokenize='ascii')")
        _triggers_of_sqlite()
    _add_local_owner()


def downgrade() -> None:
    is_postgresql = op.get_context().dialect.name == "postgresql"
    if not is_postgresql:
        op.execute("DROP TABLE search_words")
    for constraint in _mutual() if is_postgresql else ():
        op.execute(DropConstraint(constraint))
    for table in reversed(TABLES.sorted_tables):
        op.drop_table(table.name)
    if is_postgresql:
        op.execute("DROP FUNCTION agentgit_event_stays()")
