"""Base classes and helpers for values: lazily loaded fields, display, a JSON form, times as people write them."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from io import IOBase
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, SupportsIndex, TypeVar, cast, overload

import orjson

from agentgit.errors import Corrupt, InvalidInput, Unavailable
from agentgit.next_steps import Next

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]  # pandas has no types without pandas-stubs


_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration; None if it is not one.

    Example:
        >>> parse_duration("36h")
        datetime.timedelta(days=1, seconds=43200)
    """
    match = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match is not None else None


def parse_time(text: str | None) -> datetime | None:
    """Parse a duration before now, like `2h`, or an ISO 8601 time, without an offset in this machine's zone."""
    if text is None:
        return None
    try:
        ago = parse_duration(text)
        return datetime.now(UTC) - ago if ago is not None else datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{text!r} is not a time; write it like 2026-11-21 or '2026-11-21 14:30', or like 5m, 2h or 3d, "
            "counted back from now."
        ) from error


T = TypeVar("T")


class Deferred:
    """A dataclass whose large fields may be loaded when one of them is first read.

    The value itself does no IO: the code that reads it from a database passes the function that loads the fields.
    """

    CONTENT: ClassVar[tuple[str, ...]] = ()
    """The names of the large fields."""

    @classmethod
    def deferred(cls, load: Callable[[], Mapping[str, Any]], **known: Any) -> Self:
        """Create a value whose large fields are loaded by `load`, at most once, when one is first read."""
        value = cls(**known)
        for name in cls.CONTENT:
            del value.__dict__[name]
        value.__dict__["_load"] = load
        return value

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for attributes that the instance does not have, such as a field that is not loaded yet.
        load = self.__dict__.get("_load")
        if name not in self.CONTENT or load is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        content = load()
        self.__dict__.update({key: content[key] for key in self.CONTENT})
        self.__dict__.pop("_load", None)  # last, because another thread may be reading a field now
        return self.__dict__[name]

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle must not contain `load`, which refers to a database.
        return {one.name: getattr(self, one.name) for one in fields(cast(Any, self))}


class Drawing(NamedTuple):
    text: Callable[[Any], str]
    html: Callable[[Any], str]


class _LazyDrawing:
    """A descriptor that imports the drawings from `agentgit.render` when one is first read.

    That import takes as long as the import of the rest of the package.
    """

    def __get__(self, value: object, kind: type[Displayable]) -> Drawing:
        importlib.import_module("agentgit.render.display")
        drawing = next(vars(cls)["drawing"] for cls in kind.__mro__ if "drawing" in vars(cls))
        if not isinstance(drawing, Drawing):
            raise AttributeError(f"{kind.__name__} has no drawing; agentgit.render.display is to give it one")
        return drawing


class Displayable:
    """A value that notebooks display as HTML, and interactive terminals as text.

    `render/display.py` assigns the drawing of each class, because this module must not depend on `agentgit.render`.
    """

    drawing: ClassVar[Drawing] = cast("Drawing", _LazyDrawing())

    def _repr_html_(self) -> str:
        return self.drawing.html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.drawing.text(self), "text/html": self._repr_html_()}


class PrintableDrawing(Displayable):
    """A value that prints as its drawing, and is displayed as HTML in notebooks."""

    def __str__(self) -> str:
        return self.drawing.text(self)


COUNT, FLAG, NUMBER, OBJECT, TIME = "Int64", "bool", "Float64", "object", "datetime64[us, UTC]"
"""The types of the columns of a frame. Text is `object`, because other types refuse unpaired surrogates."""


