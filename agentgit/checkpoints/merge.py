"""Merging: which values and messages of one branch are added to another, and which conflict. Pure, no IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from agentgit.errors import InvalidInput
from agentgit.values import PrintableDrawing, count, portable, quote_name, to_json

OURS, THEIRS = "ours", "theirs"
"""The sides of a conflict that can win: `ours` is this branch, `theirs` the other branch."""

TAKE, APPEND = "take", "append"
"""How a value is merged: `take` if only the other branch changed it, `append` if the other branch's additions to a list
or dict are added."""

KEEP, CLASH = "keep", "clash"

Resolve = str | Mapping[str, str] | None
"""The side to keep where both branches changed a value: `ours` or `theirs`, or a mapping from keys to these.

In a mapping, `*` applies to all other keys.
"""


@dataclass(frozen=True, kw_only=True)
class Clash:
    """A value that both branches changed in different ways.

    Args:
        key: The name of the value in the state.
        base: Its value where the branches diverged; None if there was none.
        ours: Its value on this branch.
        theirs: Its value on the other branch.
    """

    key: str
    base: Any
    ours: Any
    theirs: Any


@dataclass(frozen=True, kw_only=True)
class MergedValue:
    """A value that a merge includes.

    Args:
        key: The name of the value in the state.
        how: `take`, `append`, `ours` or `theirs`.
        value: The value to add; None for `ours`.
    """

    key: str
    how: str
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class MergePlan(PrintableDrawing):
    """The changes that a merge or a cherry-pick would make. `str` renders them as text.

    Args:
        kind: `merge` or `cherry_pick`.
        source: The checkpoint or branch that the changes come from, like `retry#4`.
        into: The checkpoint or branch that they are added to, like `main#5`.
        base: The checkpoint that both are compared with, like `main#3`; empty if there is none before the picked one.
        session_name: The name by which the user refers to the session, like `support-42` or `alice/support-42`.
        values: The values to merge.
        messages: The messages to add, as shown, in order.
        conflicts: The values that both sides changed and that have no resolution.
        left_out: Sentences that name the values and messages that are left out, and why.
    """

    kind: str
    source: str
    into: str
    base: str = ""
    session_name: str = ""
    values: list[MergedValue] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    conflicts: list[Clash] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to add and no conflict: everything is already on this branch."""
        return not (self.conflicts or self.messages or any(value.how != OURS for value in self.values))

    @property
    def heading(self) -> str:
        """A sentence that says what is merged, and in which session."""
        session = f", in session {quote_name(self.session_name)}" if self.session_name else ""
        return f"{self.title}{session}: adds history, runs no tool."

    @property
    def title(self) -> str:
        """A description of what is merged, in a few words. The new checkpoint has them as its description."""
        since = f", since {self.base}" if self.base else ""
        return f"{self.kind.capitalize().replace('_', '-')} of {self.source} into {self.into}{since}"

    @property
    def summary(self) -> str:
        """A sentence that counts what is added."""
        if self.is_empty:
            return "Nothing to add: everything is already here."
        values = sum(value.how != OURS for value in self.values)
        conflicts = f"; {count(len(self.conflicts), 'conflict')} to resolve" if self.conflicts else ""
        return f"{count(values, 'value')} and {count(len(self.messages), 'message')} to add{conflicts}."

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        plain: dict[str, Any] = portable({f.name: getattr(self, f.name) for f in fields(self)})
        return plain


def decide(base: Hashable, ours: Hashable, theirs: Hashable) -> str:
    """Decide about one value, given its hashes: `keep` ours, `take` theirs, or `clash`.

    Example:
        >>> decide(1, 1, 2), decide(1, 2, 1), decide(1, 2, 2), decide(1, 2, 3)
        ('take', 'keep', 'keep', 'clash')
    """
    if theirs is None or theirs in (base, ours):
        return KEEP
    return TAKE if ours == base else CLASH


def added_positions(base: Iterable[Hashable], later: Sequence[Hashable]) -> list[int] | None:
    """Find what was added to a list, in any order; None if an earlier item was changed or removed.

    Example:
        >>> added_positions("ab", "axb"), added_positions("ab", "b")
        ([1], None)
    """
    remaining, positions = Counter(base), list[int]()
    for position, item in enumerate(later):
        if remaining[item]:
            remaining[item] -= 1
        else:
            positions.append(position)
    return None if remaining.total() else positions


def find_additions(base: Any, ours: Any, theirs: Any) -> tuple[int | str, ...] | None:
    """Return the indexes or keys that `theirs` adds to a list or a dict; None if `ours` cannot be combined with them.

    Example:
        >>> find_additions([1], [1, 2], [1, 3])
        (1,)
        >>> find_additions({"a": 1}, {"a": 2}, {"a": 1, "b": 1}), find_additions({"a": 1}, {"a": 2}, {"a": 3})
        (('b',), None)
    """
    if isinstance(ours, list) and isinstance(theirs, list) and isinstance(base, list | None):
        begin = len(base or ())
        is_prefix = all(to_json(side[:begin]) == to_json(base or []) for side in (ours, theirs))
        return tuple(range(begin, len(theirs))) if is_prefix else None
    if not (isinstance(ours, dict) and isinstance(theirs, dict) and isinstance(base, dict | None)):
        return None
    base_items, our_items, their_items = (
        {key: to_json(item) for key, item in (side or {}).items()} for side in (base, ours, theirs)
    )
    new_keys = [key for key, item in their_items.items() if item not in (base_items.get(key), our_items.get(key))]
    has_clash = any(our_items.get(key) != base_items.get(key) for key in new_keys)
    return None if has_clash or not their_items.keys() >= base_items.keys() else tuple(new_keys)


def select(value: Any, keys: Sequence[int | str]) -> Any:
    """Return a list or a dict with only some of its items."""
    return {key: value[key] for key in keys} if isinstance(value, dict) else [value[key] for key in keys]


def complete_batches(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of all messages but incomplete batches of calls and results, which model providers reject.

    Example:
        >>> asks = {"role": "assistant", "tool_calls": [{"id": "c1"}]}
        >>> complete_batches([asks, {"role": "tool", "tool_call_id": "c1"}, asks])
        [0, 1]
    """
    kept: list[int] = []
    begin = 0
    while begin < len(messages):
        open_call_ids = {call.get("id") for call in messages[begin].get("tool_calls") or ()}
        end = begin + 1
        while end < len(messages) and messages[end].get("role") == "tool":
            if messages[end].get("tool_call_id") not in open_call_ids:
                break
            open_call_ids.remove(messages[end].get("tool_call_id"))
            end += 1
        if not open_call_ids and messages[begin].get("role") != "tool":
            kept += range(begin, end)
        begin = end
    return kept


def find_choice(resolve: Resolve, key: str) -> str | None:
    """Return the side that was chosen for a key; None if none was.

    Example:
        >>> find_choice({"note": "ours"}, "note"), find_choice({"note": "ours"}, "cart"), find_choice("theirs", "cart")
        ('ours', None, 'theirs')
    """
    side = resolve.get(key, resolve.get("*")) if isinstance(resolve, Mapping) else resolve
    if side in (OURS, THEIRS, None):
        return side
    raise InvalidInput(f"resolve must be 'ours', 'theirs', or a mapping from keys to these, not {resolve!r}.")
