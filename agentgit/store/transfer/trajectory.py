"""Trajectories: the observation, action, results and reward of each step of an agent; one step for each AI message.

Rewards and labels come from checkpoints and explorations: `data={"reward": ..., "label": ...}` of a checkpoint, the
name of a checkpoint as a label, and the score of an exploration as the reward of the last step of its branch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.effects import ToolInvocation

Message = Mapping[str, Any]


def steps(
    messages: Sequence[Message], calls: Iterable[ToolInvocation], points: Sequence[Checkpoint], score: Any = None
) -> Iterator[dict[str, Any]]:
    """Return the steps of one branch, from the root of its session.

    Args:
        messages: The conversation, as `history()` returns it.
        calls: The tool track.
        points: The checkpoints on the path to the branch's head, oldest first.
        score: The score that an exploration gave the branch.

    Example:
        >>> said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello", "tool_calls": []}]
        >>> [step] = steps(said, [], [])
        >>> step["observation"][0]["content"], step["action"]["content"], step["done"]
        ('hi', 'hello', True)
    """
    made: dict[str, list[ToolInvocation]] = defaultdict(list)
    for call in calls:
        if call.tool_call_id is not None:
            made[call.tool_call_id].append(call)
    actions = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    begin = 0
    for number, at in enumerate(actions):
        after = actions[number + 1] if number + 1 < len(actions) else len(messages)
        is_last = number + 1 == len(actions)
        reward, label = _judged(points, at, after)
        yield {
            "step": number,
            "state": _state(points, at),
            "observation": [dict(message) for message in messages[begin:at]],
            "action": {name: messages[at].get(name) for name in ("id", "content", "tool_calls")},
            "results": [_result(call, made, messages[at + 1 : after]) for call in messages[at].get("tool_calls") or []],
            "reward": score if reward is None and is_last else reward,
            "label": label,
            "done": is_last,
        }
        begin = at + 1


def _state(points: Sequence[Checkpoint], at: int) -> dict[str, Any]:
    """Return the state before a step: the number of messages, and the newest checkpoint up to there."""
    before = [point for point in points if point.metadata["message_count"] <= at]
    found = before[-1].metadata if before else {}
    return {"messages": at, "checkpoint": found.get("reference"), "state_hash": found.get("state_hash") or None}


def _judged(points: Sequence[Checkpoint], at: int, after: int) -> tuple[Any, Any]:
    """Return the reward and the label of a step, from the checkpoints between it and the next step."""
    reward, label = None, None
    for point in points:
        if at < point.metadata["message_count"] <= after:
            data = point.metadata.get("data")
            facts = data if isinstance(data, dict) else {}
            reward = facts.get("reward", reward)
            label = facts.get("label", point.checkpoint_name or label)
    return reward, label


def _result(
    asked: Mapping[str, Any], made: dict[str, list[ToolInvocation]], answers: Sequence[Message]
) -> dict[str, Any]:
    """Return the result of one tool call: the recorded one, else the one in the conversation."""
    recorded = made.get(asked["id"]) or []
    call = recorded.pop(0) if recorded else None
    told = next((message["content"] for message in answers if message.get("tool_call_id") == asked["id"]), None)
    return {
        "tool_call_id": asked["id"],
        "tool": asked["name"],
        "status": call.status if call is not None else None,
        "effect": call.effect if call is not None else None,
        "result": call.result if call is not None else told,
        "error": call.error_message if call is not None else None,
    }