class Tabular:
    """A value that `to_frame` converts to a pandas DataFrame."""

    _COLUMNS: ClassVar[Mapping[str, str]]
    """The columns, each with its type. A column is an attribute or a key of an item."""

    def _records(self) -> Iterable[Any]:
        """Return the items that become rows."""
        return cast("Iterable[Any]", self)

    def to_frame(self) -> DataFrame:
        """Convert the items to a pandas DataFrame with one row for each, in the same order.

        Raises:
            Unavailable: pandas is not installed.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> agent = agentgit.open(":memory:").wrap(build("shop.db"), session="s", effects=EFFECTS)
            >>> answer = agent.run("order two chairs")
            >>> agent.tool_track().to_frame()["effect"].tolist()
            ['reversible']
        """
        try:
            import pandas
        except ImportError as error:
            raise Unavailable("to_frame needs pandas.", Next("install", package="agentgit[pandas]")) from error
        rows = [[_cell(record, column) for column in self._COLUMNS] for record in self._records()]
        return pandas.DataFrame(rows, columns=list(self._COLUMNS), dtype=object).astype(dict(self._COLUMNS))


def _cell(record: Any, column: str) -> Any:
    return record.get(column) if isinstance(record, Mapping) else getattr(record, column)


class TableList(Displayable, Tabular, list[T]):
    """A list that is displayed as a table. Otherwise it behaves like any list. A slice is such a list too.

    Example:
        >>> class Words(TableList[str]):
        ...     drawing = Drawing(" ".join, "<br>".join)
        >>> words = Words(["a", "b"])
        >>> words, words == ["a", "b"], words._repr_html_()
        (['a', 'b'], True, 'a<br>b')
    """

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | Self:
        found = super().__getitem__(index)
        return type(self)(cast("list[T]", found)) if isinstance(index, slice) else cast("T", found)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.drawing.text(self))  # IPython would print it as a list and ignore the bundle


MAX_DEPTH = 100
"""The number of levels of a value that are converted. A deeper value becomes its repr."""


def portable(value: Any, lossy: list[Any] | None = None) -> Any:
    """Return the JSON-like form of any Python value.

    JSON values are unchanged; everything else becomes plain data or its repr. The function never raises, and never
    consumes an iterator or a file. It appends to `lossy` the values that may not be told apart in this form: secrets,
    and those of which only the repr is left.

    Example:
        >>> from datetime import date
        >>> portable({"on": date(2026, 1, 2), "ids": {7}})
        {'on': '2026-01-02', 'ids': [7]}
    """
    return _portable(value, (), [] if lossy is None else lossy)


def _portable(value: Any, ancestor_ids: tuple[int, ...], lossy: list[Any]) -> Any:
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return str.__str__(value) if isinstance(value, str) else value  # an enum's own text is another one
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if id(value) in ancestor_ids or len(ancestor_ids) >= MAX_DEPTH or isinstance(value, (Iterator, IOBase)):
        return _safe_repr(value, lossy)
    inner_ids = (*ancestor_ids, id(value))
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else _key_text(key): _portable(item, inner_ids, lossy)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_portable(item, inner_ids, lossy) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _portable(getattr(value, field.name, None), inner_ids, lossy) for field in fields(value)}
    return _from_pydantic(value, inner_ids, lossy)


def _from_pydantic(value: Any, ancestor_ids: tuple[int, ...], lossy: list[Any]) -> Any:
    """Convert models to dicts, and types that pydantic supports (times, UUIDs, enums, decimals, paths) as it does."""
    from pydantic import BaseModel
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        if isinstance(value, BaseModel):
            return _portable(value.model_dump(), ancestor_ids, lossy)
        if hasattr(value, "__fields_set__"):  # a model of pydantic 1
            return _portable(value.dict(), ancestor_ids, lossy)
        if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, Enum)):
            return _safe_repr(value, lossy)
        if hasattr(value, "get_secret_value"):
            lossy.append(value)
        return to_jsonable_python(value, bytes_mode="base64")
    except (PydanticSerializationError, ValueError, TypeError, AttributeError):
        return _safe_repr(value, lossy)


def _key_text(key: Any) -> str:
    plain = _portable(key, (), [])
    return plain if isinstance(plain, str) else json.dumps(plain)


