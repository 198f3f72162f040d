"""Rules about users: other users' sessions are invisible, and forbidden actions are refused and recorded."""

from __future__ import annotations

from functools import partial

from agentgit.conformance.rules import CheckContext, Rule, expect, require_error
from agentgit.errors import NotAllowed, NotFound
from agentgit.repository import Repository


def _create_users(trial: CheckContext) -> tuple[Repository, Repository]:
    """Create two users; the first has a session."""
    repo = trial.repo
    owner, other = (repo.as_user(repo.users.add(f"{trial.name}-{name}")) for name in ("owner", "other"))
    owner.session(trial.name, create=True)
    return owner, other


def see_only_their_own(trial: CheckContext) -> None:
    """A user can neither list another user's sessions nor find them by name or id."""
    owner, other = _create_users(trial)
    session = owner.session(trial.name)
    expect(session.id not in {one.id for one in other.sessions()}, "Another user's session is listed.")
    for ref in (trial.name, session.id, f"{owner.user.name}/{trial.name}"):
        require_error(partial(other.session, ref), NotFound, "Another user's session was found.")


def may_have_the_same_names(trial: CheckContext) -> None:
    """Two users may each have a session with the same name, and each finds their own."""
    owner, other = _create_users(trial)
    other_session = other.session(trial.name, create=True)
    expect(other_session.id != owner.session(trial.name).id, "Two users have one session.")
    expect(other.session(trial.name).id == other_session.id, "A user found another user's session.")


def do_what_their_role_allows(trial: CheckContext) -> None:
    """A user sees a session shared with them, may do only what the role allows, and loses access when unshared."""
    owner, other = _create_users(trial)
    ref = f"{owner.user.name}/{trial.name}"
    owner.session(trial.name).sharing.share(other.user.name, role="viewer")
    expect(other.session(ref).id == owner.session(trial.name).id, "A shared session is not found.")
    require_error(lambda: other.session(ref).switch("main"), NotAllowed, "A viewer moved a session.")
    denials = [event for event in owner.events.list(session=trial.name) if event.kind == "access.denied"]
    expect(denials, "The trail does not record a refusal.")
    owner.session(trial.name).sharing.unshare(other.user.name)
    require_error(lambda: other.session(ref), NotFound, "A session that is no longer shared was found.")


_RULES = (see_only_their_own, may_have_the_same_names, do_what_their_role_allows)
RULES = tuple(Rule("users", run) for run in _RULES)
