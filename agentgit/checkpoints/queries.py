"""Queries: filters for checkpoints, pages and cursors, tags and search hits. Pure values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from agentgit.checkpoints.search_words import Snippet
from agentgit.errors import InvalidInput
from agentgit.values import COUNT, OBJECT, TIME, PrintableDrawing, TableList, Tabular

T = TypeVar("T")

DEFAULT_PAGE_SIZE = 50
"""The default number of items on a page."""

MAX_PAGE_SIZE = 1_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,16})", re.ASCII)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A selection of checkpoints; a checkpoint must meet all conditions."""

    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tag: str | None = None
    author: int | None = None
    auto: bool | None = None
    with_calls: bool | None = None

    def __post_init__(self) -> None:
        for field in ("since", "until"):
            time = getattr(self, field)
            if time is not None and (not isinstance(time, datetime) or time.tzinfo is None):
                raise InvalidInput(f"{field} must be a datetime with a time zone, not {time!r}.")
        for field in ("name", "tag"):
            if not isinstance(getattr(self, field), str | None):
                raise InvalidInput(f"{field} must be a string, not {getattr(self, field)!r}.")
        for field in ("auto", "with_calls"):
            if not isinstance(getattr(self, field), bool | None):
                raise InvalidInput(f"{field} must be True, False or None, not {getattr(self, field)!r}.")

    @property
    def by_person(self) -> bool:
        """True if the filter selects only checkpoints that a user named, tagged or requested."""
        return self.name is not None or self.tag is not None or self.auto is False

    def narrowed(self, **more: Any) -> Filter:
        """Return the filter with more conditions: the narrower of two times, and the new one of any other values."""
        if self.since and more.get("since"):
            more["since"] = max(self.since, more["since"])
        if self.until and more.get("until"):
            more["until"] = min(self.until, more["until"])
        return replace(self, **more)


class TimeCursor(NamedTuple):
    """A position in a list that is ordered by time: after the item with this time and id."""

    at: datetime
    id: int

    @property
    def cursor(self) -> str:
        """The text that a page returns as `next`.

        Example:
            >>> TimeCursor(datetime(2026, 1, 1, tzinfo=UTC), 7).cursor
            '1767225600000000-7'
        """
        return f"{(self.at - _EPOCH) // _MICROSECOND}-{self.id}"


FIRST_TIME_CURSOR = TimeCursor(datetime.max.replace(tzinfo=UTC), 2**53)
"""The position before the first item of a list that starts with the newest."""


def parse_time_cursor(cursor: object) -> TimeCursor:
    """Parse a cursor that a page returned as `next`; None is the beginning."""
    if cursor is None:
        return FIRST_TIME_CURSOR
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if match is None:
        _raise_bad_cursor(cursor)
    try:
        return TimeCursor(_EPOCH + int(match[1]) * _MICROSECOND, min(int(match[2]), FIRST_TIME_CURSOR.id))
    except OverflowError:
        _raise_bad_cursor(cursor)


class HitCursor(NamedTuple):
    """A position in search hits: names and descriptions of checkpoints first, then the rest, each newest first."""

    named: bool
    id: int

    @property
    def cursor(self) -> str:
        """The text that a page returns as `next`.

        Example:
            >>> HitCursor(True, 7).cursor, HitCursor(False, 7).cursor
            ('n7', '7')
        """
        return f"{'n' if self.named else ''}{self.id}"


FIRST_HIT_CURSOR = HitCursor(True, FIRST_TIME_CURSOR.id)
"""The position before the first search hit."""


def parse_hit_cursor(cursor: object) -> HitCursor:
    """Parse a cursor that a page of hits returned as `next`; None is the beginning."""
    if cursor is None:
        return FIRST_HIT_CURSOR
    match = re.fullmatch(r"(n?)(\d{1,16})", cursor, re.ASCII) if isinstance(cursor, str) else None
    if match is None:
        _raise_bad_cursor(cursor)
    return HitCursor(bool(match[1]), min(int(match[2]), FIRST_TIME_CURSOR.id))


