"""agentgit: git for LangGraph sessions. Branch, roll back, and undo what the tools did."""

from agentgit.checkpoints import Checkpoint
from agentgit.errors import (
    AgentGitError,
    Ambiguous,
    Conflict,
    Corrupt,
    InvalidInput,
    NotAllowed,
    NotFound,
    RollbackBlocked,
    RollbackIncomplete,
    SchemaMismatch,
    Unavailable,
    WorkspaceChanged,
    WorldDiverged,
)

__version__ = "0.1.0"

__all__ = [
    "AgentGitError",
    "Ambiguous",
    "Checkpoint",
    "Conflict",
    "Corrupt",
    "InvalidInput",
    "NotAllowed",
    "NotFound",
    "RollbackBlocked",
    "RollbackIncomplete",
    "SchemaMismatch",
    "Unavailable",
    "WorkspaceChanged",
    "WorldDiverged",
]
