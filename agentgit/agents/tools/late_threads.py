"""The threads that began during some work, and what they may have started since it ended."""

from __future__ import annotations

import sys
import threading
from weakref import WeakSet

WORK_SHARERS = frozenset({"asyncio", "concurrent", "langchain_core", "langgraph"})
"""The packages that let other threads work for the thread that called them."""


class ThreadsDuring:
    """The threads that begin during some work, which begins now."""

    def __init__(self) -> None:
        self._earlier = WeakSet(threading.enumerate())
        self._begun: WeakSet[threading.Thread] = WeakSet()

    def end(self) -> None:
        """Note that the work has ended."""
        self._begun = WeakSet(one for one in threading.enumerate() if one not in self._earlier)

    @property
    def are_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._begun)

    def origin_of(self, thread: threading.Thread) -> threading.Thread | None:
        """Return the thread of the ended work that a thread is, or that may have started it since; None for others."""
        if thread in self._begun:
            return thread
        return None if thread in self._earlier else next((one for one in self._begun if _has_others_work(one)), None)


def _has_others_work(thread: threading.Thread) -> bool:
    """Return whether a thread is in code that runs tools in further threads; Python does not tell who started those."""
    frame = sys._current_frames().get(thread.ident or 0) if thread.is_alive() else None  # another one may have its id
    while frame is not None and (frame := frame.f_back) is not None:  # an idle worker of a pool is at its first frame
        if frame.f_globals.get("__name__", "").partition(".")[0] in WORK_SHARERS:
            return True
    return False
