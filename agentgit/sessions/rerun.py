"""The report of a rerun: how each call was answered, and where the rerun left the recording. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import zip_longest
from statistics import fmean, mean
from typing import Any, ClassVar, Self, TypeAlias

from agentgit.sessions.stats import Prices, Usage, UsedTokens, cost_of, require_prices
from agentgit.values import COUNT, FLAG, NUMBER, OBJECT, Displayable, PrintableDrawing, Tabular

RECORD, LIVE, VALUE, FUNCTION, TOLD = "record", "live", "value", "function", "told"
"""How a rerun answers a call: from the record, by its tool, by a given value, by a function, or not at all, so that the
model is told that the record has no such call."""

DONE, DIVERGED, FAILED = "done", "diverged", "failed"
"""The results of a rerun: it ran to its end, it stopped where it left the recording, or the graph raised."""

RUNNING = "running"
"""The status of a rerun that has no result, because it has not ended or its process was stopped."""


@dataclass(frozen=True, kw_only=True)
class RerunCall:
    """A call that a rerun made."""

    tool_name: str
    args: dict[str, Any]
    answered_by: str
    turn: int
    recorded_id: int | None = None
    is_reordered: bool = False

    @property
    def is_matched(self) -> bool:
        """True if the recording has the call."""
        return self.recorded_id is not None


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """A recorded call that a rerun did not make."""

    id: int
    tool_name: str
    args: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RerunReport(Displayable, Tabular):
    """The report of a rerun. A frame has one row for each call that was made or recorded.

    Args:
        branch: The name of the branch that the rerun made.
        source: The name of the branch that was run again.
        status: `done`, `diverged` or `failed`.
        reason: Why it stopped; None if it ran to its end.
        turns: The number of turns that ran.
        recorded_turns: The number of turns that were recorded.
        calls: The calls that the rerun made, in order.
        not_made: The recorded calls that it did not make.
        unanswered: The questions that had no recorded answer, JSON-like.
        is_same_state: True if the state at the end is the same, message by message.
        end: The id of the graph checkpoint at which the recorded part ends.
        seconds: The duration of the rerun.
        recorded_seconds: The time between the first and the last step of each recorded turn, added up. It includes the
            time in which a turn waited for a person.
        tokens: The tokens that the rerun used, by the name of the model.
        recorded_tokens: The tokens of the recorded part, by the name of the model.
        cost: The cost of the rerun; None without prices, or if the price of a model is missing.
        recorded_cost: The cost of the recorded part.
        model_calls: The number of model calls that the rerun made, without those of tools.
        recorded_model_calls: The number of those that were recorded; None if the recording has none.
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "outcome": OBJECT,
        "tool_name": OBJECT,
        "args": OBJECT,
        "turn": COUNT,
        "answered_by": OBJECT,
        "is_reordered": FLAG,
        "recorded_id": COUNT,
    }

    branch: str
    source: str
    status: str
    reason: str | None = None
    turns: int = 0
    recorded_turns: int = 0
    calls: list[RerunCall] = field(default_factory=list)
    not_made: list[RecordedCall] = field(default_factory=list)
    unanswered: list[Any] = field(default_factory=list)
    is_same_state: bool = False
    end: str | None = None
    seconds: float | None = None
    recorded_seconds: float | None = None
    tokens: Usage = field(default_factory=dict)
    recorded_tokens: Usage = field(default_factory=dict)
    cost: float | None = None
    recorded_cost: float | None = None
    model_calls: int = 0
    recorded_model_calls: int | None = None

    def _records(self) -> Iterator[dict[str, Any]]:
        for call in self.calls:
            yield {**vars(call), "outcome": "matched" if call.is_matched else "new"}
        for recorded in self.not_made:
            missing = {"turn": None, "answered_by": None, "is_reordered": False}
            yield {**vars(recorded), **missing, "outcome": "not made", "recorded_id": recorded.id}

    def costs(self, prices: Prices) -> tuple[float | None, float | None]:
        """Return the cost of the recorded part and of the rerun; None where the price of a model is missing.

        Args:
            prices: The prices of a million tokens, by the name of the model; see `Session.stats`.

        Raises:
            InvalidInput: A price is not valid.

        Example:
            >>> tokens = {"m": UsedTokens(1, 1_000_000, 0)}
            >>> RerunReport(branch="rerun", source="main", status="done", tokens=tokens).costs({"m": (2, 8)})
            (0.0, 2.0)
        """
        checked = require_prices(prices)
        return cost_of(self.recorded_tokens, checked), cost_of(self.tokens, checked)

    @property
    def matched(self) -> list[RerunCall]:
        """The calls that the recording has, too."""
        return [call for call in self.calls if call.is_matched]

    @property
    def new(self) -> list[RerunCall]:
        """The calls that the recording does not have."""
        return [call for call in self.calls if not call.is_matched]

    @property
    def reordered(self) -> list[RerunCall]:
        """The calls that came later than in the recording."""
        return [call for call in self.calls if call.is_reordered]

    @property
    def match_rate(self) -> float:
        """The share of calls, made and recorded, that are in both; 1 if there are none. Unanswered questions count."""
        total = len(self.calls) + len(self.not_made) + len(self.unanswered)
        return len(self.matched) / total if total else 1.0

    @property
    def is_same(self) -> bool:
        """True if the rerun did exactly what was recorded."""
        is_same_work = self.match_rate == 1 and not self.reordered and not self._has_other_model_calls
        return self.status == DONE and is_same_work and self.is_same_state

    @property
    def _has_other_model_calls(self) -> bool:
        return self.recorded_model_calls not in (None, self.model_calls)

    def usage(self) -> Iterator[tuple[str, str, str]]:
        """Yield the name of each known figure, with its recorded and its new value as text."""
        if self._has_other_model_calls:
            yield "model calls", f"{self.recorded_model_calls:,}", f"{self.model_calls:,}"
        if self.recorded_tokens or self.tokens:
            before, after = (sum(one.total for one in used.values()) for used in (self.recorded_tokens, self.tokens))
            yield "tokens", f"{before:,}", f"{after:,}"
        if self.cost is not None or self.recorded_cost is not None:
            yield "cost", _cost_text(self.recorded_cost), _cost_text(self.cost)
        if self.seconds is not None and self.recorded_seconds is not None:
            yield "time", f"{self.recorded_seconds:.1f} s", f"{self.seconds:.1f} s"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict; the counts of tokens are lists in the order of `UsedTokens`."""
        usages = {name: getattr(self, name) for name in ("tokens", "recorded_tokens")}
        counts = {name: {model: list(one) for model, one in usage.items()} for name, usage in usages.items()}
        return asdict(replace(self, tokens={}, recorded_tokens={})) | counts

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a report from the data that `to_dict` returned; keys that a newer version has added are ignored."""
        known = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        known["calls"] = [RerunCall(**call) for call in data.get("calls", ())]
        for name in ("tokens", "recorded_tokens"):
            known[name] = {model: UsedTokens(*counts) for model, counts in data.get(name, {}).items()}
        known["not_made"] = [RecordedCall(**call) for call in data.get("not_made", ())]
        return cls(**known)

    def __str__(self) -> str:
        lines = [
            f"Rerun {self.branch} of {self.source}: {self.status}. {self.turns} of {self.recorded_turns} turns; "
            f"{len(self.matched)} calls matched, {len(self.new)} new, {len(self.not_made)} not made, "
            f"{len(self.reordered)} in another order."
        ]
        lines += [self.reason] if self.reason else []
        lines += [f"  new: {_text(call)}" for call in self.new]
        lines += [f"  not made: {_text(call)}" for call in self.not_made]
        lines += [f"  unanswered: {question!r}" for question in self.unanswered]
        lines += [f"  later than recorded: {_text(call)}" for call in self.reordered]
        lines += [f"  {name}: {before} recorded, {after} now" for name, before, after in self.usage()]
        lines.append("The state is the same." if self.is_same_state else "The state differs.")
        return "\n".join(lines)


