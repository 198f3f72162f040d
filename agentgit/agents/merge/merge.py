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
    added,
    choice,
    decide,
    drop_incomplete_batches,
    extra,
)
from agentgit.errors import InvalidInput
from agentgit.sessions.messages import from_stored, text_of

REDUCED = (BinaryOperatorAggregate, DeltaChannel)
"""Channels whose writes go through a reducer."""

FREE = (LastValue, AnyValue)
"""Channels that store a write unchanged."""


@dataclass
class IncomingChanges:
    """The changes that one side receives from others.

    Args:
        ours: The side that receives them.
        plan: The plan that users see.
        common: The hashes of the messages of the merge base, with which the conversation of `ours` may begin.
        updates: For each channel, a function that returns the value to write. It is called only for the actual write.
    """

    ours: Side
    plan: MergePlan
    common: Sequence[bytes] = ()
    updates: dict[str, Callable[[], Any]] = field(default_factory=dict)

    @functools.cached_property
    def here(self) -> Mapping[str, Mapping[str, Any]]:
        """The messages of `ours` after the common ones, as shown, by id."""
        hashes = self.ours.message_hashes
        pairs = enumerate(zip(hashes, self.common, strict=False))
        begin = next((n for n, (a, b) in pairs if a != b), min(len(hashes), len(self.common)))
        shown = self.ours.messages(range(begin, len(hashes)))
        return {message["id"]: message for message in shown if message["id"]}

    def set(self, key: str, value: Callable[[], Any]) -> None:
        """Replace a value, bypassing its reducer."""
        reduced = isinstance(self.ours.graph.channels.get(key), REDUCED)
        self.updates[key] = (lambda: Overwrite(value())) if reduced else value

    def adds(self, key: str, more: Any) -> bool:
        """Return whether the reducer of a list or a dict only adds `more` to the current value."""
        here = self.ours.live(key)
        try:
            made = self.ours.after(key, more)
        except Exception:  # noqa: BLE001  # a user's reducer may raise; then the user decides
            return False
        return bool(made == ({**here, **more} if isinstance(here, dict) else [*here, *more]))

    def append(self, key: str, tail: Callable[[], Any]) -> None:
        """Append items to a value, through its reducer if it has one."""
        reduced = isinstance(self.ours.graph.channels.get(key), REDUCED)
        self.updates[key] = tail if reduced else lambda: [*(self.ours.live(key) or ()), *tail()]

    def add_messages(self, key: str, side: Side, places: Sequence[int]) -> None:
        """Append messages that are not here yet; tool calls only together with their results.

        Args:
            key: The channel of the conversation.
            side: The side that the messages come from.
            places: The positions of the messages there.
        """
        shown = side.messages(places)
        known = {message["tool_call_id"] for message in shown if message["id"] in self.here} - {None}
        # If some calls of a batch were picked before, only the others are added.
        rests = [(at, rest_of(message, known)) for at, message in zip(places, shown, strict=True)]
        fresh = [(at, message) for at, message in rests if message is not None and message["id"] not in self.here]
        kept, left = drop_incomplete_batches([message for _, message in fresh])
        self.plan.left_out.extend(LeftOut(what=in_words(fresh[n][1]), why=why) for n, why in left.items())
        if kept:
            chosen = [fresh[n] for n in kept]
            self.plan.messages.extend(message for _, message in chosen)
            self.append(key, lambda: [with_calls(side.live(key)[at], message) for at, message in chosen])


