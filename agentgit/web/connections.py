"""The connections of a server: how long each may take, and how many there may be (uvicorn alone waits for ever)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from agentgit.store.records.login_attempts import network_of
from agentgit.web.site import Site

LOG = logging.getLogger("agentgit.web")

QUIET_SECONDS = 60.0
"""For so long the log does not tell again that an address has too many connections."""


class Connections:
    """The open connections of one server.

    Args:
        site: With the limits, and the proxies, which may have as many as there are.
    """

    def __init__(self, site: Site) -> None:
        self.limits = site.limits
        self._proxies = site.proxies
        self._of: Counter[str] = Counter()
        self._waiting: dict[Connection, None] = {}
        self._told = 0.0

    def __len__(self) -> int:
        return self._of.total()

    def enter(self, connection: Connection) -> None:
        """End a connection whose address has too many; where there are too many, end the one that waits longest."""
        peer, source = connection.client[0] if connection.client else "", connection.source
        self._of[source] += 1
        if self._of[source] > self.limits.connections_each and not self._proxies.trust(peer):
            self._tell(source)
            connection.transport.abort()
        elif len(self) >= self.limits.connections:
            longest = next((one for one in self._waiting if one is not connection), None)
            if longest is not None:
                self._waiting.pop(longest)
                longest.transport.abort()

    def leave(self, connection: Connection) -> None:
        """Let a connection be gone."""
        self._waiting.pop(connection, None)
        self._of[connection.source] -= 1
        if not self._of[connection.source]:
            del self._of[connection.source]

    def wait(self, connection: Connection, waits: bool) -> None:
        """Note whether a connection waits for a whole request; who waits already keeps the place."""
        if waits:
            self._waiting.setdefault(connection)
        else:
            self._waiting.pop(connection, None)

    def _tell(self, source: str) -> None:
        if time.monotonic() >= self._told:
            self._told = time.monotonic() + QUIET_SECONDS
            LOG.warning(
                "%s has %d connections open and gets no more. If it is your proxy: agentgit serve --trusted-proxy %s",
                source,
                self.limits.connections_each,
                source,
            )


class Connection(H11Protocol):
    """A connection that is cut if the head of a request does not come in time, or the other side does not read.

    Args:
        among: All of the server.
        given: As uvicorn gives it.
    """

    def __init__(self, among: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.source = ""
        self._among = among
        self._late: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.source = network_of(self.client[0]) if self.client else ""
        self._watch()
        self._among.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        self._among.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; a whole head ends the wait."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Begin to wait until the other side reads."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self._among.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the other side reads."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def _watch(self) -> None:
        """See whether a request is under way. If not, the time runs from the moment on at which the last one ended.

        One whose body is still to come has its time in `Guard`, but gives way to others as if it had not come.
        """
        waits = self.cycle is None or self.cycle.response_complete
        self._among.wait(self, waits or self.cycle.more_body)
        if waits == (self._late is not None):
            return
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self._among.limits.seconds, self.transport.abort) if waits else None