def _text(call: RerunCall | RecordedCall) -> str:
    return f"{call.tool_name}({', '.join(f'{name}={value!r}' for name, value in call.args.items())})"


def _cost_text(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.4f}"


Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RerunComparison(PrintableDrawing, Tabular):
    """A rerun beside what was recorded. A frame has one row for each pair of messages.

    Args:
        report: The report of the rerun.
        recorded: The recorded messages, from `first` on.
        rerun: The messages of the rerun, from `first` on.
        first: The number of the first of these messages, from 1.
        diverges_at: The number of the first message that differs, from 1; None if all are the same.
        recorded_count: The number of all recorded messages.
        rerun_count: The number of all messages of the rerun.
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "number": COUNT,
        "is_same": FLAG,
        "recorded_role": OBJECT,
        "recorded": OBJECT,
        "recorded_calls": OBJECT,
        "rerun_role": OBJECT,
        "rerun": OBJECT,
        "rerun_calls": OBJECT,
    }

    report: RerunReport
    recorded: Sequence[Message]
    rerun: Sequence[Message]
    first: int = 1
    diverges_at: int | None = None
    recorded_count: int = 0
    rerun_count: int = 0

    def pairs(self) -> Iterator[tuple[int, Message | None, Message | None]]:
        """Yield the number of each pair of messages, with the recorded message and that of the rerun, if any."""
        for number, (before, after) in enumerate(zip_longest(self.recorded, self.rerun), self.first):
            yield number, before, after

    def _records(self) -> Iterator[dict[str, Any]]:
        for number, before, after in self.pairs():
            yield {
                "number": number,
                "is_same": before is not None and after is not None and is_same_message(before, after),
                "recorded_role": before and before["role"],
                "recorded": before and before["content"],
                "recorded_calls": before and _calls(before),
                "rerun_role": after and after["role"],
                "rerun": after and after["content"],
                "rerun_calls": after and _calls(after),
            }

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        return {**vars(self), "report": self.report.to_dict()}


def is_same_message(a: Message, b: Message) -> bool:
    """Return whether two shown messages have the same role, content and tool calls. Ids are not compared.

    Example:
        >>> is_same_message({"role": "user", "content": "a", "id": "1"}, {"role": "user", "content": "a", "id": "2"})
        True
    """
    return _content(a) == _content(b)


def _content(message: Message) -> tuple[Any, ...]:
    return message.get("role"), message.get("content"), _calls(message)


def _calls(message: Message) -> list[dict[str, Any]]:
    """Return the tool calls of a message, without their ids."""
    return [{"name": call.get("name"), "args": call.get("args")} for call in message.get("tool_calls") or []]


REFUSED = "refused"
"""The status of a session that could not be run again, for example because it is damaged."""

Verdict = bool | float | str
"""What a judge returns: whether the rerun passes, a score, or a word."""


@dataclass(frozen=True, kw_only=True)
class SessionRerun:
    """The rerun of one session.

    Args:
        session: The name of the session.
        branch: The name of the branch of the rerun; None if there is none.
        status: `done`, `diverged`, `failed`, `refused` (nothing ran), or when read again, `running` (it has not ended
            and been judged yet, or its process was stopped).
        verdict: What the judge returned; None without a judge, or if it raised.
        error: Why the rerun did not end, why the judge has no verdict, or which recorded tools the graph lacks.
        report: The report of the rerun; None if nothing ran.
    """

    session: str
    branch: str | None = None
    status: str = REFUSED
    verdict: Verdict | None = None
    error: str | None = None
    report: RerunReport | None = None

    @property
    def source(self) -> str | None:
        """The name of the branch that was run again."""
        return self.report.source if self.report is not None else None

    @property
    def tokens(self) -> int | None:
        """The tokens that the models reported; None if they report none."""
        used = self.report.tokens.values() if self.report is not None else ()
        return sum(one.total for one in used) if used else None

    @property
    def cost(self) -> float | None:
        """The cost of the tokens; None without prices, or if the price of a model is missing."""
        return self.report.cost if self.report is not None else None

    @property
    def match_rate(self) -> float:
        """The share of calls, made and recorded, that are in both; 0 if the rerun did not run to its end."""
        return self.report.match_rate if self.report is not None and self.status == DONE else 0.0

    @property
    def is_same(self) -> bool:
        """True if the rerun did exactly what was recorded."""
        return self.report is not None and self.report.is_same

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        report = self.report.to_dict() if self.report is not None else None
        figures = {"match_rate": self.match_rate, "is_same": self.is_same, "tokens": self.tokens, "cost": self.cost}
        return {**vars(self), **figures, "report": report}


@dataclass(frozen=True, kw_only=True)
class Reruns(PrintableDrawing, Tabular):
    """The results of reruns of many sessions. `str` returns a table, and so does `to_frame`.

    Args:
        name: The name of all their branches, with which `repo.reruns` reads them again.
        rows: The sessions, in the order in which they were given.
        is_judged: True if there was a judge.

    Example:
        >>> passed = SessionRerun(session="a", status="done", verdict=True)
        >>> results = Reruns(name="prompt-2", rows=[passed, SessionRerun(session="b", error="Corrupt")], is_judged=True)
        >>> results.judge, results.matched, results.is_passed(0.9)
        (0.5, 0.0, False)
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "session": OBJECT,
        "branch": OBJECT,
        "source": OBJECT,
        "status": OBJECT,
        "match_rate": NUMBER,
        "is_same": FLAG,
        "verdict": OBJECT,
        "tokens": COUNT,
        "cost": NUMBER,
        "error": OBJECT,
    }

    name: str
    rows: list[SessionRerun] = field(default_factory=list)
    is_judged: bool = False

    def _records(self) -> Iterable[Any]:
        return self.rows

    @property
    def names(self) -> list[str]:
        """The name of the session of each row; with the branch that was run again, if several have that name."""
        counts = Counter(row.session for row in self.rows)
        return [
            f"{row.session}@{row.source}" if counts[row.session] > 1 and row.source is not None else row.session
            for row in self.rows
        ]

    @property
    def matched(self) -> float:
        """The mean of the match rates; 0 if there is no session, which must not pass."""
        return fmean(row.match_rate for row in self.rows) if self.rows else 0.0

    @cached_property
    def judge(self) -> float | None:
        """The mean of the verdicts, where True is 1 and none is 0; None without a judge that gives numbers."""
        if not self.is_judged or any(isinstance(row.verdict, str) for row in self.rows):
            return None
        return mean(float(row.verdict or 0) for row in self.rows) if self.rows else 0.0  # `fmean` overflows

    @property
    def tokens(self) -> int | None:
        """The tokens of all reruns; None if the models report none."""
        reported = [row.tokens for row in self.rows if row.tokens is not None]
        return sum(reported) if reported else None

    @property
    def cost(self) -> float | None:
        """The cost of all reruns; None if that of one is not known."""
        costs = [row.cost for row in self.rows if row.report is not None]
        known = [cost for cost in costs if cost is not None]
        return sum(known) if known and len(known) == len(costs) else None

    def score(self, row: SessionRerun) -> float:
        """Return the number by which a session passes: the verdict if the judge gives numbers, else the match rate."""
        return row.match_rate if self.judge is None else float(row.verdict or 0)

    def is_passed(self, bar: float) -> bool:
        """Return whether the mean of the verdicts, or without a judge that of the match rates, reaches a bar."""
        return (self.matched if self.judge is None else self.judge) >= bar

    def to_dict(self) -> dict[str, Any]:
        """Return the summary and all rows as JSON-like data."""
        summary = {"name": self.name, "matched": self.matched, "judge": self.judge, "tokens": self.tokens}
        summary["cost"] = self.cost
        return {**summary, "sessions": [row.to_dict() for row in self.rows]}
