"""The protocol of an environment that takes and restores snapshots. Users may implement it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Environment(Protocol):
    """Something whose state can be kept and brought back: a directory, a container, yours.

    Example:
        >>> class Counter:
        ...     def __init__(self):
        ...         self.value, self.kept = 0, []
        ...     def checkpoint(self):
        ...         self.kept.append(self.value)
        ...         return str(len(self.kept) - 1)
        ...     def restore(self, id):
        ...         self.value = self.kept[int(id)]
        >>> isinstance(Counter(), Environment)
        True
    """

    def checkpoint(self) -> str:
        """Keep the state; give an id for it."""
        ...

    def restore(self, id: str, /) -> Any:
        """Bring back the state that has this id."""
        ...
