"""The names under which calls record the functions of their declaration, and what two such names say of each other."""

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

MAIN = "__main__"

SPAWNED = "__mp_main__"
"""The name of a program's main module in processes that `multiprocessing` has spawned."""

LONGEST = 200
"""The number of characters of a name that are shown: a row may contain anything."""


class Name(NamedTuple):
    """The name of a function.

    Args:
        path: Its module and its qualified name, `package.module:function`.
        source: For a function of `__main__`, the hash of its source; None where that cannot be read.
        file: For a function of `__main__`, the name of the script; None in a notebook or a shell.
    """

    path: str
    source: str | None = None
    file: str | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `str` wrote.

        Example:
            >>> Name.read("__main__:undo@9f86d081884c in shop.py")
            Name(path='__main__:undo', source='9f86d081884c', file='shop.py')
        """
        path, _, mark = str(text).partition("@")
        source, _, file = mark.partition(" in ")
        return cls(path, source or None, file or None)

    def __str__(self) -> str:
        place = f" in {self.file}" if self.file else ""
        return f"{self.path}@{self.source}{place}" if self.source else self.path

    @property
    def is_of_main(self) -> bool:
        """True if the function is of a script, a notebook or a shell: another one may have one of the same name."""
        return self.path.startswith(f"{MAIN}:")


def name_of(function: Callable[..., Any] | str) -> Name:
    """Name a function.

    A method is named by its class, a partial by its function, a callable object by its type. Of a function of
    `__main__` the name has the source too: each script and each notebook calls itself so.

    Args:
        function: Or its import path, which is its name.

    Example:
        >>> str(name_of(textwrap.dedent)), str(name_of(functools.partial(textwrap.dedent))), str(name_of([].append))
        ('textwrap:dedent', 'textwrap:dedent', 'builtins:list.append')
    """
    if isinstance(function, str):
        return Name.read(function)
    while isinstance(function, functools.partial):
        function = function.func
    named: Any = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(named, "__module__", None)
    module = MAIN if module == SPAWNED else module if isinstance(module, str) else "builtins"
    path = f"{module}:{named.__qualname__}"
    return Name(path, *_origin(function)) if module == MAIN else Name(path)


def _origin(function: Callable[..., Any]) -> tuple[str | None, str | None]:
    body: Any = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(inspect.unwrap(body), "__code__", None)
    file = getattr(sys.modules.get(MAIN), "__file__", None)
    source = _source(code) if code is not None else None
    return source, PurePath(file).name if source is not None and isinstance(file, str) else None


@functools.lru_cache(maxsize=1024)
def _source(code: CodeType) -> str | None:
    """Hash the source of a function; once, because its file may be edited while the program runs."""
    try:
        text = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError, SyntaxError):
        return None
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def is_other(recorded: Name, here: Name) -> bool:
    """Return whether a function that is declared here is another one than the call recorded.

    Of two functions of `__main__` with one path, those of two scripts are two, unless their source is the same. One
    whose source has changed within its script or notebook counts as the same one, mended; `doubt` says so.

    Example:
        >>> noted, mended = Name("__main__:undo", "1", "a.py"), Name("__main__:undo", "2", "a.py")
        >>> is_other(noted, mended), is_other(noted, Name("__main__:undo", "2", "b.py"))
        (False, True)
    """
    if recorded.path != here.path:
        return True
    if not recorded.is_of_main or recorded.source is None or recorded.source == here.source:
        return False
    return recorded.file != here.file


def doubt(recorded: Name, here: Name) -> str | None:
    """Return what is uncertain about a function of `__main__` that `is_other` takes for the recorded one.

    Returns None if nothing is uncertain.

    Example:
        >>> doubt(Name("__main__:undo", "1", "a.py"), Name("__main__:undo", "2", "a.py"))
        'the source of __main__:undo has changed since the call'
    """
    if not recorded.is_of_main or (recorded.source is not None and recorded.source == here.source):
        return None
    if recorded.source is None or here.source is None:
        return f"cannot tell whether {shown(recorded.path)} has changed since the call"
    return f"the source of {shown(recorded.path)} has changed since the call"


def shown(name: Name | str) -> str:
    r"""Write a name for people: what a row says may be long, or hold what moves a terminal.

    Example:
        >>> shown("shop:cancel"), shown("shop:" + chr(0))
        ('shop:cancel', "'shop:\\x00'")
    """
    text = str(name)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return text if text.isprintable() else repr(text)
