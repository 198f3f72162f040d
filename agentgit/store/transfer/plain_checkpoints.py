"""Plain checkpoints: values built by hand, or JSON as `Checkpoint.to_dict` describes it, written as an export.

The export then takes the same way into the database as any other: it is checked as a whole, and stored in one
transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from reprlib import repr as short_repr
from typing import IO, Any

from agentgit.checkpoints import Checkpoint, references
from agentgit.errors import InvalidInput
from agentgit.store.records.checkpoints import MERGE_KEY, require_text
from agentgit.store.sql.ids import new_id
from agentgit.store.transfer.fields import time
from agentgit.store.transfer.json_checks import require_flat
from agentgit.store.transfer.lines import LineWriter
from agentgit.store.transfer.plain_calls import Track
from agentgit.store.transfer.plain_states import State, States
from agentgit.store.transfer.records import COUNTED_KINDS, FORMAT, HEADER, SESSION
from agentgit.values import portable
from agentgit.version import VERSION

MAX_BYTES = 256 * 2**20
"""The maximum size of a JSON file of checkpoints, in bytes. It is read as a whole, unlike an export."""

DEFAULT_NAME = "imported"
"""The name of the session, if none is chosen; it is numbered if it is taken."""

_BRANCH_ID = 1
_KINDS = ("before", "after", "tools")
_OWN_METADATA = frozenset(
    {
        "reference",
        "branch",
        "number",
        "kind",
        "description",
        "restore_point",
        "message_count",
        "tool_track_position",
        "state_hash",
        "workspace_snapshot",
        "data",
        "pending",
        "tags",
    }
)
"""The metadata that agentgit writes. What else a checkpoint has there is imported as its data."""


def is_plain_json(beginning: bytes) -> bool:
    """Return whether a file that begins so is a JSON array, and so not an export."""
    return beginning.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def parse_checkpoints(file: IO[bytes]) -> list[Checkpoint]:
    """Read a JSON array of checkpoints."""
    text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise InvalidInput(
            f"The JSON of checkpoints is larger than {MAX_BYTES // 2**20} MiB. Import its parts as several sessions."
        )
    try:
        items = json.loads(text)  # orjson would change huge numbers
        require_flat(items)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"This is not a JSON array of checkpoints: {_describe(error)}. Nothing was imported."
        ) from error
    checkpoints = []
    for number, item in enumerate(items, 1):
        try:
            checkpoints.append(Checkpoint.from_dict(item))
        except InvalidInput as error:
            raise _refusal(number, str(error)) from error
    return checkpoints


def _describe(error: BaseException) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _refusal(number: int, problem: str) -> InvalidInput:
    return InvalidInput(f"Checkpoint {number} of the import: {problem.rstrip('.')}. Nothing was imported.")


def write_export(checkpoints: Sequence[Checkpoint], file: IO[bytes]) -> frozenset[int]:
    """Write checkpoints as the export of a session with one branch, and return the ids that they keep."""
    lines, counts = LineWriter(), dict.fromkeys(COUNTED_KINDS, 0)
    for record in _records(_sorted_by_time(checkpoints)):
        if record["record"] in counts:
            counts[record["record"]] += 1
        file.write(lines.line(record))
    file.write(lines.line({"record": "end", "counts": counts}))
    return frozenset(checkpoint.id for checkpoint in checkpoints if checkpoint.id is not None)


def _sorted_by_time(checkpoints: Sequence[Checkpoint]) -> list[tuple[int, Checkpoint, datetime]]:
    """Sort checkpoints by time; return each with its number in the import and its time, which is now by default."""
    if not checkpoints:
        raise InvalidInput("There are no checkpoints to import.")
    now, numbered = datetime.now(UTC), []
    for number, checkpoint in enumerate(checkpoints, 1):
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidInput(f"Item {number} is not a Checkpoint, but {short_repr(checkpoint)}.")
        # A checkpoint that a program changed after it was built is checked like one from a file.
        checked = Checkpoint.from_dict(checkpoint.to_dict())
        at = checked.created_at or now
        try:
            numbered.append((number, checked, time(at.isoformat())))
        except ValueError as error:
            raise _refusal(number, f"created_at {at} has no time zone or is out of range") from error
    numbered.sort(key=lambda item: item[2])
    _require_ids(numbered)
    return numbered


def _require_ids(numbered: Iterable[tuple[int, Checkpoint, datetime]]) -> None:
    """Check that the ids were made by agentgit or a smaller counter, and increase with the times."""
    last_id, newest_id = 0, new_id()
    for number, checkpoint, _ in numbered:
        if checkpoint.id is None:
            last_id = newest_id
            continue
        if not 0 < checkpoint.id < newest_id:
            raise _refusal(number, f"the id {short_repr(checkpoint.id)} is not one that agentgit has made so far")
        if checkpoint.id <= last_id:
            raise _refusal(
                number,
                f"the id {checkpoint.id} occurs twice, or does not increase with the time of the checkpoints; "
                "leave out all ids for new ones",
            )
        last_id = checkpoint.id


def _records(numbered: Sequence[tuple[int, Checkpoint, datetime]]) -> Iterator[dict[str, Any]]:
    """Yield the records of the export in their order."""
    first_time = numbered[0][2].isoformat()
    ids = _file_ids([checkpoint for _, checkpoint, _ in numbered])
    yield {"record": HEADER, "format": FORMAT, "of": SESSION, "place": None, "agentgit": VERSION, "made_at": first_time}
    yield {"record": "session", "id": 1, "name": DEFAULT_NAME, "created_at": first_time, "current": _BRANCH_ID}
    yield {
        "record": "branch",
        "id": _BRANCH_ID,
        "name": "main",
        "parent": None,
        "point": None,
        "inherited": 0,
        "head": ids[-1],
        "created_at": first_time,
        "meta": {},
    }
    states, track = States(_BRANCH_ID), Track(_BRANCH_ID)
    points, tags = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for (number, checkpoint, at), id in zip(numbered, ids, strict=True):
        try:
            yield from states.add(checkpoint, at)
            track.add(checkpoint, at)
            points.append(_checkpoint_record(checkpoint, id, len(points) + 1, at, states.last))
            for name in _tag_names(checkpoint):
                if name in tags:
                    raise ValueError(f"the tag {name!r} occurs twice")
                tags[name] = _tag_record(name, id, at)
        except (ValueError, InvalidInput) as error:
            raise _refusal(number, str(error)) from error
    yield from points
    yield from tags.values()
    yield from track.records()
    yield from track.log_records()


def _file_ids(checkpoints: Sequence[Checkpoint]) -> list[int]:
    """Return the id of each checkpoint in the export: its own, or for one without an id a greater number."""
    next_id, ids = max((checkpoint.id or 0 for checkpoint in checkpoints), default=0), []
    for checkpoint in checkpoints:
        next_id += checkpoint.id is None
        ids.append(checkpoint.id if checkpoint.id is not None else next_id)
    return ids


# -- checkpoints and tags


def _checkpoint_record(
    checkpoint: Checkpoint, id: int, number: int, at: datetime, state: State | None
) -> dict[str, Any]:
    metadata = checkpoint.metadata
    kind, description = metadata.get("kind"), metadata.get("description")
    restore_point = metadata.get("restore_point")
    require_text(checkpoint.checkpoint_name, description)
    data = _data(metadata)
    return {
        "record": "checkpoint",
        "id": id,
        "branch": _BRANCH_ID,
        "number": number,
        "name": checkpoint.checkpoint_name,
        "description": description,
        "kind": "named" if not checkpoint.is_auto else kind if kind in _KINDS else "after",
        "is_auto": checkpoint.is_auto,
        "created_at": at.isoformat(),
        "state": state.id if state is not None else None,
        "state_hash": state.hash.hex() if state is not None else None,
        "position": len(checkpoint.tool_invocations),
        "messages": state.message_count if state is not None else 0,
        "restore_point": restore_point if isinstance(restore_point, str) else None,
        "data": portable(data) if data is not None else None,
        "pending": None,
    }


def _data(metadata: Mapping[str, Any]) -> Any:
    """Return the data of a checkpoint: its own, with the metadata that agentgit does not know."""
    data, more = metadata.get("data"), {key: value for key, value in metadata.items() if key not in _OWN_METADATA}
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key != MERGE_KEY} or (None if MERGE_KEY in data else {})
    if not more:
        return data
    return {**more, **data} if isinstance(data, dict) else {**more, **({"data": data} if data is not None else {})}


def _tag_names(checkpoint: Checkpoint) -> list[str]:
    names = checkpoint.metadata.get("tags") or []
    if not isinstance(names, list | tuple):
        raise ValueError(f"tags must be a list of names, not {short_repr(names)}")
    return [references.require_name(name, "tag") for name in names]


def _tag_record(name: str, checkpoint_id: int, at: datetime) -> dict[str, Any]:
    if name == "main":
        raise ValueError("a tag cannot be called main, as the branch is")
    return {
        "record": "tag",
        "name": name,
        "checkpoint": checkpoint_id,
        "description": None,
        "created_at": at.isoformat(),
    }
