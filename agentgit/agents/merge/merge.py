"""The content of a merge or a cherry-pick: decided by hashes, then written through the graph's own channels."""

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
    MergePlan,
    Resolve,
    Taken,
    added,
    choice,
    decide,
    extra,
    whole,
)
from agentgit.errors import InvalidInput
from agentgit.sessions.messages import from_stored, text_of

REDUCED = (BinaryOperatorAggregate, DeltaChannel)
"""Channels whose writes go through a reducer."""

FREE = (LastValue, AnyValue)
"""Channels that take a write as it is."""


@dataclass
class IncomingChanges:
    """The changes that one side receives from others.

    Args:
        ours: The side that receives them.
        plan: The plan that people see.
        common: Identifies the first messages of ours, which are not new to it.
        updates: For each channel a function that returns the value to write; it is called only for the actual write.
    """

    ours: Side
    plan: MergePlan
    common: Sequence[bytes] = ()
    updates: dict[str, Callable[[], Any]] = field(default_factory=dict)

    @functools.cached_property
    def here(self) -> Mapping[str, Mapping[str, Any]]:
        """The messages that are here behind the common ones, shown, by their ids."""
        hashes = self.ours.message_hashes
        pairs = enumerate(zip(hashes, self.common, strict=False))
        begin = next((n for n, (a, b) in pairs if a != b), min(len(hashes), len(self.common)))
        shown = self.ours.messages(range(begin, len(hashes)))
        return {message["id"]: message for message in shown if message["id"]}

    def set(self, key: str, value: Callable[[], Any]) -> None:
        """Let a value take the place of what is here, past its reducer."""
        reduced = isinstance(self.ours.graph.channels.get(key), REDUCED)
        self.updates[key] = (lambda: Overwrite(value())) if reduced else value

    def adds(self, key: str, more: Any) -> bool:
        """Return whether the reducer of a list or a dict puts `more` to what is here, and does nothing else."""
        here = self.ours.live(key)
        try:
            made = self.ours.after(key, more)
        except Exception:  # noqa: BLE001  # it is the user's: what it does not take, a person decides about
            return False
        return bool(made == ({**here, **more} if isinstance(here, dict) else [*here, *more]))

    def append(self, key: str, tail: Callable[[], Any]) -> None:
        """Let items come to those that are here, through the reducer if there is one."""
        reduced = isinstance(self.ours.graph.channels.get(key), REDUCED)
        self.updates[key] = tail if reduced else lambda: [*(self.ours.live(key) or ()), *tail()]

    def bring(self, key: str, side: Side, places: Sequence[int]) -> None:
        """Let messages come, unless they are here already; tool calls only with their results.

        Args:
            key: The channel that is the conversation.
            side: The side that they come from.
            places: The places that they have there.
        """
        shown = side.messages(places)
        known = {message["tool_call_id"] for message in shown if message["id"] in self.here} - {None}
        # Of a batch of which some calls were picked before, the others come.
        rests = [(at, rest_of(message, known)) for at, message in zip(places, shown, strict=True)]
        fresh = [(at, message) for at, message in rests if message is not None and message["id"] not in self.here]
        kept, left = whole([message for _, message in fresh])
        self.plan.left_out.extend(LeftOut(what=in_words(fresh[n][1]), why=why) for n, why in left.items())
        if kept:
            chosen = [fresh[n] for n in kept]
            self.plan.messages.extend(message for _, message in chosen)
            self.append(key, lambda: [narrowed(side.live(key)[at], message) for at, message in chosen])