def _safe_repr(value: Any, lossy: list[Any]) -> str:
    lossy.append(value)
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # the repr of a user's class may raise anything
        return f"<{type(value).__name__}>"


def is_database_error(error: BaseException | None) -> bool:
    return any(kind.__name__ in ("DatabaseError", "StatementError") for kind in type(error).__mro__)


FAILURES = (Exception, SystemExit)
"""The errors of code of the user that end its own work only: `sys.exit()` there must not end the whole program."""


def describe_error(error: BaseException) -> str:
    """Return the class name and the text of an exception; only the name if its text cannot be read.

    The text of a database error is cut after its first line, because the others have the statement, its parameters and
    the refused rows.

    Example:
        >>> describe_error(ValueError("too late"))
        'ValueError: too late'
    """
    name = type(error).__name__
    try:
        text = str(error)
        return f"{name}: {text.partition(chr(10))[0] if is_database_error(error) else text}"
    except Exception:  # noqa: BLE001  # the str of a user's class may raise anything
        return name


def to_json(value: Any) -> bytes:
    """Encode a value as JSON, even if it contains what orjson refuses (lone surrogates, huge integers)."""
    plain = portable(value)
    try:
        return orjson.dumps(plain)
    except TypeError:
        return dump_without_orjson(plain)


def dump_without_orjson(plain: Any) -> bytes:
    """Encode a value that orjson refuses. A leading space tells `from_json` not to decode it with orjson."""
    return b" " + json.dumps(plain).encode()


def from_json(data: bytes) -> Any:
    """Decode the output of `to_json`.

    Example:
        >>> from_json(to_json({"text": chr(0xD800), "huge": -(2**63) - 1}))["huge"] == -(2**63) - 1
        True
    """
    if data[:1] == b" ":
        return json.loads(data)  # orjson would decode huge integers as floats
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError, struct.error)
"""What the reading of damaged data may raise."""


def stored_json(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError as error:
        raise _unreadable_json() from error


def as_object(data: bytes | None) -> dict[str, Any]:
    """Decode a JSON object from a row of the database; return an empty dict for None or no bytes."""
    value = stored_json(data) if data else {}
    if not isinstance(value, dict):
        raise _unreadable_json()
    return value


def _unreadable_json() -> Corrupt:
    return Corrupt("JSON in the database cannot be read.", Next("fsck"))


def count(n: int, noun: str) -> str:
    """Return a number with its noun, in the singular or plural.

    Example:
        >>> count(1, "branch"), count(2, "branch"), count(8999, "call")
        ('1 branch', '2 branches', '8,999 calls')
    """
    if n != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ory") else f"{noun}es" if noun.endswith(("ch", "sh")) else f"{noun}s"
    return f"{n:,} {noun}"


UNSAFE_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The Unicode categories that control a terminal, reorder its text, or cannot be written to it."""

JOINERS = "\u200c\u200d"
"""Zero-width (non-)joiners, which are harmless and needed in emoji and in words of some languages, such as Persian."""


def escape_path(path: str | bytes) -> str:
    r"""Return the name of a file for display, with control characters, line ends and direction marks escaped.

    Example:
        >>> print(escape_path("a\nb\x1b[31m\u202e.txt"))
        a\nb\x1b[31m\u202e.txt
    """
    text = os.fsdecode(path)
    return text if text.isprintable() else "".join(map(_escaped, text))


def quote_name(name: str) -> str:
    """Return a name for the middle of a sentence: in quotes if it has characters that are not usual in names.

    Example:
        >>> print(quote_name("alice/support-42"), quote_name("mine, branch main"))
        alice/support-42 'mine, branch main'
    """
    return name if _PLAIN_NAME.fullmatch(name) else repr(name)


_PLAIN_NAME = re.compile(r"[\w.@/+:#~-]+")


def _escaped(c: str) -> str:
    return repr(c)[1:-1] if c not in JOINERS and unicodedata.category(c) in UNSAFE_CATEGORIES else c
