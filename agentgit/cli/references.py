"""Parsing of command arguments that name a session, a branch and a checkpoint.

A command that changes something, or plans a change, acts on a session that the user has named, or on the only one there
is. A command that only reads takes the most recently updated session by default, and says which one that is.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agentgit.cli import output
from agentgit.cli.options import COMMAND_PATH
from agentgit.cli.output import HOST
from agentgit.errors import InvalidInput, NotFound
from agentgit.next_steps import NAMED_PLACE, Next
from agentgit.render.text import clean
from agentgit.values import quote_name

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.checkpoints import Checkpoint
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

MAX_LISTED_SESSIONS = 5
"""The number of sessions that an error lists."""


# -- commands that change something


def only_session(repo: Repository, form: str = "SESSION") -> Session:
    """Return the user's session, if there is exactly one; in a notebook, that of its agents, if it is one."""
    if (bound := _bound(changes=True)) is not None:
        return bound[0]
    sessions = repo.sessions(MAX_LISTED_SESSIONS + 1)
    if len(sessions) > 1:
        names = [quote_name(session.reference) for session in sessions[:MAX_LISTED_SESSIONS]]
        rest = " and more" if len(sessions) > MAX_LISTED_SESSIONS else ""
        raise InvalidInput(
            f"There are several sessions, so name the one that you mean: {COMMAND_PATH.get()} {form}. "
            f"Sessions: {', '.join(names)}{rest}.",
            *([Next("list_sessions")] if rest else []),
        )
    return repo.session(sessions[0].id if sessions else None)


def changed_session(repo: Repository, name: str | None, form: str = "SESSION") -> Session:
    """Return the session that a command changes: the named one, or the only one."""
    return _named(repo, name) if name is not None else only_session(repo, form)


def parse_changed(repo: Repository, text: str | None) -> tuple[Session, str | None]:
    session, branch = split(repo, text)
    return (session, branch) if session is not None else (only_session(repo), branch or _bound_branch(changes=True))


def parse_changed_at(repo: Repository, words: list[str], noun: str) -> tuple[Session, str | None, str]:
    """Parse `[SESSION[@BRANCH]] WORD` of a command that changes something."""
    _require_at_most_two(words)
    *first, word = words
    if first:
        return *parse_changed(repo, first[0]), word
    if noun in _NOUNS:
        _require_no_session(repo, word, noun)
    return only_session(repo, f"SESSION {noun}"), _bound_branch(changes=True), word


def parse_changed_optional(repo: Repository, words: list[str]) -> tuple[Session, str | None, str | None]:
    """Parse `[SESSION[@BRANCH]] [REF]` of a command that changes something: one word is a session, else a reference."""
    if len(words) == 1 and not is_session(repo, words[0]):
        return only_session(repo, "SESSION REF"), _bound_branch(changes=True), words[0]
    if len(words) < 2:
        return *parse_changed(repo, words[0] if words else None), None
    return parse_changed_at(repo, words, "REF")


def _require_no_session(repo: Repository, word: str, noun: str) -> None:
    """Check that the only word of a command is not a session, unless it is a checkpoint of the only session."""
    if not is_session(repo, word):
        return
    sessions = repo.sessions(2)
    if len(sessions) == 1 and has_checkpoint(repo.session(sessions[0].id), word):
        return
    raise InvalidInput(
        f"{quote_name(word)} is a session. Name the {_NOUNS[noun]} too: "
        f"{COMMAND_PATH.get()} {shlex.quote(clean(word))} {noun}"
    )


_NOUNS = {"REF": "checkpoint", "BRANCH": "branch", "RESTORE_POINT": "message or checkpoint"}
"""What the last word of a command is, by its name in the usage."""


def has_checkpoint(session: Session, ref: str) -> bool:
    try:
        session.get_checkpoint(ref)
    except NotFound:
        return False
    return True


def _bound(*, changes: bool) -> tuple[Session, str] | None:
    """Return the session and branch of a notebook's agent; None in a terminal."""
    host = HOST.get()
    return host.session(changes=changes) if host is not None else None


def _bound_branch(*, changes: bool) -> str | None:
    bound = _bound(changes=changes)
    return bound[1] if bound is not None else None


# -- commands that read


def default_session(repo: Repository, name: str | None = None) -> Session:
    """Return the named session; by default a notebook's, else the most recently updated one."""
    bound = _bound(changes=False) if name is None else None
    return bound[0] if bound is not None else _named(repo, name)


def parse_session(repo: Repository, text: str | None, *, shows_session: bool = False) -> tuple[Session, str | None]:
    """Parse `SESSION`, `SESSION@BRANCH` or `@BRANCH` of a command that only reads."""
    session, branch = split(repo, text)
    if session is not None:
        return session, branch
    session = default_session(repo) if shows_session else newest_session(repo)
    return session, branch or _bound_branch(changes=False)


def read_session(repo: Repository, name: str | None) -> Session:
    """Return the session that a command reads: the named one, or the most recently updated one."""
    return _named(repo, name) if name is not None else newest_session(repo)


