"""The second wall: row-level security by tenant, and by user for what belongs to sessions; PostgreSQL alone has it

Revision ID: 0011
Revises: 0010
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# In a subquery, so that each is asked for once in a statement, and not for each row.
TENANT = "(SELECT nullif(current_setting('agentgit.tenant_id', true), '')::bigint)"
NAME = "(SELECT current_setting('agentgit.tenant_name', true))"
EVERYBODY = "(SELECT current_setting('agentgit.user_id', true) = 'all')"
USER = "(SELECT nullif(nullif(current_setting('agentgit.user_id', true), ''), 'all')::bigint)"

BY_TENANT = (
    "user", "api_key", "login_failure", "session_member", "session_link", "graph_checkpoint", "graph_write", "blob",
    "dictionary", "encryption_key", "erasure", "webhook", "webhook_delivery",
)  # fmt: skip
BY_SESSION = ("internal_session", "tool_invocation", "world_log", "operation", "workspace_snapshot", "tag")
BY_BRANCH = ("checkpoint", "search_text")

SHARED = f"""EXISTS (SELECT FROM session_member m WHERE m.tenant_id = external_session.tenant_id
    AND m.external_session_id = external_session.id AND m.user_id = {USER}
    AND (m.expires_at IS NULL OR m.expires_at > now()))"""


# A function has its plan made once for a connection. As subqueries in the policies they take milliseconds to plan, and
# may be answered for all rows of a table to show twenty (measured: decision 31).
SEES = (
    ("agentgit_sees_session", "external_session"),
    ("agentgit_sees_branch", "internal_session"),
)


def _of_session(table):
    return f"agentgit_sees_session({table}.tenant_id, {table}.external_session_id)"


def _of_branch(table):
    return f"agentgit_sees_branch({table}.tenant_id, {table}.internal_session_id)"


def _walls():
    """Give each table with who sees a row of it, who may write one if others may, and what must be there for it."""
    yield "tenant", f"id = {TENANT} OR name = {NAME}", None
    for table in BY_TENANT:
        yield table, f"tenant_id = {TENANT}", None
    mine = f"tenant_id = {TENANT} AND ({EVERYBODY} OR user_id = {USER} OR {SHARED})"
    yield "external_session", mine, None
    for table in BY_SESSION:
        yield table, f"tenant_id = {TENANT} AND ({EVERYBODY} OR {_of_session(table)})", None
    for table in BY_BRANCH:
        yield table, f"tenant_id = {TENANT} AND ({EVERYBODY} OR {_of_branch(table)})", None
    # What belongs to no session is one chain for all, which each of them makes longer.
    told = f"owner_id = {USER} OR external_session_id = 0 OR {_of_session('audit_event')}"
    yield "audit_event", f"tenant_id = {TENANT} AND ({EVERYBODY} OR {told})", f"tenant_id = {TENANT}"


def upgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    for name, table in SEES:
        op.execute(
            f"CREATE FUNCTION {name}(bigint, bigint) RETURNS boolean LANGUAGE plpgsql STABLE PARALLEL SAFE AS "
            f"$$ BEGIN RETURN EXISTS (SELECT FROM {table} WHERE tenant_id = $1 AND id = $2); END $$"
        )
    for table, sees, writes in _walls():
        op.execute(f'ALTER TABLE "{table}" ENABLE ROW LEVEL SECURITY')
        op.execute(f'ALTER TABLE "{table}" FORCE ROW LEVEL SECURITY')
        op.execute(f'CREATE POLICY agentgit_wall ON "{table}" USING ({sees}) WITH CHECK ({writes or sees})')


def downgrade() -> None:
    if op.get_context().dialect.name != "postgresql":
        return
    for table, *_ in _walls():
        op.execute(f'DROP POLICY agentgit_wall ON "{table}"')
        op.execute(f'ALTER TABLE "{table}" NO FORCE ROW LEVEL SECURITY')
        op.execute(f'ALTER TABLE "{table}" DISABLE ROW LEVEL SECURITY')
    for name, _ in SEES:
        op.execute(f"DROP FUNCTION {name}(bigint, bigint)")
