"""agentgit: git for LangGraph sessions. Branch, roll back, and undo what the tools did."""

import importlib
from typing import TYPE_CHECKING, Any

from agentgit.errors import (
    AgentGitError,
    Ambiguous,
    AnswerRequired,
    Conflict,
    Corrupt,
    Fenced,
    InvalidInput,
    KeyMissing,
    MergeConflict,
    NotAllowed,
    NotFound,
    OutsideRerun,
    PlanChanged,
    PromptChanged,
    RerunDiverged,
    RollbackBlocked,
    RollbackIncomplete,
    SchemaMismatch,
    Simulated,
    Unavailable,
    WorkspaceChanged,
    WorldDiverged,
)
from agentgit.version import VERSION

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.agents.graph.rollback_graph import RollbackGraph
    from agentgit.agents.tools.tool_caller import NotDone
    from agentgit.auth import Keyring, User
    from agentgit.checkpoints import Checkpoint
    from agentgit.checkpoints.diff import Diff, diff
    from agentgit.effects import RollbackPlan, RollbackReport, ToolInvocation, compensable, effect, reversible
    from agentgit.handles.session import Session
    from agentgit.repository import Repository, open
    from agentgit.saver.saver import SQLModelSaver
    from agentgit.sessions import ExternalSession, InternalSession
    from agentgit.sessions.events import Event
    from agentgit.sessions.rerun import RerunReport
    from agentgit.workspace.api import Workspace
    from agentgit.workspace.undo_stack import UndoStack
    from agentgit.workspace.values import Environment, FileCheckpoint

__version__ = VERSION

__all__ = [
    "AgentGitError",
    "Ambiguous",
    "AnswerRequired",
    "Checkpoint",
    "Conflict",
    "Corrupt",
    "Diff",
    "Environment",
    "Event",
    "ExternalSession",
    "Fenced",
    "FileCheckpoint",
    "InternalSession",
    "InvalidInput",
    "KeyMissing",
    "Keyring",
    "MergeConflict",
    "NotAllowed",
    "NotDone",
    "NotFound",
    "OutsideRerun",
    "PlanChanged",
    "PromptChanged",
    "Repository",
    "RerunDiverged",
    "RerunReport",
    "RollbackAgent",
    "RollbackBlocked",
    "RollbackGraph",
    "RollbackIncomplete",
    "RollbackPlan",
    "RollbackReport",
    "SQLModelSaver",
    "SchemaMismatch",
    "Session",
    "Simulated",
    "ToolInvocation",
    "Unavailable",
    "UndoStack",
    "User",
    "Workspace",
    "WorkspaceChanged",
    "WorldDiverged",
    "compensable",
    "diff",
    "effect",
    "open",
    "reversible",
]

_LAZY_NAMES = {
    "Checkpoint": "agentgit.checkpoints",
    "Diff": "agentgit.checkpoints.diff",
    "Environment": "agentgit.workspace.values",
    "Event": "agentgit.sessions.events",
    "ExternalSession": "agentgit.sessions",
    "FileCheckpoint": "agentgit.workspace.values",
    "InternalSession": "agentgit.sessions",
    "Keyring": "agentgit.auth",
    "NotDone": "agentgit.agents.tools.tool_caller",
    "Repository": "agentgit.repository",
    "RerunReport": "agentgit.sessions.rerun",
    "RollbackAgent": "agentgit.agents.agent",
    "RollbackGraph": "agentgit.agents.graph.rollback_graph",
    "RollbackPlan": "agentgit.effects",
    "RollbackReport": "agentgit.effects",
    "SQLModelSaver": "agentgit.saver.saver",
    "Session": "agentgit.handles.session",
    "ToolInvocation": "agentgit.effects",
    "UndoStack": "agentgit.workspace.undo_stack",
    "User": "agentgit.auth",
    "Workspace": "agentgit.workspace.api",
    "compensable": "agentgit.effects",
    "diff": "agentgit.checkpoints.diff",
    "effect": "agentgit.effects",
    "open": "agentgit.repository",
    "reversible": "agentgit.effects",
}
"""The names that are imported on first use, so that a command imports only what it needs: completion waits for it."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module 'agentgit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Register the magics `%agentgit` and `%%branch` with IPython; `%load_ext agentgit` calls this."""
    importlib.import_module("agentgit.notebook.magics").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; `%unload_ext agentgit` calls this."""
    importlib.import_module("agentgit.notebook.magics").unload(shell)
