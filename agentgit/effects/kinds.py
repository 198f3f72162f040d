"""Kinds of effect: the words that calls record, and what follows from each of them."""

from __future__ import annotations

from typing import Any, Self


class Kind(str):
    """A kind of effect: the word that a call records, with what follows from it. An unknown word implies nothing."""

    is_neutral = False
    """True if a call leaves the outside world as it is, so that nothing is reversed, kept or reported."""
    is_repeatable = False
    """True if a call may always run again, even if the outcome of the first run is unknown."""
    is_exclusive = True
    """True if a call stops other branches. Files are compared by their snapshots, and sessions share memory."""
    is_undoable = False
    """True if it requires an undo function."""
    leaves_trace = False
    """True if a trace stays even when a call is undone, so that an equal call is not made a second time."""

    def __new__(cls, word: str, **properties: bool) -> Self:
        kind = super().__new__(cls, word)
        vars(kind).update(properties)
        return kind

    @property
    def is_lasting(self) -> bool:
        """True if a call lasts in the world, so that it matters whether it acted."""
        return self.is_undoable or self.leaves_trace

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return handler(str)  # in the web API, it is the word


READ_ONLY = Kind("read_only", is_neutral=True, is_repeatable=True, is_exclusive=False)
STATE = Kind("state", is_neutral=True, is_repeatable=True, is_exclusive=False)
WORKSPACE = Kind("workspace", is_repeatable=True, is_exclusive=False)
IDEMPOTENT = Kind("idempotent", is_repeatable=True)
REVERSIBLE = Kind("reversible", is_undoable=True)
COMPENSABLE = Kind("compensable", is_undoable=True, leaves_trace=True)
IRREVERSIBLE = Kind("irreversible", leaves_trace=True)
UNDECLARED = Kind("undeclared", is_exclusive=False)
MEMORY = Kind("memory", is_repeatable=True, is_exclusive=False)
"""The kind of a write to long-term memory, which agentgit records and undoes itself."""

KINDS = (READ_ONLY, STATE, WORKSPACE, IDEMPOTENT, REVERSIBLE, COMPENSABLE, IRREVERSIBLE)
"""The kinds that a tool can declare."""

RECORDED_KINDS = (*KINDS, MEMORY, UNDECLARED)
"""The kinds that a recorded call can have."""

_BY_WORD = {str(kind): kind for kind in RECORDED_KINDS}


def kind_of(word: str) -> Kind:
    """Return the kind that a word names."""
    return _BY_WORD.get(word) or Kind(word)
