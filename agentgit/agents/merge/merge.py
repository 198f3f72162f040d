"""The content of a merge or a cherry-pick: decided by hashes, then written through the graph's channels."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, messages_to_dict
from langgraph.channels import AnyValue, BinaryOperatorAggregate, DeltaChannel, LastValue
from langgraph.types import Overwrite

from agentgit.agents.merge.side import Side
from agentgit.checkpoints.merge import (
    APPEND,
    CLASH,
    KEEP,
    OURS,
    RESOLVED,
    TAKE,
    THEIRS,
    Clash,
    LeftOut,
    MergedValue,
    MergePlan,
    Resolve,
    added_positions,
    decide,
    drop_incomplete_batches,
    find_additions,
    find_choice,
)
from agentgit.errors import InvalidInput
from agentgit.sessions.messages import from_stored, text_of

REDUCED_CHANNELS = (BinaryOperatorAggregate, DeltaChannel)
"""Channels whose writes go through a reducer."""

PLAIN_CHANNELS = (LastValue, AnyValue)
"""Channels that store a write unchanged."""


@dataclass
class IncomingChanges:
    """The changes that one side receives from others."""

    ours: Side
    plan: MergePlan
    common: Sequence[bytes] = ()
    updates: dict[str, Callable[[], Any]] = field(default_factory=dict)

    @functools.cached_property
    def our_messages(self) -> Mapping[str, Mapping[str, Any]]:
        """The messages of `ours` after the common ones, as shown, by id."""
        hashes = self.ours.message_hashes
        pairs = enumerate(zip(hashes, self.common, strict=False))
        begin = next((n for n, (a, b) in pairs if a != b), min(len(hashes), len(self.common)))
        shown = self.ours.messages(range(begin, len(hashes)))
        return {message["id"]: message for message in shown if message["id"]}

    def replace_value(self, key: str, value: Callable[[], Any]) -> None:
        """Replace a value, bypassing its reducer."""
        has_reducer = isinstance(self.ours.graph.channels.get(key), REDUCED_CHANNELS)
        self.updates[key] = (lambda: Overwrite(value())) if has_reducer else value

    def is_pure_addition(self, key: str, additions: Any) -> bool:
        """Return whether the reducer of a list or a dict only adds `additions` to the current value."""
        current = self.ours.live_value(key)
        try:
            result = self.ours.value_after(key, additions)
        except Exception:  # noqa: BLE001  # a user's reducer may raise; then the user decides
            return False
        return bool(result == ({**current, **additions} if isinstance(current, dict) else [*current, *additions]))

    def append(self, key: str, new_items: Callable[[], Any]) -> None:
        """Append items to a value, through its reducer if it has one."""
        has_reducer = isinstance(self.ours.graph.channels.get(key), REDUCED_CHANNELS)
        self.updates[key] = new_items if has_reducer else lambda: [*(self.ours.live_value(key) or ()), *new_items()]

    def add_messages(self, key: str, side: Side, positions: Sequence[int]) -> None:
        """Append messages that are not here yet; tool calls only together with their results."""
        shown = side.messages(positions)
        known_call_ids = {message["tool_call_id"] for message in shown if message["id"] in self.our_messages} - {None}
        # If some calls of a batch were picked before, only the others are added.
        candidates = [
            (at, drop_known_calls(message, known_call_ids)) for at, message in zip(positions, shown, strict=True)
        ]
        new_messages = [
            (at, message)
            for at, message in candidates
            if message is not None and message["id"] not in self.our_messages
        ]
        kept_indexes, reasons = drop_incomplete_batches([message for _, message in new_messages])
        self.plan.left_out.extend(
            LeftOut(what=summarize_message(new_messages[n][1]), why=why) for n, why in reasons.items()
        )
        if kept_indexes:
            chosen = [new_messages[n] for n in kept_indexes]
            self.plan.messages.extend(message for _, message in chosen)
            self.append(key, lambda: [keep_shown_calls(side.live_value(key)[at], message) for at, message in chosen])


@dataclass
class Merge:
    """The computation of a merge."""

    bases: Sequence[Side]
    theirs: Side
    changes: IncomingChanges
    resolve: Resolve = None

    def compute(self) -> IncomingChanges:
        """Decide about each value, and return the changes."""
        ours, theirs = self.changes.ours, self.theirs
        conversation_channel = (
            theirs.conversation_channel if ours.conversation_channel in (None, theirs.conversation_channel) else None
        )
        for key in theirs.hashes:
            decision = self._decide(key)
            if decision == KEEP:
                continue
            if reason := self._unwritable_reason(key):
                self.changes.plan.left_out.append(LeftOut(what=key, why=reason))
            elif key == conversation_channel:
                self._merge_conversation(key, decision)
            else:
                self._merge_value(key, decision)
        return self.changes

    def _decide(self, key: str) -> str:
        """Decide about one value; return `keep`, `take` or `clash`."""
        ours, theirs = self.changes.ours.hashes.get(key), self.theirs.hashes[key]
        first, *others = {decide(base.hashes.get(key), ours, theirs) for base in self.bases}
        return CLASH if others else first

    def _unwritable_reason(self, key: str) -> str | None:
        """Return why a value cannot be written; None if it can."""
        channel = self.changes.ours.graph.channels.get(key)
        if channel is None:
            return "this graph has no such value"
        if not isinstance(channel, (*REDUCED_CHANNELS, *PLAIN_CHANNELS)):
            return f"the graph keeps it in a {type(channel).__name__}, which is not merged"
        return None

    # -- values

    def _merge_value(self, key: str, decision: str) -> None:
        if decision == TAKE:
            self._take_value(key, TAKE)
        elif not self._append_value(key):
            self._handle_conflict(key)

    def _take_value(self, key: str, how: str) -> None:
        self.changes.plan.values.append(MergedValue(key=key, how=how, value=self.theirs.shown_value(key)))
        self.changes.replace_value(key, lambda: self.theirs.live_value(key))

    def _append_value(self, key: str) -> bool:
        """Append their additions to a list or a dict; return False unless both sides and the reducer only add to it."""
        if not isinstance(self.changes.ours.graph.channels[key], REDUCED_CHANNELS):
            return False
        ours, theirs, live_value = (
            self.changes.ours.shown_value(key),
            self.theirs.shown_value(key),
            self.theirs.live_value(key),
        )
        addition, *others = {find_additions(base.shown_value(key), ours, theirs) for base in self.bases}
        if (
            addition is None
            or others
            or not (type(live_value) is list or (type(live_value) is dict and theirs.keys() == live_value.keys()))
        ):
            return False  # the shown value does not represent the live one
        if not self.changes.is_pure_addition(key, new_items := addition.of(live_value)):
            return False
        self.changes.plan.values.append(MergedValue(key=key, how=APPEND, value=addition.of(theirs)))
        self.changes.append(key, lambda: new_items)
        return True

    # -- the conversation

    def _merge_conversation(self, key: str, decision: str) -> None:
        our_hashes, their_hashes = set(self.changes.ours.message_hashes), set(self.theirs.message_hashes)
        # A message that both sides removed, as when both edited it alike, does not count as their change.
        base_hashes = [
            message_hash
            for message_hash in self._base_message_hashes()
            if message_hash in our_hashes or message_hash in their_hashes
        ]
        new_positions = added_positions(base_hashes, self.theirs.message_hashes)
        if new_positions is not None and not self._has_edited_messages(new_positions):
            self.changes.add_messages(key, self.theirs, new_positions)
        elif decision == CLASH:
            self._handle_conflict(key)
        else:
            self._take_conversation(key, TAKE)

    def _base_message_hashes(self) -> list[bytes]:
        """Return the hashes of the messages of all bases, each with its highest count in any base."""
        counts: Counter[bytes] = Counter()
        for base in self.bases:
            counts |= Counter(base.message_hashes)
        return list(counts.elements())

    def _has_edited_messages(self, positions: Sequence[int]) -> bool:
        """Return whether one of their new messages exists here with other content."""
        our_messages = self.changes.our_messages
        return any(message != our_messages.get(message["id"], message) for message in self.theirs.messages(positions))

    def _take_conversation(self, key: str, how: str) -> None:
        """Replace our conversation with theirs, without batches of tool calls that lack results."""
        shown = self.theirs.messages()
        kept_indexes, reasons = drop_incomplete_batches(shown)
        self.changes.plan.left_out.extend(
            LeftOut(what=summarize_message(shown[n]), why=why) for n, why in reasons.items()
        )
        self.changes.plan.values.append(
            MergedValue(key=key, how=how, value=[summarize_message(shown[n]) for n in kept_indexes])
        )
        self.changes.replace_value(key, lambda: [self.theirs.live_value(key)[n] for n in kept_indexes])

    # -- conflicts

    def _handle_conflict(self, key: str) -> None:
        resolution = find_choice(self.resolve, key)
        is_conversation = key == self.theirs.conversation_channel
        if resolution is None:
            self.changes.plan.conflicts.append(
                self._new_clash(key, Side.messages if is_conversation else lambda s: s.shown_value(key))
            )
        elif resolution == OURS:
            self.changes.plan.values.append(MergedValue(key=key, how=OURS))
        elif resolution == THEIRS:
            self._take_conversation(key, THEIRS) if is_conversation else self._take_value(key, THEIRS)
        elif callable(resolution):
            self.changes.plan.values.append(MergedValue(key=key, how=RESOLVED))
            self.changes.replace_value(key, lambda: self._call_resolver(key, resolution, is_conversation))

    def _new_clash(self, key: str, read_value: Callable[[Side], Any]) -> Clash:
        return Clash(
            key=key, base=read_value(self.bases[0]), ours=read_value(self.changes.ours), theirs=read_value(self.theirs)
        )

    def _call_resolver(self, key: str, resolver: Callable[[Clash], Any], is_conversation: bool) -> Any:
        """Call the function that resolves a conflict, and return its value."""
        value = resolver(self._new_clash(key, lambda side: side.live_value(key)))
        if is_conversation:
            require_valid_conversation(key, value)
        return value


def require_valid_conversation(key: str, value: Any) -> None:
    """Check that a value is a list of messages in which each tool call has its result."""
    if not isinstance(value, list) or not all(isinstance(message, BaseMessage) for message in value):
        raise InvalidInput(f"resolve for {key!r} must return a list of messages.")
    _, reasons = drop_incomplete_batches([from_stored(message) for message in messages_to_dict(value)])
    if reasons:
        position, reason = next(iter(reasons.items()))
        raise InvalidInput(
            f"resolve for {key!r} returned a conversation that models reject. Message {position}: {reason}."
        )


def summarize_message(message: Mapping[str, Any]) -> str:
    """Summarize a message in a few words."""
    calls = ", ".join(f"{call.get('name')}()" for call in message.get("tool_calls") or ())
    text = " ".join(part for part in (text_of(message), calls and f"-> {calls}") if part)
    return f"{message.get('role')}: {text if len(text) <= 80 else text[:79] + '…'}"


def drop_known_calls(message: dict[str, Any], known_call_ids: Container[str]) -> dict[str, Any] | None:
    """Return a shown message without the tool calls whose results are known; None if no call is left."""
    ids = [call["id"] for call in message["tool_calls"]]
    remaining_ids = [id for id in ids if id not in known_call_ids]
    if len(remaining_ids) == len(ids):
        return message
    return select_calls(message, remaining_ids) if remaining_ids else None


def select_calls(message: Mapping[str, Any], call_ids: Sequence[str]) -> dict[str, Any]:
    """Return a shown message with only some of its tool calls, under an id that is derived from them."""
    calls = [call for call in message["tool_calls"] if call["id"] in call_ids]
    return {
        **message,
        "id": f"{message['id'] or ''}/{'+'.join(call_ids)}",
        "content": text_of(message),
        "tool_calls": calls[: len(call_ids)],
    }


def keep_shown_calls(message: BaseMessage, shown: Mapping[str, Any]) -> BaseMessage:
    """Return a message with only the tool calls of its shown form: itself, or a new message with these calls."""
    if message.id == shown["id"] or not isinstance(message, AIMessage):
        return message
    ids = [call["id"] for call in shown["tool_calls"]]
    calls = [call for call in message.tool_calls if call["id"] in ids][: len(ids)]
    # The rest of the message (raw blocks, token counts) describes all its calls, so it is dropped.
    return AIMessage(str(message.text), id=shown["id"], name=message.name, tool_calls=calls)


def plan_summary(plan: MergePlan) -> dict[str, Any]:
    """Return the summary of a plan that is stored in the data of its checkpoint."""
    values = {one.key: one.how for one in plan.values}
    return {"source": plan.source, "base": plan.base, "values": values, "messages": len(plan.messages)}
