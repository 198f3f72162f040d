"""Finding: which checkpoints are looked for, pages of what was found, tags and hits. Pure values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from agentgit.checkpoints.search_words import Snippet
from agentgit.errors import InvalidInput
from agentgit.values import Drawn, Listed

T = TypeVar("T")

PAGE = 50
"""The default number of items on a page."""

LARGEST_PAGE = 1_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,16})", re.ASCII)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A selection of checkpoints; a checkpoint must meet all conditions.

    Args:
        name: Only checkpoints to which a person gave exactly this name.
        since: Only checkpoints made then or later, aware.
        until: Only checkpoints made then or earlier, aware.
        tag: Only the checkpoint that has this tag.
        author: Only checkpoints made by the user with this id.
        auto: True for automatic ones, False for those that somebody asked for.

    Raises:
        InvalidInput: A time has no zone, or a value has the wrong type.
    """

    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tag: str | None = None
    author: int | None = None
    auto: bool | None = None

    def __post_init__(self) -> None:
        for field in ("since", "until"):
            when = getattr(self, field)
            if when is not None and (not isinstance(when, datetime) or when.tzinfo is None):
                raise InvalidInput(f"{field} must be a datetime with a time zone, not {when!r}.")
        for field in ("name", "tag"):
            if not isinstance(getattr(self, field), str | None):
                raise InvalidInput(f"{field} must be a string, not {getattr(self, field)!r}.")
        if self.auto not in (None, True, False):
            raise InvalidInput(f"auto must be True, False or None, not {self.auto!r}.")

    @property
    def by_person(self) -> bool:
        """True if it means only checkpoints that a person named, tagged or asked for."""
        return self.name is not None or self.tag is not None or self.auto is False

    def narrowed(self, **more: Any) -> Filter:
        """Add conditions; of two times the narrower one holds, and of other things the new one."""
        if self.since and more.get("since"):
            more["since"] = max(self.since, more["since"])
        if self.until and more.get("until"):
            more["until"] = min(self.until, more["until"])
        return replace(self, **more)


class Mark(NamedTuple):
    """A place in a list that is ordered by time: behind what was made then, with that id."""

    at: datetime
    id: int

    @property
    def cursor(self) -> str:
        """The text that a page gives as `next`.

        Example:
            >>> Mark(datetime(2026, 1, 1, tzinfo=UTC), 7).cursor
            '1767225600000000-7'
        """
        return f"{(self.at - _EPOCH) // _MICROSECOND}-{self.id}"


TOP = Mark(datetime.max.replace(tzinfo=UTC), 2**53)
"""Before all of a list that begins with the newest."""


def mark(cursor: object) -> Mark:
    """Read what a page gave as `next`; None is the beginning.

    Raises:
        InvalidInput: It is something else.
    """
    if cursor is None:
        return TOP
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    try:
        return Mark(_EPOCH + int(match[1]) * _MICROSECOND, min(int(match[2]), TOP.id)) if match else _bad(cursor)
    except OverflowError:
        return _bad(cursor)


class Rank(NamedTuple):
    """A place in what a search finds: what people wrote at checkpoints comes first, then the rest; the newest first."""

    named: bool
    id: int

    @property
    def cursor(self) -> str:
        """The text that a page gives as `next`.

        Example:
            >>> Rank(True, 7).cursor, Rank(False, 7).cursor
            ('n7', '7')
        """
        return f"{'n' if self.named else ''}{self.id}"


FIRST = Rank(True, TOP.id)
"""Before all that a search finds."""


def rank(cursor: object) -> Rank:
    """Read what a page of hits gave as `next`; None is the beginning.

    Raises:
        InvalidInput: It is something else.
    """
    if cursor is None:
        return FIRST
    match = re.fullmatch(r"(n?)(\d{1,16})", cursor, re.ASCII) if isinstance(cursor, str) else None
    return Rank(bool(match[1]), min(int(match[2]), TOP.id)) if match else Rank(False, _bad(cursor).id)


def _bad(cursor: object) -> Mark:
    raise InvalidInput(f"after={cursor!r} is not a cursor; give the `next` of a page of the same list, or None.")


def page_size(limit: object) -> int:
    """Check the length of a page and return it.

    Raises:
        InvalidInput: A page cannot have that length.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidInput(f"limit must be 1 to {LARGEST_PAGE:,}, not {limit!r}.")
    return limit


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list.

    Args:
        items: The items of the page.
        next: Give it as `after` for the page that follows; None if this is the last one.
    """

    items: list[T]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A name for one checkpoint of a session, which is kept as long as it has it.

    Args:
        name: Unique in the session.
        checkpoint_id: The id of the checkpoint that it names.
        reference: The same as a place, like `main#7`.
        description: The text that a person wrote about it.
        user_id: The id of the user who made it.
        created_at: The time at which it was made, aware UTC.
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


class Tags(Listed[Tag]):
    """Tags, which a notebook shows as a table."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Something that was found.

    Args:
        kind: `message`, `call` or `checkpoint`.
        reference: The first checkpoint that holds it, like `main#7`: a place to go back to.
        checkpoint_id: The same as an id.
        created_at: When that checkpoint was made, aware UTC.
        role: The role of a message: `user`, `assistant`, `tool`, `system`.
        name: The name of the tool for a call; the name of a checkpoint.
        id: The id of a message or call; None for a checkpoint.
        snippet: The piece of the text where it was found.
        marks: The parts of the snippet that were found, as pairs of start and end.
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
class Hits(Page[Hit], Drawn):
    """A page of what was found: names and descriptions of checkpoints, then messages and calls, the newest first.

    Args:
        items: The items of the page.
        next: Give it as `after` for the page that follows; None if this is the last one.
        complete: False if there are newer texts that could not be looked at: the database cannot be written, or a state
            is damaged.
        names_only: True if only names of checkpoints were looked at, because everything else is encrypted.
    """

    complete: bool = True
    names_only: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as a JSON-like dict."""
        return {
            "hits": [hit.to_dict() for hit in self.items],
            "next": self.next,
            "complete": self.complete,
            "names_only": self.names_only,
        }


class Text(NamedTuple):
    """A text that can be found, and what it is of."""

    text: str
    role: str | None = None
    name: str | None = None
    id: str | int | None = None

    def hit(self, kind: str, snippet: Snippet, reference: str, checkpoint_id: int, made: datetime) -> Hit:
        """Make what a person gets."""
        return Hit(
            kind=kind,
            reference=reference,
            checkpoint_id=checkpoint_id,
            created_at=made,
            role=self.role,
            name=self.name,
            id=self.id,
            snippet=snippet.text,
            marks=snippet.marks,
        )


def plain(value: Any) -> str:
    """Write JSON-like data as words: keys and values, without what JSON puts around them.

    Example:
        >>> plain({"item": "chair", "sizes": [1, None]})
        'item=chair, sizes=1'
    """
    if isinstance(value, dict):
        return ", ".join(f"{key}={plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(filter(None, map(plain, value)))
    return "" if value is None else str(value)
