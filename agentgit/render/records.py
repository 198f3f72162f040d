"""Values as JSON-like data for programs: the fields that lists show, without the content."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.sessions import InternalSession, Tree
from agentgit.values import portable


def record(value: Any) -> dict[str, Any]:
    """Return the fields of a value, with sets as sorted lists.

    The content of a checkpoint and of a branch is not read. A tree is a list of its branches, parents before their
    children, each with its checkpoints.
    """
    data: dict[str, Any] = portable(
        {k: sorted(v) if isinstance(v, frozenset) else v for k, v in _fields(value).items()}
    )
    return data


def _fields(value: Any) -> dict[str, Any]:
    if isinstance(value, Checkpoint):
        return {
            "id": value.id,
            "name": value.checkpoint_name,
            "is_auto": value.is_auto,
            "created_at": value.created_at,
            "internal_session_id": value.internal_session_id,
            "user_id": value.user_id,
            **value.metadata,
        }
    if isinstance(value, InternalSession):
        return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in value.CONTENT}
    if isinstance(value, Tree):
        branches = [{**vars(branch), "points": [vars(point) for point in branch.points]} for branch in value.walk()]
        for branch in branches:
            del branch["children"]  # each child names its parent; nested data would be as deep as the tree
        return {"session_name": value.session_name, "branches": branches}
    return value if isinstance(value, dict) else vars(value)
