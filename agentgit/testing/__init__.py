"""Recorded sessions as tests: `sessions` runs exported ones with pytest, `RecordedModel` replays recorded replies."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentgit.testing.recorded_model import RecordedModel
    from agentgit.testing.recorded_session import RecordedSession, sessions

__all__ = ["RecordedModel", "RecordedSession", "sessions"]

_MODULES = {
    "RecordedModel": "agentgit.testing.recorded_model",
    "RecordedSession": "agentgit.testing.recorded_session",
    "sessions": "agentgit.testing.recorded_session",
}
"""The public names, each with its module, which is imported late: pytest loads the plugin for every project."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