def _raise_bad_cursor(cursor: object) -> NoReturn:
    raise InvalidInput(f"after={cursor!r} is not a cursor; give the `next` of a page of the same list, or none.")


def require_page_size(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidInput(f"limit must be 1 to {MAX_PAGE_SIZE:,}, not {limit!r}.")
    return limit


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list.

    Args:
        items: The items of the page.
        next: The cursor to pass as `after` for the next page; None if this is the last page.
    """

    items: list[T]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A name for one checkpoint of a session. The checkpoint is kept as long as it has a tag.

    Args:
        name: The name, unique in the session.
        checkpoint_id: The id of the checkpoint that the tag names.
        reference: The reference of that checkpoint, like `main#7`.
        description: The description that a user wrote.
        user_id: The id of the user who made the tag.
        created_at: The time of creation, aware UTC.
    """

    name: str
    checkpoint_id: int
    reference: str
    description: str | None
    user_id: int
    created_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict, the time in ISO form."""
        return {**vars(self), "created_at": self.created_at.isoformat()}


class Tags(TableList[Tag]):
    """A list of tags; a notebook shows it as a table."""

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "name": OBJECT,
        "reference": OBJECT,
        "description": OBJECT,
        "created_at": TIME,
        "checkpoint_id": COUNT,
    }


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One search hit.

    Args:
        kind: `message`, `call` or `checkpoint`.
        reference: The first checkpoint that contains the hit, like `main#7`; a point to go back to.
        checkpoint_id: The id of that checkpoint.
        created_at: The time when that checkpoint was made, aware UTC.
        role: The role of a message: `user`, `assistant`, `tool`, `system`.
        name: The name of the tool for a call; the name of a checkpoint.
        id: The id of a message or call; None for a checkpoint.
        snippet: An excerpt of the text around the match.
        marks: The matching parts of the snippet, as pairs of start and end.
    """

    kind: str
    reference: str
    checkpoint_id: int
    created_at: datetime
    role: str | None = None
    name: str | None = None
    id: str | int | None = None
    snippet: str = ""
    marks: tuple[tuple[int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict, the time in ISO form."""
        return {**vars(self), "created_at": self.created_at.isoformat(), "marks": [list(pair) for pair in self.marks]}


@dataclass(frozen=True)
class Hits(Page[Hit], PrintableDrawing, Tabular):
    """A page of search hits: names and descriptions of checkpoints, then messages and calls, each newest first.

    Args:
        items: The items of the page.
        next: The cursor to pass as `after` for the next page; None if this is the last page.
        complete: False if newer texts could not be searched, because the database is read-only or a state is damaged.
        names_only: True if only names of checkpoints were searched, because everything else is encrypted.
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "kind": OBJECT,
        "reference": OBJECT,
        "role": OBJECT,
        "name": OBJECT,
        "snippet": OBJECT,
        "created_at": TIME,
        "id": OBJECT,
        "checkpoint_id": COUNT,
    }

    complete: bool = True
    names_only: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict, the items as `hits`."""
        return {
            "hits": [hit.to_dict() for hit in self.items],
            "next": self.next,
            "complete": self.complete,
            "names_only": self.names_only,
        }


class SearchableText(NamedTuple):
    """A searchable text and where it comes from."""

    text: str
    role: str | None = None
    name: str | None = None
    id: str | int | None = None

    def to_hit(self, kind: str, snippet: Snippet, reference: str, checkpoint_id: int, created_at: datetime) -> Hit:
        return Hit(
            kind=kind,
            reference=reference,
            checkpoint_id=checkpoint_id,
            created_at=created_at,
            role=self.role,
            name=self.name,
            id=self.id,
            snippet=snippet.text,
            marks=snippet.marks,
        )


def format_words(value: Any) -> str:
    """Format JSON-like data as words: keys and values without the punctuation of JSON.

    Example:
        >>> format_words({"item": "chair", "sizes": [1, None]})
        'item=chair, sizes=1'
    """
    if isinstance(value, dict):
        return ", ".join(f"{key}={format_words(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(filter(None, map(format_words, value)))
    return "" if value is None else str(value)
