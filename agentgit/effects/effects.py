"""Effects: what a tool does to the world, and how it can be undone."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

from agentgit.effects.function_names import name_of
from agentgit.effects.kinds import COMPENSABLE, KINDS, REVERSIBLE, WORKSPACE, Kind, kind_of
from agentgit.errors import InvalidInput, NotFound

ROLES = ("undo", "verify", "precheck")
"""The roles of the functions that an effect can have."""

Undo = Callable[..., Any | Awaitable[Any]]
CheckFunction = Callable[..., Any]
"""A function that inspects the world for one invocation and changes nothing."""

Tool = TypeVar("Tool")

ATTRIBUTE = "__agentgit_effect__"
"""The attribute in which a decorated tool function carries its effect."""

decorated_kinds: set[str] = set()
"""The kinds of effects that decorators have declared in this process."""


@dataclass(frozen=True)
class Effect:
    """The effect of a tool on the outside world.

    As a decorator, it declares the effect of a tool function or a LangChain tool.

    Args:
        kind: One of `KINDS`.
        undo: For `reversible` and `compensable`: a function that takes `(args, result)`, and the invocation if it has
            a third parameter; or its import path `package.module:function`. A call records only the function's name.
            After a restart, the function is found again when the graph is wrapped again or its module is trusted.
        identity_args: The names of the arguments that identify a call; None for all. Leave out values that the model
            invents for each call, like a reference.
        verify: A function that takes the invocation and checks whether an interrupted call happened; or its import
            path. It returns False if the call did not happen, None if that cannot be determined, and True or the
            call's result if it did.
        precheck: A function that takes the invocation, before anything is reversed; or its import path. It returns
            None or True if the call can be undone now, else False or the reason as text.
        once: True if the call may take effect at most once per session, across all branches, such as an approval or
            a token.
        failed_on: The exceptions with which the tool, or its undo, reports that it did nothing; their subclasses count
            too. After any other error it is unknown whether it acted.
        undo_if_unknown: True if the undo is safe to run although it is unknown whether the call, or an earlier run of
            the undo, happened: for example, because it looks first.

    Raises:
        InvalidInput: The kind is unknown; a required undo function is missing; an argument does not apply to this
            kind; a function does not accept the required arguments; or a string is not an import path.
    """

    kind: str
    undo: Undo | str | None = None
    identity_args: Sequence[str] | None = None
    verify: CheckFunction | str | None = None
    precheck: CheckFunction | str | None = None
    once: bool = False
    failed_on: tuple[type[Exception], ...] = ()
    undo_if_unknown: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = " Write reversible(undo)." if callable(self.kind) else ""
            raise InvalidInput(f"{self.kind!r} is not an effect; use one of {', '.join(KINDS)}.{hint}")
        kind = kind_of(self.kind)
        object.__setattr__(self, "kind", kind)
        if kind.is_undoable and self.undo is None:
            raise InvalidInput(f"A {kind} tool needs an undo function: {kind}(undo).")
        if not kind.is_undoable and self.undo is not None:
            raise InvalidInput(f"A tool that is {kind} is never undone; declare it reversible or compensable.")
        self._require_applicable_args(kind)
        for role, function in self.functions():
            require_function(role, function)
        if self.identity_args is not None:
            object.__setattr__(self, "identity_args", _argument_names(self.identity_args))
        object.__setattr__(self, "failed_on", _exception_classes(self.failed_on))

    def _require_applicable_args(self, kind: Kind) -> None:
        """Reject arguments that do not apply to this kind, because their author expects them to have an effect."""
        for flag in ("once", "undo_if_unknown"):
            if not isinstance(getattr(self, flag), bool):
                raise InvalidInput(f"{flag} must be True or False, not {getattr(self, flag)!r}.")
        names = [name for name in ("identity_args", "verify", "precheck") if getattr(self, name) is not None]
        names += [name for name in ("once", "failed_on") if getattr(self, name)]
        if kind.is_neutral and names:
            raise InvalidInput(
                f"A tool that is {kind} changes nothing outside the graph; leave out {', '.join(names)}."
            )
        if kind == WORKSPACE and names:
            raise InvalidInput(
                f"The calls of a tool that is {WORKSPACE} are taken back with the files; leave out {', '.join(names)}."
            )
        for name in ("precheck", "undo_if_unknown"):
            if not kind.is_undoable and getattr(self, name):
                raise InvalidInput(f"A tool that is {kind} is never undone; leave out {name}.")

    def __call__(self, tool: Tool) -> Tool:
        try:
            object.__setattr__(tool, ATTRIBUTE, self)  # pydantic refuses unknown attributes in setattr()
        except (AttributeError, TypeError):
            raise InvalidInput(
                f"{tool!r} cannot carry an effect; declare the effect in wrap(effects={{'tool name': ...}})."
            ) from None
        decorated_kinds.add(self.kind)
        return tool

    def functions(self) -> Iterator[tuple[str, Undo | str]]:
        """Yield each declared function with its role: `undo`, `verify` or `precheck`."""
        for role in ROLES:
            if (function := getattr(self, role)) is not None:
                yield role, function

    @functools.cached_property
    def paths(self) -> dict[str, str | None]:
        """The qualified names of its functions by role, as a call records them; None for a role without a function."""
        return {**dict.fromkeys(ROLES), **{role: str(name_of(function)) for role, function in self.functions()}}


class EffectOptions(TypedDict, total=False):
    """The options of every effect, as `Effect` describes them."""

    identity_args: Sequence[str] | None
    verify: CheckFunction | str | None
    once: bool
    failed_on: tuple[type[Exception], ...]


class UndoOptions(EffectOptions, total=False):
    """The options of an effect with an undo function, as `Effect` describes them."""

    precheck: CheckFunction | str | None
    undo_if_unknown: bool


def effect(kind: str, **options: Unpack[EffectOptions]) -> Effect:
    """Declare that a tool is `read_only`, `state`, `workspace`, `idempotent` or `irreversible`.

    Args:
        kind: The kind of the effect.
        **options: `identity_args`, `verify`, `once` and `failed_on`; see `Effect`.

    Raises:
        InvalidInput: As for `Effect`.

    Example:
        >>> @effect("read_only")
        ... def search(query: str) -> str: ...
        >>> declared_on(search).kind
        'read_only'
        >>> effect("irreversible", identity_args=["to", "subject"], once=True).identity_args
        ('to', 'subject')
    """
    return Effect(kind, **options)


def reversible(undo: Undo | str, **options: Unpack[UndoOptions]) -> Effect:
    """Declare that `undo(args, result)` restores the world to its state before the call.

    Args:
        undo: The undo function; see `Effect`.
        **options: `identity_args`, `verify`, `precheck`, `once`, `failed_on` and `undo_if_unknown`; see `Effect`.

    Raises:
        InvalidInput: As for `Effect`.

    Example:
        >>> reversible("shop:cancel_order", verify="shop:was_ordered").paths["undo"]
        'shop:cancel_order'
    """
    return Effect(REVERSIBLE, undo, **options)


def compensable(undo: Undo | str, **options: Unpack[UndoOptions]) -> Effect:
    """Declare that `undo(args, result)` compensates for the call (a refund, a correction), but a trace remains.

    Args:
        undo: The undo function; see `Effect`.
        **options: The same as for `reversible`.

    Raises:
        InvalidInput: As for `Effect`.
    """
    return Effect(COMPENSABLE, undo, **options)


def declared_on(tool: Any) -> Effect | None:
    """Return the effect that a decorator set on a tool or on its function; None if there is none."""
    for candidate in (tool, getattr(tool, "func", None), getattr(tool, "coroutine", None)):
        declared = getattr(candidate, ATTRIBUTE, None)
        if isinstance(declared, Effect):
            return declared
    return None


def as_effect(declared: Effect | str) -> Effect:
    """Convert a value of `effects={...}`, an `Effect` or the name of a kind, to an `Effect`."""
    return declared if isinstance(declared, Effect) else Effect(declared)


def require_path(path: str) -> tuple[str, str]:
    """Split an import path into module and name, without importing anything."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise InvalidInput(f"{path!r} is not an import path; write package.module:function.")
    return module, name


