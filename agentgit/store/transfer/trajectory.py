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
    """Return the steps of one branch, from the root of its session."""
    calls_by_id: dict[str, list[ToolInvocation]] = defaultdict(list)
    for call in calls:
        if call.tool_call_id is not None:
            calls_by_id[call.tool_call_id].append(call)
    actions = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    start = 0
    for number, action_index in enumerate(actions):
        next_index = actions[number + 1] if number + 1 < len(actions) else len(messages)
        is_last = number + 1 == len(actions)
        reward, label = _find_reward_and_label(points, action_index, next_index)
        yield {
            "step": number,
            "state": _state(points, action_index),
            "observation": [dict(message) for message in messages[start:action_index]],
            "action": {name: messages[action_index].get(name) for name in ("id", "content", "tool_calls")},
            "results": [
                _result(call, calls_by_id, messages[action_index + 1 : next_index])
                for call in messages[action_index].get("tool_calls") or []
            ],
            "reward": score if reward is None and is_last else reward,
            "label": label,
            "done": is_last,
        }
        start = action_index + 1


def _state(points: Sequence[Checkpoint], message_count: int) -> dict[str, Any]:
    """Return the state before a step: the number of messages, and the newest checkpoint up to there."""
    earlier_points = [point for point in points if point.metadata["message_count"] <= message_count]
    metadata = earlier_points[-1].metadata if earlier_points else {}
    return {
        "messages": message_count,
        "checkpoint": metadata.get("reference"),
        "state_hash": metadata.get("state_hash") or None,
    }


def _find_reward_and_label(points: Sequence[Checkpoint], action_index: int, next_index: int) -> tuple[Any, Any]:
    """Return the reward and the label of a step, from the checkpoints between it and the next step."""
    reward, label = None, None
    for point in points:
        if action_index < point.metadata["message_count"] <= next_index:
            data = point.metadata.get("data")
            values = data if isinstance(data, dict) else {}
            reward = values.get("reward", reward)
            label = values.get("label", point.checkpoint_name or label)
    return reward, label


def _result(
    tool_call: Mapping[str, Any], calls_by_id: dict[str, list[ToolInvocation]], messages: Sequence[Message]
) -> dict[str, Any]:
    """Return the result of one tool call: the recorded one, else the one in the conversation."""
    recorded_calls = calls_by_id.get(tool_call["id"]) or []
    call = recorded_calls.pop(0) if recorded_calls else None
    content = next((message["content"] for message in messages if message.get("tool_call_id") == tool_call["id"]), None)
    return {
        "tool_call_id": tool_call["id"],
        "tool": tool_call["name"],
        "status": call.status if call is not None else None,
        "effect": call.effect if call is not None else None,
        "result": call.result if call is not None else content,
        "error": call.error_message if call is not None else None,
    }
