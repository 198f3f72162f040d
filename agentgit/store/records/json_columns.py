"""The JSON of branches and operations: the shapes of what travels in a file and of what stays, and its reading."""

from __future__ import annotations

from typing import Any

from agentgit.effects.files import FileChange, FileChanges, SnapshotRef
from agentgit.effects.plan import ANSWER, BLOCK, GONE, KEEP, REDO, REPLAY_MODES, REVERSE, ROLLBACK, TOOLS_MODES
from agentgit.effects.report import GROUPS
from agentgit.errors import Corrupt
from agentgit.next_steps import Reason
from agentgit.sessions.session import DONE
from agentgit.sessions.stats import UsedTokens
from agentgit.store.records.json_shapes import (
    MAX_COUNT,
    Chosen,
    Names,
    Nullable,
    Ref,
    Shape,
    anything,
    flag,
    forgotten,
    is_shaped,
    named,
    number,
    one_of,
    text,
    word,
)
from agentgit.store.sql.driver_errors import unreadable_row
from agentgit.values import UNREADABLE, as_object

_CALL, _BRANCH, CHECKPOINT_ID = Ref("tool_invocation"), Ref("internal_session"), Ref("checkpoint")
_ANY_CALL, _ANY_BRANCH, _ANY_POINT = (one._replace(is_optional=True) for one in (_CALL, _BRANCH, CHECKPOINT_ID))


def _score(value: Any) -> Any:
    """Check for a number, or the name of a float that JSON cannot express."""
    if value not in ("inf", "-inf", "nan") and (type(value) not in (int, float) or abs(value) > 1e300):
        raise ValueError("is not a number")
    return value


def _figure(value: Any) -> float | None:
    if value is not None and (type(value) not in (int, float) or not 0 <= value < MAX_COUNT):
        raise ValueError("is not a number of seconds, or a cost")
    return None if value is None else float(value)


def _verdict(value: Any) -> Any:
    if value is not None and type(value) not in (bool, int, float, str):
        raise ValueError("is no verdict")
    return value


def _used_tokens(value: Any) -> list[int]:
    if len(is_shaped([number()], value)) > len(UsedTokens._fields):
        raise ValueError("is not the usage of tokens")
    return list(value)


BRANCH_META = {
    "turns?": number(),
    "exploration?": {
        "name": text, "of": _BRANCH, "choices": [number(1)], "said?": anything, "status?": text,
        "end": Nullable(_ANY_POINT), "score?": Nullable(_score), "error?": Nullable(text),
    },
    "world_note?": Nullable(text),
    "world_drift?": Nullable(Names(_ANY_CALL, text)),
    "imported?": {"thread_id": text, "newest": text, "calls": number()},
    "template?": {"checkpoint": forgotten, "reference": text},  # it is in another session
    "rerun?": {
        "of?": Nullable(_ANY_BRANCH), "status?": text, "group?": Nullable(text), "is_real?": flag, "verdict?": _verdict,
        "tokens?": Nullable(number()), "error?": Nullable(text), "judged?": flag,
    },
}  # fmt: skip


SETTINGS = {
    "on_error?": text, "on_drift?": text, "tools?": one_of(*TOOLS_MODES), "replay?": one_of(*REPLAY_MODES),
    "force?": flag, "sync?": text,
    "seen?": number(), "current?": flag, "give_up?": flag,
}  # fmt: skip
"""The settings of an operation's request, in addition to its steps. Its files do not travel."""

_STEP = {"invocation": _CALL, "action": one_of(REVERSE, KEEP, BLOCK, GONE, REDO, ANSWER), "why": text}
REQUEST = SETTINGS | {"steps": [_STEP], "accepted": [_CALL]}

_ITEM = {"invocation": _CALL, "reason": text}
_REPORT = {group: [_ITEM] for group in GROUPS}

_RERUN_CALL = {
    "tool_name": text, "args": named, "answered_by": text, "turn": number(), "recorded_id": Nullable(_CALL),
    "is_reordered": flag,
}  # fmt: skip
_RERUN_REPORT = {
    "branch": text, "source": text, "status": text, "reason?": Nullable(text), "turns?": number(),
    "recorded_turns?": number(), "calls": [_RERUN_CALL],
    "not_made?": [{"id": _CALL, "tool_name": text, "args": named}],
    "unanswered?": [anything], "is_same_state?": flag, "end?": Nullable(word), "seconds?": _figure,
    "recorded_seconds?": _figure, "cost?": _figure, "recorded_cost?": _figure, "tokens?": {"*": _used_tokens},
    "recorded_tokens?": {"*": _used_tokens}, "model_calls?": number(), "recorded_model_calls?": Nullable(number()),
}  # fmt: skip


def report_shape(value: Any) -> Shape:
    """Return the shape of the report of an operation. Only that of a rerun has calls."""
    return _RERUN_REPORT if "calls" in named(value) else _REPORT


# -- with what does not travel


def _with_reason(shape: dict[str, Shape], key: str) -> Shape:
    """Build a check for an object with a reason and its next steps."""

    def check(value: Any) -> Reason:
        return Reason.from_dict(is_shaped({**shape, "next?": [named]}, value), key)

    return check


_FILES = Nullable(lambda value: SnapshotRef(**value))
_STORED_META = BRANCH_META | {"*": anything}
_STORED_REQUEST = SETTINGS | {
    "steps": [_with_reason(_STEP, "why")], "accepted?": [_CALL], "conflicts?": [_CALL], "told?": [_CALL],
    "undoes?": Nullable(_CALL), "files?": _FILES, "files_known?": _FILES, "overwrites?": flag, "files_left?": text,
    "files_outside?": [lambda value: FileChange(**value)], "point?": Nullable({"subgraphs": named, "*": anything}),
    "*": anything,
}  # fmt: skip
_STORED_REPORT = {f"{group}?": [_with_reason(_ITEM, "reason")] for group in GROUPS} | {
    "files?": Nullable(FileChanges.from_dict), "*": anything,
}  # fmt: skip
_STORED_REPORTS = Chosen(lambda report: _RERUN_REPORT if "calls" in report else _STORED_REPORT)


def read_meta(branch: Any) -> dict[str, Any]:
    """Return the metadata of a branch."""
    return _read(_STORED_META, "internal_session", branch.id, branch.meta)


def read_request(operation: Any) -> dict[str, Any]:
    """Return the request of an operation, with what its resumption needs if it is not done."""
    needed = {DONE: "", ROLLBACK: "on_error force tools replay"}
    request = _read(_STORED_REQUEST, "operation", operation.id, operation.request)
    names = needed.get(operation.status, needed.get(operation.kind, "on_error force current"))
    if not request.keys() >= {*names.split()}:
        raise unreadable_row("operation", operation.id)
    return request


def read_report(operation: Any) -> dict[str, Any]:
    return _read(_STORED_REPORTS, "operation", operation.id, operation.report)


def _read(shape: Shape, table: str, id: int, data: bytes | None) -> dict[str, Any]:
    try:
        value = as_object(data)
        is_shaped(shape, value)
    except (Corrupt, *UNREADABLE) as error:
        raise unreadable_row(table, id) from error
    return value
