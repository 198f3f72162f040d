"""The fields of an export about reruns: the mark of a branch, and the report of an operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentgit.sessions.rerun import RerunReport
from agentgit.store.transfer.fields import (
    MAX_COUNT,
    Check,
    exact_object,
    flag,
    ident,
    json_object,
    json_value,
    list_of,
    mapping_of,
    nullable,
    number,
    settings,
    text,
    word,
)

CALL_IDS = {"calls": ("recorded_id",), "not_made": ("id",)}
"""The fields of a report's lists that are ids of calls."""

check_mark: Check = settings(
    {
        "of": nullable(ident),
        "status": text,
        "group": nullable(text),
        "is_real": flag,
        "verdict": json_value,
        "tokens": nullable(number()),
        "error": nullable(text),
        "judged": flag,
    }
)


def _check_figure(value: Any) -> float | None:
    if value is not None and (type(value) not in (int, float) or not 0 <= value < MAX_COUNT):
        raise ValueError("is not a number of seconds, or a cost")
    return None if value is None else float(value)


_check_usage = mapping_of(list_of(number()))

_check_known = settings(
    {
        "branch": text,
        "source": text,
        "status": text,
        "reason": nullable(text),
        "turns": number(),
        "recorded_turns": number(),
        "calls": list_of(
            exact_object(
                tool_name=text,
                args=json_object,
                answered_by=text,
                turn=number(),
                recorded_id=nullable(ident),
                is_reordered=flag,
            )
        ),
        "not_made": list_of(exact_object(id=ident, tool_name=text, args=json_object)),
        "unanswered": list_of(json_value),
        "is_same_state": flag,
        "end": nullable(word(64)),
        "seconds": _check_figure,
        "recorded_seconds": _check_figure,
        "cost": _check_figure,
        "recorded_cost": _check_figure,
        "tokens": _check_usage,
        "recorded_tokens": _check_usage,
        "model_calls": number(),
        "recorded_model_calls": nullable(number()),
    }
)


def check_report(value: Any) -> dict[str, Any]:
    """Check the report of a rerun."""
    report = _check_known(value)
    try:
        return RerunReport.from_dict(report).to_dict()
    except TypeError as error:
        raise ValueError("lacks a field of the report of a rerun") from error


def call_ids(report: Mapping[str, Any]) -> Iterator[int]:
    """Yield the ids of the calls in a checked report."""
    for group, names in CALL_IDS.items():
        yield from (item[name] for item in report[group] for name in names if item[name] is not None)


def remap_report(report: Mapping[str, Any], calls: Mapping[int, int]) -> dict[str, Any]:
    """Return a report with the new ids of calls."""
    groups = {
        group: [{**item, **{name: calls.get(item[name]) for name in names}} for item in report[group]]
        for group, names in CALL_IDS.items()
    }
    return {**report, **groups}
