"""The parts that all values share: large fields that are fetched late, and a JSON form that every value has."""

from __future__ import annotations

import importlib
import json
import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from io import IOBase
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

import orjson

T = TypeVar("T")


class Deferred:
    """A dataclass whose large fields may be fetched when one of them is first read.

    The value itself does no IO: whoever reads it from a database hands over the function that does.
    """

    CONTENT: ClassVar[tuple[str, ...]] = ()
    """The names of the large fields."""

    @classmethod
    def deferred(cls, load: Callable[[], Mapping[str, Any]], **known: Any) -> Self:
        """Make a value whose large fields are fetched by `load`, at most once, when one is first read.

        Args:
            load: Returns a mapping with all of `CONTENT`.
            known: The other fields.
        """
        value = cls(**known)
        for name in cls.CONTENT:
            del value.__dict__[name]
        value.__dict__["_load"] = load
        return value

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for what is not in the instance: a large field that was not fetched yet.
        load = self.__dict__.get("_load")
        if name not in self.CONTENT or load is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        content = load()
        self.__dict__.update({key: content[key] for key in self.CONTENT})
        self.__dict__.pop("_load", None)  # last, because another thread may be asking at this moment
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle must not carry the way to a database with it.
        return dict(_items(self))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    return ((f.name, getattr(value, f.name)) for f in fields(value))


class Drawing(NamedTuple):
    """The drawing of a kind of value.

    Args:
        text: Returns its text.
        html: Returns its HTML, for notebooks and pages.
    """

    text: Callable[[Any], str]
    html: Callable[[Any], str]


class _Late:
    """Stands for all drawings until one is asked for. `render` has them, which takes as long to import as the rest."""

    def __get__(self, value: object, kind: type[Shown]) -> Drawing:
        importlib.import_module("agentgit.render.display")
        found = next(vars(one)["drawing"] for one in kind.__mro__ if "drawing" in vars(one))
        if not isinstance(found, Drawing):
            raise AttributeError(f"{kind.__name__} has no drawing; agentgit.render.display is to give it one")
        return found


class Shown:
    """A value that a notebook shows as HTML, and a terminal that shows values as text.

    It does not know how. The room that draws is above its own, and says so in `render/display.py`.
    """

    drawing: ClassVar[Drawing] = cast("Drawing", _Late())

    def _repr_html_(self) -> str:
        return self.drawing.html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.drawing.text(self), "text/html": self._repr_html_()}


class Drawn(Shown):
    """A value that is shown as a picture: as text where it is printed, as HTML in a notebook."""

    def __str__(self) -> str:
        return self.drawing.text(self)


class Listed(Shown, list[T]):
    """A list that is shown as a table; in all else it is a list.

    Example:
        >>> class Words(Listed[str]):
        ...     drawing = Drawing(" ".join, "<br>".join)
        >>> words = Words(["a", "b"])
        >>> words, words == ["a", "b"], words._repr_html_()
        (['a', 'b'], True, 'a<br>b')
    """

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.drawing.text(self))  # IPython would ask how a list is printed, and not the bundle


DEEPEST = 100
"""The number of levels of a value that are looked into; a deeper value is shown by its repr."""


def portable(value: Any) -> Any:
    """Return the JSON-like form of any Python value.

    JSON values stay as they are; everything else becomes plain data or its repr. It never raises, and never consumes an
    iterator or a file.

    Example:
        >>> from datetime import date
        >>> portable({"on": date(2026, 1, 2), "ids": {7}})
        {'on': '2026-01-02', 'ids': [7]}
    """
    return _portable(value, ())


def _portable(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if id(value) in above or len(above) >= DEEPEST or isinstance(value, (Iterator, IOBase)):
        return _shown(value)
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _text(key): _portable(item, inside) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_portable(item, inside) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _portable(getattr(value, field.name, None), inside) for field in fields(value)}
    return _from_pydantic(value, inside)


def _from_pydantic(value: Any, inside: tuple[int, ...]) -> Any:
    """Take models apart, and write what pydantic knows (times, UUIDs, enums, decimals, paths) as it writes it."""
    from pydantic import BaseModel
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        if isinstance(value, BaseModel):
            return _portable(value.model_dump(), inside)
        if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, Enum)):
            return _shown(value)
        return to_jsonable_python(value, bytes_mode="base64")
    except (PydanticSerializationError, ValueError, TypeError, AttributeError):
        return _shown(value)


def _text(key: Any) -> str:
    plain = _portable(key, ())
    return plain if isinstance(plain, str) else json.dumps(plain)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # a repr of somebody's class may raise anything
        return f"<{type(value).__name__}>"


def is_of_database(error: BaseException | None) -> bool:
    """Return whether a database's driver, or SQLAlchemy, raised an exception."""
    return any(kind.__name__ in ("DatabaseError", "StatementError") for kind in type(error).__mro__)


def told(error: BaseException) -> str:
    """Return the name and the text of an exception; the name alone if it cannot tell its text.

    Of a database's only the first line: statement, parameters and the rows that were refused are in those below.

    Example:
        >>> told(ValueError("too late"))
        'ValueError: too late'
    """
    name = type(error).__name__
    try:
        text = str(error)
        return f"{name}: {text.partition(chr(10))[0] if is_of_database(error) else text}"
    except Exception:  # noqa: BLE001  # as the repr above
        return name


def to_json(value: Any) -> bytes:
    """Write a value as JSON, also where it holds what orjson refuses (lone surrogates, huge integers)."""
    plain = portable(value)
    try:
        return orjson.dumps(plain)
    except TypeError:
        return write_slowly(plain)


def write_slowly(plain: Any) -> bytes:
    """Write what orjson refuses; a space in front says that `from_json` must not read it with orjson either.

    Raises:
        TypeError: JSON does not have it.
    """
    return b" " + json.dumps(plain).encode()


def from_json(data: bytes) -> Any:
    """Read what `to_json` wrote.

    Example:
        >>> from_json(to_json({"text": chr(0xD800), "huge": -(2**63) - 1}))["huge"] == -(2**63) - 1
        True
    """
    if data[:1] == b" ":
        return json.loads(data)  # orjson would make floats of huge integers
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def as_object(data: bytes | None) -> dict[str, Any]:
    """Read a JSON object; nothing stored is the empty one."""
    found: dict[str, Any] = from_json(data) if data else {}
    return found


OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The Unicode categories that a terminal obeys, reorders by, or cannot write."""

JOINERS = "\u200c\u200d"
"""Zero-width joiners hold words (Persian) and emoji together; they do nothing else."""


def shown(path: str | bytes) -> str:
    r"""Return the name of a file as it may be printed: controls, ends of lines and marks of direction are escaped.

    Args:
        path: As the system has it.

    Example:
        >>> print(shown("a\nb\x1b[31m\u202e.txt"))
        a\nb\x1b[31m\u202e.txt
    """
    text = os.fsdecode(path)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(c: str) -> str:
    return repr(c)[1:-1] if c not in JOINERS and unicodedata.category(c) in OBEYED else c
