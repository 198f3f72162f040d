"""Effects: what a tool does to the world, and how it can be undone."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgit.errors import InvalidInput, NotFound

READ_ONLY = "read_only"
IDEMPOTENT = "idempotent"
REVERSIBLE = "reversible"
COMPENSABLE = "compensable"
IRREVERSIBLE = "irreversible"
UNDECLARED = "undeclared"

KINDS = (READ_ONLY, IDEMPOTENT, REVERSIBLE, COMPENSABLE, IRREVERSIBLE)
"""What a tool can be declared as."""

UNDOABLE = (REVERSIBLE, COMPENSABLE)
"""The kinds that come with an undo function."""

Undo = Callable[..., Any | Awaitable[Any]]
Tool = TypeVar("Tool")

ATTRIBUTE = "__agentgit_effect__"
"""Where a decorated tool function carries its effect."""


_by_name: dict[str, Effect] = {}
"""What decorators declared last, by tool name: some tools are called where nobody can see the tool itself."""


@dataclass(frozen=True)
class Effect:
    """What a tool does to the world. As a decorator it declares that of a tool function or a LangChain tool.

    Args:
        kind: one of `KINDS`.
        undo: for `reversible` and `compensable`: takes `(args, result)`, and the invocation if it has a third
            parameter; or its import path `package.module:function`, which also works after a restart.

    Raises:
        InvalidInput: an unknown kind; an undo function missing where it is needed, or given where it means nothing.
    """

    kind: str
    undo: Undo | str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = " Write reversible(undo)." if callable(self.kind) else ""
            raise InvalidInput(f"{self.kind!r} is no effect; a tool can be {', '.join(KINDS)}.{hint}")
        if self.kind in UNDOABLE and not (callable(self.undo) or isinstance(self.undo, str)):
            raise InvalidInput(f"A {self.kind} tool needs its undo function: {self.kind}(undo).")
        if self.kind not in UNDOABLE and self.undo is not None:
            raise InvalidInput(f"A tool that is {self.kind} is never undone; declare it reversible or compensable.")

    def __call__(self, tool: Tool) -> Tool:
        function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool
        name = str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))
        _by_name[name] = self
        object.__setattr__(function, ATTRIBUTE, self)  # also on pydantic tools, which refuse unknown attributes
        return tool

    @property
    def undo_path(self) -> str | None:
        """The import path of the undo function, if another process could find it by that."""
        if self.undo is None or isinstance(self.undo, str):
            return self.undo
        path = f"{getattr(self.undo, '__module__', '')}:{getattr(self.undo, '__qualname__', '')}"
        try:
            return path if resolve(path) is self.undo else None
        except (NotFound, InvalidInput):
            return None


def effect(kind: str) -> Effect:
    """Declare what a tool does: `read_only`, `idempotent` or `irreversible`.

    Example:
        >>> @effect("read_only")
        ... def search(query: str) -> str: ...
        >>> declared_on(search).kind
        'read_only'
    """
    return Effect(kind)


def reversible(undo: Undo | str) -> Effect:
    """Declare that `undo(args, result)` brings the world back to what it was before the call.

    Example:
        >>> reversible("shop:cancel_order").kind
        'reversible'
    """
    return Effect(REVERSIBLE, undo)


def compensable(undo: Undo | str) -> Effect:
    """Declare that `undo(args, result)` makes up for the call, though a trace of it stays (a refund, a correction)."""
    return Effect(COMPENSABLE, undo)


def declared_on(tool: Any) -> Effect | None:
    """Find the effect that a decorator left on a tool or on its function."""
    for candidate in (tool, getattr(tool, "func", None), getattr(tool, "coroutine", None)):
        found = getattr(candidate, ATTRIBUTE, None)
        if isinstance(found, Effect):
            return found
    return None


def declared_by_name(name: str) -> Effect | None:
    """Find the effect that a decorator in this process declared last of a tool of that name."""
    return _by_name.get(name)


def as_effect(declared: Effect | str) -> Effect:
    """Read what a user may write in `effects={...}`: an Effect, or the name of one."""
    return declared if isinstance(declared, Effect) else Effect(declared)


def resolve(path: str) -> Undo:
    """Import an undo function by its path.

    Args:
        path: `package.module:function`; `function` may be dotted.

    Raises:
        InvalidInput: it has no such form.
        NotFound: nothing is there.
    """
    module, colon, name = path.partition(":")
    if not (module and colon and name) or "<" in name:
        raise InvalidInput(f"{path!r} is no import path; write package.module:function.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise NotFound(f"The undo function {path} cannot be imported here: {error}.") from error
    if not callable(found):
        raise InvalidInput(f"{path} is no function.")
    return found  # type: ignore[no-any-return]  # what a path names has no static type


def takes_invocation(undo: Undo) -> bool:
    """Tell whether an undo function asks for the invocation: by a third parameter without a default, or by its name."""
    try:
        parameters = inspect.signature(undo).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 3:
        return False
    return positional[2].default is inspect.Parameter.empty or positional[2].name == "invocation"
