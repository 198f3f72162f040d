"""The call that is running: what a tool may ask about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentgit.errors import NotFound

_key: ContextVar[str | None] = ContextVar("agentgit_idempotency_key", default=None)


def idempotency_key() -> str:
    """Return the idempotency key of the tool call that is running, for a service that makes a call with it only once.

    Every attempt at the same call has the same key: a retry, and the attempt after a crash. A call that was reversed
    and is made again has another one.

    Raises:
        NotFound: No recorded call is running here.

    Example:
        >>> with running("5e91f633"):
        ...     idempotency_key()
        '5e91f633'
    """
    key = _key.get()
    if key is None:
        raise NotFound("No recorded tool call is running here. Ask inside of a tool that a wrapped graph calls.")
    return key


@contextmanager
def running(key: str | None) -> Iterator[None]:
    """Mark a call as the running one until the block ends."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)
