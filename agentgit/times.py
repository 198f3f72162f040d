"""Times and durations as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from agentgit.errors import InvalidInput

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration; None if it is not one.

    Example:
        >>> parse_duration("36h")
        datetime.timedelta(days=1, seconds=43200)
    """
    match = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match is not None else None


def parse_time(text: str | None) -> datetime | None:
    """Parse a duration before now, like `2h`, or an ISO 8601 time, without an offset in this machine's zone."""
    if text is None:
        return None
    try:
        ago = parse_duration(text)
        return datetime.now(UTC) - ago if ago is not None else datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{text!r} is not a time; write it like 2026-11-21 or '2026-11-21 14:30', or like 5m, 2h or 3d, "
            "counted back from now."
        ) from error
