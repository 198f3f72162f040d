"""Retention: which checkpoints of a session are removed, and why each of the others stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Self

from agentgit.errors import InvalidInput
from agentgit.values import count

MAX_LIMIT = 2**31 - 1
"""The greatest value of a limit."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The checkpoints that a session keeps.

    A checkpoint that something needs is never removed, whatever the limits.

    Args:
        compress_after: With more checkpoints than this, only the first, the newest `keep_last` and the newest of each
            name stay; None means no compression.
        keep_last: The number of the newest checkpoints that always stay, at most `max_checkpoints`.
        max_checkpoints: With more checkpoints than this, the oldest are removed, automatic ones before named ones. None
            means no limit.
        max_age: Checkpoints older than this are removed, except the first and the newest `keep_last`. None means no
            limit.

    Raises:
        InvalidInput: A limit is not a whole number above zero, or `max_age` is not a positive `timedelta`.

    Example:
        >>> Retention().compress_after, Retention().keep_last, Retention().max_checkpoints
        (50, 20, 100)
    """

    compress_after: int | None = 50
    keep_last: int = 20
    max_checkpoints: int | None = 100
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("compress_after", "keep_last", "max_checkpoints"):
            value = getattr(self, name)
            if value is None and name != "keep_last":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIMIT:
                raise InvalidInput(f"{name} must be a number of checkpoints from 1 to {MAX_LIMIT}, not {value!r}.")
        if self.max_age is not None and not (isinstance(self.max_age, timedelta) and self.max_age > timedelta(0)):
            raise InvalidInput(f"max_age must be a timedelta above zero, not {self.max_age!r}.")

    @classmethod
    def by_name(cls, *, compress_after: int = 50, keep_last: int = 20) -> Self:
        """Return the retention that only compresses: the first, the last and the newest of each name stay.

        There is no other limit, so a checkpoint whose name no later one has is never removed.

        Args:
            compress_after: The number of checkpoints above which it compresses.
            keep_last: The number of the newest checkpoints that always stay.

        Example:
            >>> print(Retention.by_name())
            only the first, the last 20 and the newest of each name if there are more than 50
        """
        return cls(compress_after=compress_after, keep_last=keep_last, max_checkpoints=None)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data, the age in seconds; `from_dict` is the inverse."""
        return {**vars(self), "max_age": self.max_age.total_seconds() if self.max_age is not None else None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a retention from the data that `to_dict` returned.

        Raises:
            InvalidInput: A field is unknown, or a value is not valid.
        """
        if unknown := sorted(set(data) - {one.name for one in fields(cls)}):
            raise InvalidInput(f"A retention has no field {', '.join(unknown)}.")
        age = data.get("max_age")
        try:
            return cls(**{**data, "max_age": timedelta(seconds=age) if age is not None else None})
        except (TypeError, OverflowError) as error:
            raise InvalidInput(f"max_age must be a number of seconds, not {age!r}.") from error

    def __str__(self) -> str:
        rules, last = [], f"the last {self.keep_last}" if self.keep_last > 1 else "the last one"
        if self.compress_after is not None:
            rules.append(
                f"only the first, {last} and the newest of each name if there are more than {self.compress_after}"
            )
        if self.max_checkpoints is not None:
            rules.append(f"at most {count(self.max_checkpoints, 'checkpoint')}")
        if self.max_age is not None:
            days = self.max_age / timedelta(days=1)
            rules.append(f"none older than {days:g} {'day' if days == 1 else 'days'}, except the first and {last}")
        return "; ".join(rules) or "everything"


@dataclass(frozen=True, kw_only=True)
class KeptPoint:
    """A checkpoint as retention sees it.

    Args:
        id: The id of the checkpoint; newer checkpoints have greater ids.
        reference: The reference of the checkpoint, like `main#7`.
        name: The name that a user gave it.
        is_auto: True if agentgit made it automatically, and nobody has named it.
        created_at: The time of creation, aware UTC.
        needed: The reason why it is needed, as a sentence; empty if nothing needs it.
    """

    id: int
    reference: str = ""
    name: str | None = None
    is_auto: bool = True
    created_at: datetime
    needed: str = ""


@dataclass(frozen=True, kw_only=True)
class RetentionVerdict:
    """The decision about one checkpoint.

    Args:
        point: The checkpoint.
        is_removed: True if it is removed.
        why: The reason, as a sentence.
    """

    point: KeptPoint
    is_removed: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class RetentionResult:
    """The result of applying a retention to a session, or of a dry run.

    Args:
        session_name: The session.
        retention: The retention that was applied; None if everything was to be removed.
        verdicts: The decision about each checkpoint, oldest first.
        dry_run: True if nothing was removed.
    """

    session_name: str
    retention: Retention | None
    verdicts: Sequence[RetentionVerdict] = field(default_factory=tuple)
    dry_run: bool = False

    @property
    def gone(self) -> list[RetentionVerdict]:
        """The checkpoints that were removed, or would be, oldest first."""
        return [verdict for verdict in self.verdicts if verdict.is_removed]

    @property
    def kept(self) -> list[RetentionVerdict]:
        """The checkpoints that stay, oldest first."""
        return [verdict for verdict in self.verdicts if not verdict.is_removed]

    def __str__(self) -> str:
        outcome = "would be deleted" if self.dry_run else "deleted"
        lines = [f"{count(len(self.gone), 'checkpoint')} {outcome}, {len(self.kept)} kept"]
        for verdict in self.kept:
            place = " ".join(filter(None, (verdict.point.reference, verdict.point.name)))
            lines.append(f"  kept  {place}  {verdict.why}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-like data."""
        return {
            "session_name": self.session_name,
            "retention": self.retention.to_dict() if self.retention is not None else None,
            "dry_run": self.dry_run,
            "gone": [_verdict_to_dict(verdict) for verdict in self.gone],
            "kept": [_verdict_to_dict(verdict) for verdict in self.kept],
        }


def _verdict_to_dict(verdict: RetentionVerdict) -> dict[str, Any]:
    point = verdict.point
    return {"id": point.id, "reference": point.reference, "name": point.name, "why": verdict.why}


def judge(points: Iterable[KeptPoint], retention: Retention, now: datetime) -> list[RetentionVerdict]:
    """Decide which checkpoints of a session are removed.

    Example:
        >>> made = datetime.fromisoformat("2026-01-01T00:00:00Z")
        >>> points = [KeptPoint(id=n, created_at=made) for n in range(5)]
        >>> [v.point.id for v in judge(points, Retention(compress_after=3, keep_last=2), made) if not v.is_removed]
        [0, 3, 4]
    """
    ordered = sorted(points, key=lambda point: point.id)
    keep_reasons = _keep_reasons(ordered, retention)
    removal_reasons: dict[int, str] = {}
    if retention.compress_after is not None and len(ordered) > retention.compress_after:
        reason = f"there are more than {retention.compress_after}"
        removal_reasons.update(
            (point.id, reason) for point in ordered if not point.needed and point.id not in keep_reasons
        )
    if retention.max_age is not None:
        protected_ids = {id for id, reason in keep_reasons.items() if reason != _NAMED}
        expired = (point for point in ordered if now - point.created_at > retention.max_age)
        reason = f"it is older than {retention.max_age}"
        removal_reasons.update(
            (point.id, reason) for point in expired if not point.needed and point.id not in protected_ids
        )
    if retention.max_checkpoints is not None:
        removal_reasons.update(_choose_by_count(ordered, retention.max_checkpoints, keep_reasons, removal_reasons))
    default_reason = "it is within the limits"
    return [
        RetentionVerdict(
            point=point,
            is_removed=point.id in removal_reasons,
            why=removal_reasons.get(point.id) or point.needed or keep_reasons.get(point.id, default_reason),
        )
        for point in ordered
    ]


_FIRST, _LAST, _NAMED = "it is the first", "it is one of the newest", "it is the newest with its name"


def _keep_reasons(ordered: Sequence[KeptPoint], retention: Retention) -> dict[int, str]:
    """Return the checkpoints that compression keeps, each with the reason."""
    reasons = {
        point.id: _NAMED for point in {point.name: point for point in ordered if point.name is not None}.values()
    }
    reasons.update((point.id, _FIRST) for point in ordered[:1])
    last_count = min(retention.keep_last, retention.max_checkpoints or retention.keep_last)
    reasons.update((point.id, _LAST) for point in ordered[-last_count:])
    return reasons


def _choose_by_count(
    ordered: Sequence[KeptPoint], limit: int, keep_reasons: Mapping[int, str], removal_reasons: Mapping[int, str]
) -> dict[int, str]:
    """Choose what to remove if there are too many: automatic checkpoints, then named ones, and the first one last."""
    excess = sum(point.id not in removal_reasons for point in ordered) - limit
    removable = _removable_checkpoints(ordered, keep_reasons, removal_reasons)
    return {point.id: f"there are more than {limit}" for point in removable[: max(0, excess)]}


def _removable_checkpoints(
    ordered: Sequence[KeptPoint], keep_reasons: Mapping[int, str], removal_reasons: Mapping[int, str]
) -> list[KeptPoint]:
    removable = [
        point
        for point in ordered
        if point.id not in removal_reasons and not point.needed and keep_reasons.get(point.id) != _LAST
    ]
    return sorted(removable, key=lambda point: (keep_reasons.get(point.id) == _FIRST, not point.is_auto, point.id))
