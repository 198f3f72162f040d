"""Checking who may: keys, members, links and webhooks are of users and sessions that are there."""

from __future__ import annotations

from sqlalchemy import select

from agentgit.auth.roles import ROLES
from agentgit.auth.scopes import SCOPES
from agentgit.store.maintenance.fsck.rows import RowCheck
from agentgit.store.maintenance.fsck.values import rows
from agentgit.store.records.members import BY_NAME
from agentgit.store.sql.tables import API_KEY, SESSION_LINK, SESSION_MEMBER, WEBHOOK

REVOKE = "It gives nobody a right; delete the row."


def check_rights(check: RowCheck) -> None:
    """Check the API keys, the webhooks, the members and links of sessions."""
    for row in check.read(API_KEY.c.id, API_KEY.c.user_id, API_KEY.c.scope):
        check.refers(f"api_key {row.id}", "user", row.user_id, check.users, REVOKE)
        check.one_of(f"api_key {row.id}", "scope", row.scope, SCOPES)
    _sharing(check)
    # Its rows are counted where the outbox is checked.
    hooks = select(WEBHOOK.c.id, WEBHOOK.c.user_id, WEBHOOK.c.external_session_id)
    mine = hooks.where(WEBHOOK.c.tenant_id == check.store.tenant_id)
    for row in rows(check.connection, mine, check.report, counted=False):
        check.refers(f"webhook {row.id}", "user", row.user_id, check.users)
        check.refers(f"webhook {row.id}", "session", row.external_session_id, check.current)


def _sharing(check: RowCheck) -> None:
    """Check the links of sessions, and the members, each of whom came by name or by a link of that session."""
    links = {BY_NAME: 0}
    for row in check.read(SESSION_LINK.c.id, SESSION_LINK.c.external_session_id, SESSION_LINK.c.role):
        links[row.id] = row.external_session_id
        check.refers(f"session_link {row.id}", "session", row.external_session_id, check.current, REVOKE)
        check.one_of(f"session_link {row.id}", "role", row.role, ROLES[:-1])
    for row in check.read(
        SESSION_MEMBER.c.external_session_id, SESSION_MEMBER.c.user_id, SESSION_MEMBER.c.link_id, SESSION_MEMBER.c.role
    ):
        name = f"session_member {row.external_session_id}/{row.user_id}/{row.link_id}"
        check.refers(name, "session", row.external_session_id, check.current, REVOKE)
        check.refers(name, "user", row.user_id, check.users, REVOKE)
        check.refers(name, "link", row.link_id, links, REVOKE)
        check.one_of(name, "role", row.role, ROLES)
        if links.get(row.link_id, 0) not in (0, row.external_session_id):
            check.report.add(name, "its link is of another session", REVOKE)
