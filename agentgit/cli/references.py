"""Parsing of command arguments that name a session, a branch and a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgit.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.handles.session import Session
    from agentgit.repository import Repository


def parse_session(repo: Repository, text: str | None) -> tuple[Session, str | None]:
    """Parse `SESSION`, `SESSION@BRANCH` or `@BRANCH`.

    Args:
        repo: The repository to look in.
        text: The text to parse; None is the most recent session.

    Raises:
        NotFound: There is no such session.
    """
    try:
        return repo.session(text), None
    except NotFound:
        # Split at the @ only now, because the name of a session may contain one.
        session, separator, branch = (text or "").rpartition("@")
        if not (separator and branch):
            raise
        return repo.session(session or None), branch


def parse_required(repo: Repository, words: list[str]) -> tuple[Session, str | None, str]:
    """Parse `[SESSION[@BRANCH]] WORD`.

    Args:
        repo: The repository to look in.
        words: The words of the command.

    Returns:
        The session, the branch that was named with it, and the word.

    Raises:
        InvalidInput: There are too many words.
        NotFound: There is no such session.
    """
    if len(words) > 2:
        raise InvalidInput(f"{' '.join(words)}: write at most a session and a reference; put quotes around a name.")
    *session, word = words
    return *parse_session(repo, session[0] if session else None), word


def parse_optional(repo: Repository, words: list[str]) -> tuple[Session, str | None, str | None]:
    """Parse `[SESSION[@BRANCH]] [REF]`: one word is a reference in the most recent session, else a session.

    Args:
        repo: The repository to look in.
        words: The words of the command.

    Returns:
        The session, the branch that was named with it, and the reference if there is one.

    Raises:
        InvalidInput: There are too many words.
        NotFound: There is no such session or checkpoint.
    """
    if len(words) != 1:
        return parse_required(repo, words) if words else (*parse_session(repo, None), None)
    try:
        repo.session().get_checkpoint(words[0])
    except NotFound as error:
        try:
            return *parse_session(repo, words[0]), None
        except NotFound:
            raise error from None
    return *parse_session(repo, None), words[0]


def checkpoint(repo: Repository, first: str | None, second: str | None) -> Checkpoint:
    """Parse `[SESSION] [REF]`: one argument is a reference in the most recent session, else a session.

    Args:
        repo: The repository to look in.
        first: The session, or the reference if there is no second.
        second: The reference.

    Raises:
        NotFound: There is no such session or checkpoint.
    """
    if second is not None:
        return repo.session(first).get_checkpoint(second)
    try:
        return repo.session().get_checkpoint(first or "HEAD")
    except NotFound as error:
        try:
            session = repo.session(first)
        except NotFound:
            raise error from None
        return session.get_checkpoint("HEAD")