@dataclass
class Merge:
    """The computation of a merge.

    Args:
        bases: The points at which the branches diverged or were last merged. If there are several, a value about which
            they lead to different decisions is a conflict.
        theirs: The side to merge.
        coming: The changes to apply, which `make` fills.
        resolve: How to resolve conflicts.
    """

    bases: Sequence[Side]
    theirs: Side
    coming: IncomingChanges
    resolve: Resolve = None

    def make(self) -> IncomingChanges:
        """Decide about each value, and return the changes."""
        ours, theirs = self.coming.ours, self.theirs
        talk = theirs.conversation if ours.conversation in (None, theirs.conversation) else None
        for key in theirs.hashes:
            verdict = self._verdict(key)
            if verdict == KEEP:
                continue
            if why := self._closed(key):
                self.coming.plan.left_out.append(LeftOut(what=key, why=why))
            elif key == talk:
                self._merge_conversation(key, verdict)
            else:
                self._value(key, verdict)
        return self.coming

    def _verdict(self, key: str) -> str:
        """Decide about one value; return `keep`, `take` or `clash`."""
        ours, theirs = self.coming.ours.hashes.get(key), self.theirs.hashes[key]
        first, *others = {decide(base.hashes.get(key), ours, theirs) for base in self.bases}
        return CLASH if others else first

    def _closed(self, key: str) -> str | None:
        """Return why a value cannot be written; None if it can."""
        channel = self.coming.ours.graph.channels.get(key)
        if channel is None:
            return "this graph has no such value"
        if not isinstance(channel, (*REDUCED, *FREE)):
            return f"the graph keeps it in a {type(channel).__name__}, which is not merged"
        return None

    # -- values

    def _value(self, key: str, verdict: str) -> None:
        if verdict == TAKE:
            self._take(key, TAKE)
        elif not self._append(key):
            self._clash(key)

    def _take(self, key: str, how: str) -> None:
        self.coming.plan.values.append(MergedValue(key=key, how=how, value=self.theirs.shown(key)))
        self.coming.set(key, lambda: self.theirs.live(key))

    def _append(self, key: str) -> bool:
        """Append their additions to a list or a dict; return False unless both sides and the reducer only add to it."""
        if not isinstance(self.coming.ours.graph.channels[key], REDUCED):
            return False
        ours, theirs, live = self.coming.ours.shown(key), self.theirs.shown(key), self.theirs.live(key)
        more, *others = {extra(base.shown(key), ours, theirs) for base in self.bases}
        if more is None or others or not (type(live) is list or (type(live) is dict and theirs.keys() == live.keys())):
            return False  # the shown value does not represent the live one
        if not self.coming.adds(key, part := more.of(live)):
            return False
        self.coming.plan.values.append(MergedValue(key=key, how=APPEND, value=more.of(theirs)))
        self.coming.append(key, lambda: part)
        return True

    # -- the conversation

    def _merge_conversation(self, key: str, verdict: str) -> None:
        here, there = set(self.coming.ours.message_hashes), set(self.theirs.message_hashes)
        # A message that both sides removed, as when both edited it alike, does not count as their change.
        base = [one for one in self._base_talk() if one in here or one in there]
        new = added(base, self.theirs.message_hashes)
        if new is not None and not self._edited(new):
            self.coming.add_messages(key, self.theirs, new)
        elif verdict == CLASH:
            self._clash(key)
        else:
            self._take_talk(key, TAKE)

    def _base_talk(self) -> list[bytes]:
        """Return the hashes of the messages of all bases, each with its highest count in any base."""
        most: Counter[bytes] = Counter()
        for base in self.bases:
            most |= Counter(base.message_hashes)
        return list(most.elements())

    def _edited(self, new: Sequence[int]) -> bool:
        """Return whether one of their new messages exists here with other content."""
        here = self.coming.here
        return any(message != here.get(message["id"], message) for message in self.theirs.messages(new))

    def _take_talk(self, key: str, how: str) -> None:
        """Replace our conversation with theirs, without batches of tool calls that lack results."""
        shown = self.theirs.messages()
        kept, left = drop_incomplete_batches(shown)
        self.coming.plan.left_out.extend(LeftOut(what=in_words(shown[n]), why=why) for n, why in left.items())
        self.coming.plan.values.append(MergedValue(key=key, how=how, value=[in_words(shown[n]) for n in kept]))
        self.coming.set(key, lambda: [self.theirs.live(key)[n] for n in kept])

    # -- conflicts

    def _clash(self, key: str) -> None:
        said = choice(self.resolve, key)
        talk = key == self.theirs.conversation
        if said is None:
            self.coming.plan.conflicts.append(self._conflict(key, Side.messages if talk else lambda s: s.shown(key)))
        elif said == OURS:
            self.coming.plan.values.append(MergedValue(key=key, how=OURS))
        elif said == THEIRS:
            self._take_talk(key, THEIRS) if talk else self._take(key, THEIRS)
        elif callable(said):
            self.coming.plan.values.append(MergedValue(key=key, how=RESOLVED))
            self.coming.set(key, lambda: self._asked(key, said, talk))

    def _conflict(self, key: str, value: Callable[[Side], Any]) -> Clash:
        return Clash(key=key, base=value(self.bases[0]), ours=value(self.coming.ours), theirs=value(self.theirs))

    def _asked(self, key: str, ask: Callable[[Clash], Any], talk: bool) -> Any:
        """Call the function that resolves a conflict, and return its value.

        Raises:
            InvalidInput: It returns a conversation that model providers reject.
        """
        value = ask(self._conflict(key, lambda side: side.live(key)))
        if talk:
            require_whole_talk(key, value)
        return value