def import_function(path: str) -> Undo:
    """Import a function by its path.

    The path must come from a declaration of the program itself, never from a record.
    """
    module, name = require_path(path)
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as error:  # a module may raise anything when it is imported
        raise NotFound(f"The function {path} cannot be imported here: {error}.") from error
    if not callable(function):
        raise InvalidInput(f"{path} is not a function.")
    return function  # type: ignore[no-any-return]  # an imported object has no static type


def require_function(role: str, function: Undo | str) -> None:
    """Check at its declaration that a function accepts the arguments of its role: in a rollback it is too late."""
    if isinstance(function, str):
        require_path(function)
        return
    if not callable(function):
        raise InvalidInput(f"{role} must be a function or an import path (package.module:function), not {function!r}.")
    parameter_lists = ("args, result", "args, result, invocation") if role == "undo" else ("invocation",)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some built-in functions have no signature
    if not any(_accepts(signature, parameters.count(",") + 1) for parameters in parameter_lists):
        name = getattr(function, "__name__", repr(function))
        raise InvalidInput(f"{role}={name}{signature} must accept the arguments ({parameter_lists[0]}).")


def _accepts(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _argument_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidInput(f"identity_args must be a list of names like ['to', 'amount'], not {names!r}.")
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise InvalidInput(f"identity_args={list(names)!r} must name each argument only once.")
    return tuple(names)


def _exception_classes(classes: Any) -> tuple[type[Exception], ...]:
    """Check that these are subclasses of `Exception`: a `BaseException` aborts a call and leaves its outcome open."""
    if not isinstance(classes, tuple | list):
        raise InvalidInput(f"failed_on={classes!r} must be a tuple of exception classes: failed_on=(ToolException,).")
    if invalid := [item for item in classes if not (isinstance(item, type) and issubclass(item, Exception))]:
        raise InvalidInput(f"failed_on: {invalid[0]!r} is not a subclass of Exception. Name exception classes only.")
    return tuple(classes)


def takes_invocation(undo: Undo) -> bool:
    """Return whether the third parameter of an undo function is the invocation: no default, or called `invocation`."""
    try:
        parameters = inspect.signature(undo).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 3:
        return False
    return positional[2].default is inspect.Parameter.empty or positional[2].name == "invocation"
