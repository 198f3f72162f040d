"""Warnings that point at the code that called this package."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning at the line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("agentgit.", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