@dataclass
class Merge:
    """A merge in the making.

    Args:
        bases: Where the branches parted, or were last merged; if there are several, what they do not agree about is a
            conflict.
        theirs: The side that comes.
        coming: The changes that were found to come; it is filled.
        resolve: The resolution of conflicts.
    """

    bases: Sequence[Side]
    theirs: Side
    coming: IncomingChanges
    resolve: Resolve = None

    def make(self) -> IncomingChanges:
        """Decide about each value."""
        ours, theirs = self.coming.ours, self.theirs
        talk = theirs.conversation if ours.conversation in (None, theirs.conversation) else None
        for key in theirs.hashes:
            verdict = self._verdict(key)
            if verdict == KEEP:
                continue
            if why := self._closed(key):
                self.coming.plan.left_out.append(LeftOut(what=key, why=why))
            elif key == talk:
                self._talk(key, verdict)
            else:
                self._value(key, verdict)
        return self.coming

    def _verdict(self, key: str) -> str:
        """Decide about a value."""
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
        self.coming.plan.values.append(Taken(key=key, how=how, value=self.theirs.shown(key)))
        self.coming.set(key, lambda: self.theirs.live(key))

    def _append(self, key: str) -> bool:
        """Add what they added to a list or a dict, if both only added to it and its reducer does nothing else."""
        if not isinstance(self.coming.ours.graph.channels[key], REDUCED):
            return False
        ours, theirs, live = self.coming.ours.shown(key), self.theirs.shown(key), self.theirs.live(key)
        more, *others = {extra(base.shown(key), ours, theirs) for base in self.bases}
        if more is None or others or not (type(live) is list or (type(live) is dict and theirs.keys() == live.keys())):
            return False  # what is shown of it is not what it is
        if not self.coming.adds(key, part := more.of(live)):
            return False
        self.coming.plan.values.append(Taken(key=key, how=APPEND, value=more.of(theirs)))
        self.coming.append(key, lambda: part)
        return True

    # -- the conversation

    def _talk(self, key: str, verdict: str) -> None:
        here, there = set(self.coming.ours.message_hashes), set(self.theirs.message_hashes)
        # What both took out, as where both edited a message alike, is no change of theirs.
        base = [one for one in self._base_talk() if one in here or one in there]
        new = added(base, self.theirs.message_hashes)
        if new is not None and not self._edited(new):
            self.coming.bring(key, self.theirs, new)
        elif verdict == CLASH:
            self._clash(key)
        else:
            self._take_talk(key, TAKE)

    def _base_talk(self) -> list[bytes]:
        """Identify the messages that any base has, each as often as the one that has it most."""
        most: Counter[bytes] = Counter()
        for base in self.bases:
            most |= Counter(base.message_hashes)
        return list(most.elements())

    def _edited(self, new: Sequence[int]) -> bool:
        """Return whether one of their new messages is here with other words."""
        here = self.coming.here
        return any(message != here.get(message["id"], message) for message in self.theirs.messages(new))

    def _take_talk(self, key: str, how: str) -> None:
        """Let their whole conversation take the place of ours, without a batch that has no results."""
        shown = self.theirs.messages()
        kept, left = whole(shown)
        self.coming.plan.left_out.extend(LeftOut(what=in_words(shown[n]), why=why) for n, why in left.items())
        self.coming.plan.values.append(Taken(key=key, how=how, value=[in_words(shown[n]) for n in kept]))
        self.coming.set(key, lambda: [self.theirs.live(key)[n] for n in kept])

    # -- conflicts

    def _clash(self, key: str) -> None:
        said = choice(self.resolve, key)
        talk = key == self.theirs.conversation
        if said is None:
            self.coming.plan.conflicts.append(self._conflict(key, Side.messages if talk else lambda s: s.shown(key)))
        elif said == OURS:
            self.coming.plan.values.append(Taken(key=key, how=OURS))
        elif said == THEIRS:
            self._take_talk(key, THEIRS) if talk else self._take(key, THEIRS)
        elif callable(said):
            self.coming.plan.values.append(Taken(key=key, how=RESOLVED))
            self.coming.set(key, lambda: self._asked(key, said, talk))

    def _conflict(self, key: str, value: Callable[[Side], Any]) -> Clash:
        return Clash(key=key, base=value(self.bases[0]), ours=value(self.coming.ours), theirs=value(self.theirs))

    def _asked(self, key: str, ask: Callable[[Clash], Any], talk: bool) -> Any:
        """Ask a function for a value.

        Raises:
            InvalidInput: It gives a conversation that no provider takes.
        """
        value = ask(self._conflict(key, lambda side: side.live(key)))
        if talk:
            require_whole_talk(key, value)
        return value


def require_whole_talk(key: str, value: Any) -> None:
    """Check that a value is a conversation in which each tool call has its result.

    Raises:
        InvalidInput: It is not.
    """
    if not isinstance(value, list) or not all(isinstance(message, BaseMessage) for message in value):
        raise InvalidInput(f"resolve for {key!r} must return a list of messages.")
    _, left = whole([from_stored(message) for message in messages_to_dict(value)])
    if left:
        place, why = next(iter(left.items()))
        raise InvalidInput(f"resolve for {key!r} returned a conversation that models reject. Message {place}: {why}.")


def in_words(message: Mapping[str, Any]) -> str:
    """Summarize a message in a few words."""
    calls = ", ".join(f"{call.get('name')}()" for call in message.get("tool_calls") or ())
    text = " ".join(part for part in (text_of(message), calls and f"-> {calls}") if part)
    return f"{message.get('role')}: {text if len(text) <= 80 else text[:79] + '…'}"


def rest_of(message: dict[str, Any], known: Container[str]) -> dict[str, Any] | None:
    """Return a shown message without those of its tool calls whose results are known; None if nothing is left of it."""
    ids = [call["id"] for call in message["tool_calls"]]
    others = [id for id in ids if id not in known]
    if len(others) == len(ids):
        return message
    return alone(message, others) if others else None


def alone(message: Mapping[str, Any], call_ids: Sequence[str]) -> dict[str, Any]:
    """Show a message that asks only for some of its tool calls; under the same id as often as it is made."""
    calls = [call for call in message["tool_calls"] if call["id"] in call_ids]
    return {
        **message,
        "id": f"{message['id'] or ''}/{'+'.join(call_ids)}",
        "content": text_of(message),
        "tool_calls": calls[: len(call_ids)],
    }


def narrowed(message: BaseMessage, shown: Mapping[str, Any]) -> BaseMessage:
    """Return a message as it is shown: if that asks only for some of its tool calls, a new one with these.

    Args:
        message: Stays as it is.
        shown: Itself, or as `alone` gave it.
    """
    if message.id == shown["id"] or not isinstance(message, AIMessage):
        return message
    ids = [call["id"] for call in shown["tool_calls"]]
    calls = [call for call in message.tool_calls if call["id"] in ids][: len(ids)]
    # What else is in it (raw blocks, token counts) is of all its calls.
    return AIMessage(str(message.text), id=shown["id"], name=message.name, tool_calls=calls)


def counted(plan: MergePlan) -> dict[str, Any]:
    """Return what a checkpoint keeps of the plan that it was made by."""
    values = {one.key: one.how for one in plan.values}
    return {"source": plan.source, "base": plan.base, "values": values, "messages": len(plan.messages)}