def require_whole_talk(key: str, value: Any) -> None:
    """Check that a value is a list of messages in which each tool call has its result.

    Raises:
        InvalidInput: It is not.
    """
    if not isinstance(value, list) or not all(isinstance(message, BaseMessage) for message in value):
        raise InvalidInput(f"resolve for {key!r} must return a list of messages.")
    _, left = drop_incomplete_batches([from_stored(message) for message in messages_to_dict(value)])
    if left:
        place, why = next(iter(left.items()))
        raise InvalidInput(f"resolve for {key!r} returned a conversation that models reject. Message {place}: {why}.")


def in_words(message: Mapping[str, Any]) -> str:
    """Summarize a message in a few words."""
    calls = ", ".join(f"{call.get('name')}()" for call in message.get("tool_calls") or ())
    text = " ".join(part for part in (text_of(message), calls and f"-> {calls}") if part)
    return f"{message.get('role')}: {text if len(text) <= 80 else text[:79] + '…'}"


def rest_of(message: dict[str, Any], known: Container[str]) -> dict[str, Any] | None:
    """Return a shown message without the tool calls whose results are known; None if no call is left."""
    ids = [call["id"] for call in message["tool_calls"]]
    others = [id for id in ids if id not in known]
    if len(others) == len(ids):
        return message
    return alone(message, others) if others else None


def alone(message: Mapping[str, Any], call_ids: Sequence[str]) -> dict[str, Any]:
    """Return a shown message with only some of its tool calls, under an id that is derived from them."""
    calls = [call for call in message["tool_calls"] if call["id"] in call_ids]
    return {
        **message,
        "id": f"{message['id'] or ''}/{'+'.join(call_ids)}",
        "content": text_of(message),
        "tool_calls": calls[: len(call_ids)],
    }


def with_calls(message: BaseMessage, shown: Mapping[str, Any]) -> BaseMessage:
    """Return a message with only the tool calls of its shown form: itself, or a new message with these calls.

    Args:
        message: The message; it is not modified.
        shown: Its shown form, perhaps reduced by `alone`.
    """
    if message.id == shown["id"] or not isinstance(message, AIMessage):
        return message
    ids = [call["id"] for call in shown["tool_calls"]]
    calls = [call for call in message.tool_calls if call["id"] in ids][: len(ids)]
    # The rest of the message (raw blocks, token counts) describes all its calls, so it is dropped.
    return AIMessage(str(message.text), id=shown["id"], name=message.name, tool_calls=calls)


def counted(plan: MergePlan) -> dict[str, Any]:
    """Return the summary of a plan that is stored in the data of its checkpoint."""
    values = {one.key: one.how for one in plan.values}
    return {"source": plan.source, "base": plan.base, "values": values, "messages": len(plan.messages)}