def newest_session(repo: Repository) -> Session:
    """Return the most recently updated session; if there are several, say on standard error which one it is."""
    if (bound := _bound(changes=False)) is not None:
        return bound[0]
    session = repo.session()
    if len(repo.sessions(2)) > 1:
        output.print_notice(f"session {clean(quote_name(session.reference))}, which was updated last")
    return session


def parse_optional(repo: Repository, words: list[str]) -> tuple[Session, str | None, str]:
    """Parse `[SESSION[@BRANCH]] WORD` of a command that only reads; without a session, the newest one is meant."""
    _require_at_most_two(words)
    *first, word = words
    return *parse_session(repo, first[0] if first else None), word


def parse_pair(repo: Repository, words: list[str]) -> tuple[Session, str, str]:
    """Parse `[SESSION] A B` of a command that compares; without a session, the newest one is meant."""
    if len(words) == 3:
        return _named(repo, words[0]), words[1], words[2]
    session = newest_session(repo) if len(words) == 2 else None
    named = (word for word in words[:2] if is_session(repo, word) and not (session and has_checkpoint(session, word)))
    if (name := next(named, None)) is not None:
        raise InvalidInput(
            f"{quote_name(name)} is a session. Name it first, and then two checkpoints: "
            f"{COMMAND_PATH.get()} {shlex.quote(clean(name))} A B"
        )
    if session is None:
        raise typer.BadParameter(f"give two checkpoints: {COMMAND_PATH.get()} [SESSION] A B")
    return session, words[0], words[1]


def checkpoint(repo: Repository, first: str | None, second: str | None) -> Checkpoint:
    """Parse `[SESSION] [REF]`: one argument is a reference in the most recent session, else a session."""
    if second is not None:
        return _named(repo, first).get_checkpoint(second)
    try:
        found = default_session(repo).get_checkpoint(first or "HEAD", branch=_bound_branch(changes=False))
    except NotFound as error:
        try:
            session = _named(repo, first)
        except NotFound:
            raise error from None
        return session.get_checkpoint("HEAD")
    newest_session(repo)
    return found


# -- words


def is_session(repo: Repository, text: str) -> bool:
    """Return whether a word names a session, alone or as `SESSION@BRANCH`."""
    try:
        return _find(repo, text)[0] is not None
    except NotFound:
        return False


def split(repo: Repository, text: str | None) -> tuple[Session | None, str | None]:
    """Split `SESSION`, `SESSION@BRANCH` or `@BRANCH`, which the command names, into a session and a branch."""
    if text is None:
        return None, None
    session, branch = _find(repo, text)
    _name(session, text if branch is None else text.removesuffix(f"@{branch}"), branch)
    return session, branch


def _find(repo: Repository, text: str) -> tuple[Session | None, str | None]:
    """Find the session that exists, and the branch, of `SESSION`, `SESSION@BRANCH` or `@BRANCH`."""
    try:
        return repo.session(text), None
    except NotFound:
        # Split at the @ only now, because the name of a session may contain one.
        session, separator, branch = text.rpartition("@")
        if not (separator and branch):
            raise
        return repo.session(session) if session else None, branch


def _named(repo: Repository, name: str | None) -> Session:
    session = repo.session(name)
    if name is not None:
        _name(session, name)
    return session


def _name(session: Session | None, name: str, branch: str | None = None) -> None:
    if session is not None and name.startswith("-"):
        name = str(session.id)  # the name would be read as an option
    NAMED_PLACE.set(NAMED_PLACE.get()._replace(session=name, branch=branch or ""))


def _require_at_most_two(words: list[str]) -> None:
    if len(words) > 2:
        raise InvalidInput(f"{' '.join(words)}: write at most a session and a reference; put quotes around a name.")


# -- graphs


FIRST_SESSION = "chat"
"""The name of the session that is created if none is named and none exists."""


def wrap_graph(
    repo: Repository,
    graph: str,
    session: str | None,
    *,
    effects: str | None,
    workspace: Path | None,
    template: str | None = None,
) -> RollbackAgent:
    """Wrap the named graph in the session to continue or to create."""
    from agentgit.agents import user_modules

    options: dict[str, Any] = {"workspace": workspace} if workspace is not None else {}
    name, branch = _session_and_branch(repo, session)
    return repo.wrap(
        user_modules.graph_in(graph),
        name,
        effects=user_modules.value_in(effects) if effects else None,
        branch=branch,
        template=template,
        **options,
    )


def _session_and_branch(repo: Repository, ref: str | None) -> tuple[str, str | None]:
    """Return the name of the session to continue or to create, and the branch.

    Text like `support@example.com` is the name of a new session, unless `support` has a branch of that name.
    """
    try:
        session, branch = split(repo, ref)
        session = session or only_session(repo)
        if branch is not None:
            session.branch(branch)
    except NotFound:
        if ref is not None and ref.startswith("@"):  # a branch of the only session
            raise
        NAMED_PLACE.set(NAMED_PLACE.get()._replace(session=ref or "", branch=""))
        return FIRST_SESSION if ref is None else ref, None
    return session.reference, branch
