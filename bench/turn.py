"""The time of one turn, by the length of the conversation before it."""

from __future__ import annotations

from functools import partial

from bench.contenders import BARE, SQLITE, Bare, Contender, Ours, Sealed, Sqlite, Talk, Wrapped
from bench.graphs import CHAT, MESSAGES, TOOL, check, said
from bench.measure import Line, Subject, lines, rotated, timed
from bench.stage import Stage

LENGTH = 200
"""The number of characters in a message; short messages show a fixed cost per turn best."""

SPREAD = 0.1
"""The largest deviation from a length, as a fraction of it."""

WARM_UP = 3

NAMES = {CHAT: "user and assistant", TOOL: "with one tool call"}

NOTE = (
    f"Milliseconds of one graph.invoke (wrapped: agent.invoke); messages of {LENGTH} characters; the model and the\n"
    "tool do no work of their own. The tool is declared reversible. Each contender runs the same turn in each round."
)


def measure(stage: Stage) -> Subject:
    """Time turns of both kinds at all lengths."""
    found: list[Line] = []
    for kind in (CHAT, TOOL):
        contenders = stage.open(Bare, Sqlite, Ours, Wrapped, Sealed, name=f"turn-{kind}", length=LENGTH)
        small, *larger = stage.scale.messages
        found += _lines(kind, small, fresh(contenders, kind, stage.scale.fresh, LENGTH))
        talk = Talk(contenders, kind, LENGTH)
        for messages in larger:
            talk.grow(round(messages * (1 + SPREAD)))
            found += _lines(kind, messages, talk.around(messages, SPREAD))
    return Subject("Time of a turn", NOTE, found)


def _lines(kind: str, messages: int, times: dict[str, list[float]]) -> list[Line]:
    return lines(f"{NAMES[kind]}, {messages:,} messages", times, [SQLITE, BARE])


def fresh(contenders: list[Contender], kind: str, rounds: int, length: int) -> dict[str, list[float]]:
    """Time the second turn of new conversations, the only way to time many turns at two messages.

    Args:
        contenders: The contenders.
        kind: The kind of the turn.
        rounds: The number of rounds.
        length: The number of characters in a message.
    """
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(WARM_UP + rounds):
        for contender in rotated(contenders, number):
            say = contender.conversation()
            say(said(CHAT, number, length))
            took, messages = timed(partial(say, said(kind, number, length)))
            check(messages, MESSAGES[CHAT] + MESSAGES[kind])
            times[contender.name].append(took)
    return {name: found[WARM_UP:] for name, found in times.items()}
