"""Metadata of a branch beside its columns, as an export carries it: only known entries, with other ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgit.store.transfer.fields import Check, fields, ident, many, maybe, named, number, plain, shaped, text


def _score(value: Any) -> Any:
    """Take what `float` reads: a number, or what JSON has no number for."""
    if value not in ("inf", "-inf", "nan") and (type(value) not in (int, float) or abs(value) > GREATEST):
        raise ValueError("is no number")
    return value


GREATEST = 1e300

_EXPLORED: dict[str, Check] = {
    "name": text,
    "of": ident,
    "choices": many(number(1)),
    "said": plain,
    "status": text,
    "end": maybe(ident),
    "score": maybe(_score),
    "error": maybe(text),
}

_KNOWN: dict[str, Check] = {
    "turns": number(),
    "exploration": lambda mark: _some(mark, _EXPLORED, ("name", "of", "choices", "end")),
    "world_note": maybe(text),
    "world_drift": maybe(named(text)),
    "imported": shaped(thread_id=text, newest=text, calls=number()),
    "template": shaped(checkpoint=maybe(ident), reference=text),
}

Ids = Mapping[str, Mapping[int, int]]
"""For each kind of record, the new id of each old one."""


def checked(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a branch's metadata; the rest is left out.

    Raises:
        ValueError: Something is not what it should be.

    Example:
        >>> checked({"turns": 2, "colour": "red"})
        {'turns': 2}
    """
    known = {name: value for name, value in meta.items() if name in _KNOWN}
    return fields(known, {name: _KNOWN[name] for name in known})


def moved(meta: Mapping[str, Any], ids: Ids) -> dict[str, Any]:
    """Return a branch's metadata with other ids.

    Args:
        meta: The metadata, as `checked` returned it.
        ids: The ids of branches, checkpoints and calls.

    Raises:
        ValueError: It names a branch that is not there.
    """
    found = dict(meta)
    if began := meta.get("template"):  # which is of another session, and may be there under another id, or not
        found["template"] = {**began, "checkpoint": None}
    if mark := meta.get("exploration"):
        if mark["of"] not in ids["branch"]:
            raise ValueError(f"was explored from a branch {mark['of']} that is not there")
        moved_mark = {**mark, "of": ids["branch"][mark["of"]]}
        moved_mark["end"] = ids["checkpoint"].get(mark["end"])
        found["exploration"] = moved_mark
    if drifted := meta.get("world_drift"):
        new = {str(ids["call"].get(int(id))): said for id, said in drifted.items() if id.isascii() and id.isdigit()}
        found["world_drift"] = {id: said for id, said in new.items() if id != "None"}
    return found


def _some(mark: Any, checks: Mapping[str, Check], needed: tuple[str, ...]) -> dict[str, Any]:
    """Check an object that has some of these fields, and all that are needed."""
    if type(mark) is not dict:
        raise ValueError("is no object")
    return fields(mark, {name: check for name, check in checks.items() if name in mark or name in needed})
