"""Declarations of decorators, found by the tool's name where the tool itself cannot be seen."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ByName(Generic[T]):
    """Declarations about the tools of a process, by name.

    A program may have two tools of one name, in two graphs. A declaration about one then says nothing about the other.
    """

    def __init__(self) -> None:
        self._said: dict[str, dict[str, T]] = {}

    def add(self, tool: Any, said: T) -> None:
        """Remember what is said of a tool; said again of the same function, as in a notebook, the last word counts.

        Args:
            tool: A function, or what has one.
            said: The declaration.
        """
        self._said.setdefault(name_of(tool), {})[_origin(tool)] = said

    def get(self, name: str) -> list[T]:
        """Return the declarations about the tools of a name, each one once.

        Example:
            >>> found = ByName[str]()
            >>> found.add(print, "harmless"), found.get("print"), found.get("input")
            (None, ['harmless'], [])
        """
        found: list[T] = []
        for said in self._said.get(name, {}).values():
            if said not in found:
                found.append(said)
        return found

    def all(self) -> list[T]:
        """Return all that is said of any tool."""
        return [said for of_name in list(self._said.values()) for said in of_name.values()]


def name_of(tool: Any) -> str:
    """Return the name by which a model calls a tool, or the function that one will be made of."""
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))


def _origin(tool: Any) -> str:
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
