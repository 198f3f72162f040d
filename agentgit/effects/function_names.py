"""The names under which calls record the functions of their effect, and how two such names are compared."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import PurePath
from types import CodeType
from typing import Any, NamedTuple, Self

from agentgit.closures import plain_values_hash

MAIN = "__main__"

SPAWNED = "__mp_main__"
"""The name of the main module in processes that `multiprocessing` spawns."""

SEVERAL = " (one of several)"
"""The end of the recorded name of a tool's function if several tools of the graph have this name and the tool's name.
Where only one of them is declared, it is then not taken for another one."""

VALUES = " (values "
"""What the name of a function has before a hash of the plain values that it holds."""

ELSEWHERE = f"{VALUES}of another world)"
"""What it has instead if the function was one of another world, and held the values of that world."""

MAX_SHOWN_LENGTH = 200
"""The maximum number of characters of a name to show, because a row may contain anything."""


class FunctionName(NamedTuple):
    """The name of a function."""

    path: str
    source: str | None = None
    file: str | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the string form of a name."""
        path, _, origin = str(text).partition("@")
        source, _, file = origin.partition(" in ")
        return cls(path, source or None, file or None)

    def __str__(self) -> str:
        location = f" in {self.file}" if self.file else ""
        return f"{self.path}@{self.source}{location}" if self.source else self.path

    @property
    def is_of_main(self) -> bool:
        """True if the function is from a script, a notebook or a shell; others may have one of the same name."""
        return self.path.startswith(f"{MAIN}:")


def name_of(function: Callable[..., Any] | str) -> FunctionName:
    """Return the name of a function.

    A method is named by its class, a partial by its function, a callable object by its type. The name of a function
    of `__main__` includes a hash of its source, because every script and every notebook is called `__main__`. That of a
    function that another function has made, or of a partial, includes a hash of the plain values that it holds.
    """
    if isinstance(function, str):
        return FunctionName.read(function)
    values = values_text(function)
    while isinstance(function, functools.partial):
        function = function.func
    named: Any = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(named, "__module__", None)
    module = MAIN if module == SPAWNED else module if isinstance(module, str) else "builtins"
    path = f"{module}:{named.__qualname__}{values}"
    return FunctionName(path, *_origin(function)) if module == MAIN else FunctionName(path)


def values_text(holder: Any) -> str:
    """Return the end of the name of what holds plain values; empty if there are none."""
    digest = plain_values_hash(holder)
    return "" if digest is None else f"{VALUES}{digest})"


def in_another_world(name: str) -> str:
    """Return the name that stands for a function with any values."""
    path, values, _ = name.partition(VALUES)
    return path + ELSEWHERE if values else path


def _origin(function: Callable[..., Any]) -> tuple[str | None, str | None]:
    body: Any = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(inspect.unwrap(body), "__code__", None)
    file = getattr(sys.modules.get(MAIN), "__file__", None)
    source = _source(code) if code is not None else None
    return source, PurePath(file).name if source is not None and isinstance(file, str) else None


@functools.lru_cache(maxsize=1024)
def _source(code: CodeType) -> str | None:
    """Return a hash of the source of a function as it was first read: the file may be edited later."""
    if code.co_filename == "<string>":  # `exec` keeps no source; Python 3.13 would return that of `python -c`
        return None
    try:
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError, SyntaxError):
        return None
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def is_different(recorded: FunctionName, declared: FunctionName) -> bool:
    """Return whether a function that is declared here differs from the one that the call recorded.

    One of `__main__` whose source has changed within its script or notebook does not; `possible_change` mentions it.
    """
    path = in_another_world(declared.path) if recorded.path.endswith(ELSEWHERE) else declared.path
    if recorded.path != path:
        return True
    if not recorded.is_of_main or recorded.source is None or recorded.source == declared.source:
        return False
    return recorded.file != declared.file


def possible_change(recorded: FunctionName, declared: FunctionName) -> str | None:
    """Return why a function of `__main__` may not be the recorded one, although `is_different` accepts it, or None."""
    if not recorded.is_of_main or (recorded.source is not None and recorded.source == declared.source):
        return None
    if recorded.source is None or declared.source is None:
        return f"cannot tell whether {printable_name(recorded.path)} has changed since the call"
    return f"the source of {printable_name(recorded.path)} has changed since the call"


def printable_name(name: FunctionName | str) -> str:
    """Return a name in a form that is safe to print: a row may contain a long text or terminal control characters."""
    text = str(name)
    text = text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}…"
    return text if text.isprintable() else repr(text)
