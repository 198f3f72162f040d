"""Connections that a server may have closed meanwhile are asked before they are used, those used just now are not."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

IDLE_SECONDS = 5.0
"""After so long a connection is asked; asking every time costs a third of a turn on PostgreSQL."""

_USED = "agentgit_used"


def ask_when_idle(engine: Engine) -> None:
    """Replace connections of a pool that have been idle and do not answer."""

    def check(raw: Any, record: Any, _proxy: Any) -> None:
        now = time.monotonic()
        used = record.info.get(_USED, now)
        record.info[_USED] = now
        if now - used < IDLE_SECONDS:
            return
        try:
            engine.dialect.do_ping(raw)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError("the server closed an idle connection") from error

    event.listen(engine, "checkout", check)
