"""Values as JSON-like data for programs: the fields that lists show, without the content."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.sessions import ExternalSession, InternalSession, Tree
from agentgit.sessions.reports import Operation
from agentgit.values import portable


def of_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the columns of a checkpoint; its content is not read."""
    return _plain(
        {
            "id": checkpoint.id,
            "name": checkpoint.checkpoint_name,
            "is_auto": checkpoint.is_auto,
            "created_at": checkpoint.created_at,
            "internal_session_id": checkpoint.internal_session_id,
            "user_id": checkpoint.user_id,
            **checkpoint.metadata,
        }
    )


def of_branch(branch: InternalSession) -> dict[str, Any]:
    """Return the columns of a branch; its content is not read."""
    return _plain({f.name: getattr(branch, f.name) for f in fields(branch) if f.name not in branch.CONTENT})


def of_session(session: ExternalSession) -> dict[str, Any]:
    """Return the columns of a session."""
    return _plain(vars(session))


def of_value(value: Any) -> dict[str, Any]:
    """Return the fields of a plain value, such as a member or a key, with sets as sorted lists."""
    data = value if isinstance(value, dict) else vars(value)
    return _plain({name: sorted(item) if isinstance(item, frozenset) else item for name, item in data.items()})


def of_operation(operation: Operation) -> dict[str, Any]:
    """Return the fields of an operation."""
    return _plain(vars(operation))


def of_tree(tree: Tree) -> dict[str, Any]:
    """Return a tree as a list of its branches, parents before their children, each with its checkpoints.

    Example:
        >>> of_tree(Tree(session_name="s", roots=[]))
        {'session_name': 's', 'branches': []}
    """
    branches = [{**vars(branch), "points": [vars(p) for p in branch.points]} for branch in tree.walk()]
    for branch in branches:
        del branch["children"]  # each child names its parent; nested data would be as deep as the tree
    return _plain({"session_name": tree.session_name, "branches": branches})


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    portable_data: dict[str, Any] = portable(data)
    return portable_data
