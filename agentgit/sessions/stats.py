"""Statistics of a session, a branch, or all sessions of a user."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, TypeAlias

from agentgit.errors import InvalidInput
from agentgit.values import COUNT, NUMBER, OBJECT, TIME, PrintableDrawing, Tabular

Prices: TypeAlias = Mapping[str, Sequence[float]]
"""Prices of a million tokens, by the name of the model: of input, of output and, if they differ from that of input, of
input read from a cache and of input written to a cache. The key `*` applies to every other model."""

MILLION = 1_000_000
ANY_MODEL = "*"


class UsedTokens(NamedTuple):
    """Token counts of one model.

    Args:
        messages: The number of model answers that reported their usage.
        input: Input tokens, including cached ones.
        output: Output tokens.
        cache_read: Input tokens that were read from a cache.
        cache_write: Input tokens that were written to a cache.
    """

    messages: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output


Usage: TypeAlias = Mapping[str, UsedTokens]
"""Token counts by the name of the model."""


def sum_usages(usages: Iterable[Usage]) -> dict[str, UsedTokens]:
    """Add up the token counts of several usages, for each model.

    Example:
        >>> sum_usages([{"a": UsedTokens(1, 2, 3)}, {"a": UsedTokens(1, 1, 1), "b": UsedTokens(1, 0, 5)}])["a"]
        UsedTokens(messages=2, input=3, output=4, cache_read=0, cache_write=0)
    """
    sums: dict[str, UsedTokens] = {}
    for usage in usages:
        for model, tokens in usage.items():
            sums[model] = UsedTokens(*map(sum, zip(sums.get(model, UsedTokens()), tokens, strict=True)))
    return sums


def require_prices(prices: Prices) -> Prices:
    """Check that prices are valid and return them."""
    if not isinstance(prices, Mapping):
        raise InvalidInput(f"prices must be a mapping from the names of models to their prices, not {prices!r}.")
    for model, price in prices.items():
        numbers = price if isinstance(price, (list, tuple)) else ()
        if not 2 <= len(numbers) <= 4 or not all(map(_is_price, numbers)):
            raise InvalidInput(
                f"The price of {model!r} must be that of a million input and output tokens, like (1.25, 10), or "
                f"also of tokens read from a cache and written to it, like (3, 15, 0.3, 3.75), not {price!r}."
            )
    return prices


def _is_price(number: object) -> bool:
    return isinstance(number, (int, float)) and not isinstance(number, bool) and number >= 0 and math.isfinite(number)


def cost_of(usage: Usage, prices: Prices) -> float | None:
    """Return the cost of a usage; None if the price of a model is not known.

    Example:
        >>> cost_of({"m": UsedTokens(1, 2_000_000, 500_000)}, {"m": (1, 8)}), cost_of({"m": UsedTokens(1, 1, 1)}, {})
        (6.0, None)
        >>> cost_of({"m": UsedTokens(1, 2_000_000, 0, cache_read=1_000_000)}, {"m": (1, 8, 0.25)})
        1.25
    """
    cost = 0.0
    for model, tokens in usage.items():
        price = prices.get(model, prices.get(ANY_MODEL))
        if price is None:
            return None
        input_price, output_price, read_price, write_price = (*price, *[price[0]] * (4 - len(price)))
        uncached = max(0, tokens.input - tokens.cache_read - tokens.cache_write)
        input_cost = uncached * input_price + tokens.cache_read * read_price + tokens.cache_write * write_price
        cost += (input_cost + tokens.output * output_price) / MILLION
    return cost


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The database space that sessions or branches take, in bytes.

    Args:
        own: The size of what nothing else needs.
        shared: The size of the values that other sessions or branches need too.
    """

    own: int
    shared: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The counts of a branch, or the sums of several branches.

    Args:
        checkpoints: The number of checkpoints.
        automatic: The number of checkpoints that agentgit made automatically.
        first: The time of the oldest checkpoint, aware UTC.
        last: The time of the newest checkpoint, aware UTC.
        calls: The number of tool calls, by status.
        operations: The number of rollbacks, switches and forks that started from these branches, by kind.
        tokens: The tokens that models have used, by the name of the model.
    """

    checkpoints: int = 0
    automatic: int = 0
    first: datetime | None = None
    last: datetime | None = None
    calls: Mapping[str, int] = field(default_factory=dict)
    operations: Mapping[str, int] = field(default_factory=dict)
    tokens: Usage = field(default_factory=dict)

    @property
    def named(self) -> int:
        """The number of checkpoints that a person or an agent asked for."""
        return self.checkpoints - self.automatic

    @property
    def duration_seconds(self) -> float:
        """The seconds between the first checkpoint and the last."""
        return (self.last - self.first).total_seconds() if self.first and self.last else 0.0

    @property
    def rollbacks(self) -> int:
        """The number of rollbacks that started from these branches."""
        return self.operations.get("rollback", 0)

    @property
    def reversals(self) -> int:
        """The number of calls whose reversal has ended: it succeeded, failed, or its outcome is unknown."""
        return sum(self.calls.get(status, 0) for status in ("reversed", "reverse_failed", "reverse_unknown"))

    @property
    def reversal_success(self) -> float | None:
        """The share of reversals that succeeded, from 0 to 1; None if there were no reversals."""
        return self.calls.get("reversed", 0) / self.reversals if self.reversals else None

    def to_dict(self, prices: Prices | None = None) -> dict[str, Any]:
        """Return the counts as JSON-like data.

        Args:
            prices: The prices to compute the cost with; without them `cost` is None.
        """
        return {
            "checkpoints": self.checkpoints,
            "automatic": self.automatic,
            "named": self.named,
            "first": self.first.isoformat() if self.first else None,
            "last": self.last.isoformat() if self.last else None,
            "duration_seconds": self.duration_seconds,
            "calls": dict(self.calls),
            "operations": dict(self.operations),
            "rollbacks": self.rollbacks,
            "reversals": self.reversals,
            "reversal_success": self.reversal_success,
            "tokens": {model: {**tokens._asdict(), "total": tokens.total} for model, tokens in self.tokens.items()},
            "cost": cost_of(self.tokens, prices) if prices is not None else None,
        }


def sum_figures(figures: Iterable[Figures]) -> Figures:
    all_figures = list(figures)
    return Figures(
        checkpoints=sum(one.checkpoints for one in all_figures),
        automatic=sum(one.automatic for one in all_figures),
        first=min((one.first for one in all_figures if one.first), default=None),
        last=max((one.last for one in all_figures if one.last), default=None),
        calls=_sum_counts(one.calls for one in all_figures),
        operations=_sum_counts(one.operations for one in all_figures),
        tokens=sum_usages(one.tokens for one in all_figures),
    )


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums = Counter[str]()
    for count in counts:
        sums.update(count)
    return dict(sorted(sums.items()))


@dataclass(frozen=True, kw_only=True)
class BranchFigures:
    """The counts of one branch: what was done on it, without what it inherited.

    Args:
        session_name: The name of its session.
        name: The name of the branch.
        figures: The counts.
    """

    session_name: str
    name: str
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class Stats(PrintableDrawing, Tabular):
    """The statistics of a session, a branch, or all sessions of a user.

    A frame has one row for each branch, with the tokens of all models together.

    Args:
        subject: What the statistics describe.
        branches: The counts of each branch.
        names: How often each checkpoint name occurs.
        sessions: The number of sessions.
        prices: The prices of tokens; None if no prices were given.
        storage: The database space that it takes; None if it was not measured.
        erased: The tokens of the user's sessions that were erased; they are part of the total.
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "session_name": OBJECT,
        "branch": OBJECT,
        "checkpoints": COUNT,
        "named": COUNT,
        "first": TIME,
        "last": TIME,
        "duration_seconds": NUMBER,
        "calls": COUNT,
        "failed": COUNT,
        "unknown": COUNT,
        "reversed": COUNT,
        "rollbacks": COUNT,
        "model_answers": COUNT,
        "input_tokens": COUNT,
        "output_tokens": COUNT,
        "cost": NUMBER,
    }

    subject: str
    branches: Sequence[BranchFigures] = field(default_factory=tuple)
    names: Mapping[str, int] = field(default_factory=dict)
    sessions: int = 1
    prices: Prices | None = None
    storage: Storage | None = None
    erased: Usage = field(default_factory=dict)

    @property
    def total(self) -> Figures:
        """The counts of all branches together, with the tokens of erased sessions."""
        return sum_figures([*(branch.figures for branch in self.branches), Figures(tokens=self.erased)])

    @property
    def unique_names(self) -> int:
        """The number of different checkpoint names."""
        return len(self.names)

    @property
    def cost(self) -> float | None:
        """The cost of the tokens; None if no prices were given or the price of a model is missing."""
        return cost_of(self.total.tokens, self.prices) if self.prices is not None else None

    def _records(self) -> Iterable[Any]:
        for branch in self.branches:
            figures, tokens = branch.figures, branch.figures.tokens.values()
            yield {
                **{name: getattr(figures, name) for name in ("checkpoints", "named", "first", "last")},
                **{status: figures.calls.get(status, 0) for status in ("failed", "unknown", "reversed")},
                "session_name": branch.session_name,
                "branch": branch.name,
                "duration_seconds": figures.duration_seconds,
                "calls": sum(figures.calls.values()),
                "rollbacks": figures.rollbacks,
                "model_answers": sum(used.messages for used in tokens),
                "input_tokens": sum(used.input for used in tokens),
                "output_tokens": sum(used.output for used in tokens),
                "cost": cost_of(figures.tokens, self.prices) if self.prices is not None else None,
            }

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON-like data."""
        return {
            "subject": self.subject,
            "sessions": self.sessions,
            "branch_count": len(self.branches),
            **self.total.to_dict(self.prices),
            "erased": {model: tokens.total for model, tokens in self.erased.items()},
            "unique_names": self.unique_names,
            "names": dict(self.names),
            "storage": vars(self.storage) if self.storage is not None else None,
            "branches": [
                {"session_name": branch.session_name, "name": branch.name, **branch.figures.to_dict(self.prices)}
                for branch in self.branches
            ],
        }
