"""Comparison of what a model is asked with what was recorded, by content: ids and times are left out."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentgit.agents.model_calls import sent_options

LONG_TEXT = 4_000
"""The length from which on a text without spaces, such as an image, is shown as its length and hash."""

LEFT_OUT_OF_SCHEMAS = ("title", "strict", "additionalProperties")
"""The keys of a schema that providers of models add or remove."""

LEFT_OUT_OF_BLOCKS = ("id", "index", "tool_use_id", "call_id")
"""The keys of a block of content that hold ids."""

MEDIA = ("image", "image_url", "audio", "input_audio", "file", "video")
"""The types of blocks with data or an address of data."""

MEDIA_DATA = ("base64", "data", "url", "image_url", "file_data", "file_id", "file_uri")
"""The keys of such a block that hold them."""

STRUCTURED = "agentgit_structured_output"
"""The parameter that marks a call of `RecordedModel.with_structured_output`, because models ask in different ways."""


class Difference(NamedTuple):
    """The first place in which two prompts differ."""

    part: str
    name: str
    diff: str


class MessageContent(NamedTuple):
    """The content of a message, to compare it with another one."""

    digest: bytes
    call_ids: tuple[str | None, ...]
    answers: str | None

    @classmethod
    def of(cls, message: BaseMessage) -> MessageContent:
        text = _describe(message, {})
        call_ids = tuple(call.get("id") for call in getattr(message, "tool_calls", ()))
        return cls(
            sha256(text.encode(errors="surrogatepass")).digest(), call_ids, getattr(message, "tool_call_id", None)
        )


@dataclass(frozen=True)
class Prompt:
    """The content of what a model is asked."""

    system: Sequence[str]
    messages: Sequence[str]
    options: Mapping[str, Any] | None = field(default=None)

    @classmethod
    def of(cls, messages: Sequence[BaseMessage], options: Mapping[str, Any] | None) -> Prompt:
        texts = describe_messages(messages)
        count = next((n for n, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
        return cls(texts[:count], texts[count:], options)

    def difference(self, now: Prompt) -> Difference | None:
        """Return the first difference to the prompt of now; None if they are equal."""
        if self.system != now.system:
            return Difference("system prompt", "", unified_diff("\n".join(self.system), "\n".join(now.system)))
        if self.options is not None and now.options is not None:
            found = different_option(self.options, now.options)
            if found is not None:
                return found
        return _different_message(self.messages, now.messages)


def unified_diff(recorded: str, now: str) -> str:
    """Return a unified diff of two texts.

    Example:
        >>> print(unified_diff("Be brief.", "Be kind."))
        --- recorded
        +++ now
        @@ -1 +1 @@
        -Be brief.
        +Be kind.
    """
    lines = difflib.unified_diff(recorded.splitlines(), now.splitlines(), "recorded", "now", lineterm="")
    return "\n".join(lines)


def describe_messages(messages: Iterable[BaseMessage]) -> list[str]:
    """Return the content of messages as text, without ids and times.

    The answer to a tool call names the call by its place in the conversation.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> describe_messages([HumanMessage("hi", id="1"), AIMessage("hello")])
        ['user: hi', 'assistant: hello']
    """
    call_numbers: dict[str, int] = {}
    return [_describe(message, call_numbers) for message in messages]


_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


def _describe(message: BaseMessage, call_numbers: dict[str, int]) -> str:
    kind = message.type.removesuffix("MessageChunk").lower()
    role = _ROLES.get(kind, getattr(message, "role", kind))
    lines = []
    for call in [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]:
        if call.get("id"):
            call_numbers[call["id"]] = len(call_numbers) + 1
        lines.append(f"calls {call.get('name')} {_as_text(call.get('args'))}")
    heading = f"{role} {message.name}" if message.name else role
    if kind == "tool":
        number = call_numbers.get(getattr(message, "tool_call_id", ""))
        heading += f" (call {number})" if number is not None else ""
        heading += " (error)" if getattr(message, "status", None) == "error" else ""
    return "\n".join([f"{heading}: {_describe_content(message.content)}".rstrip(), *lines])


def _describe_content(content: Any) -> str:
    if isinstance(content, str):
        return _shortened(content)
    return "\n".join(_describe_block(block) for block in content)


def _describe_block(block: Any) -> str:
    if not isinstance(block, dict):
        return _shortened(str(block))
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return _shortened(block["text"])
    if block.get("type") in MEDIA:  # providers and LangChain write the same data in different ways
        data = max(_media(block), key=len, default="").rpartition(";base64,")[2]
        return f"<data: {len(data)} characters, {sha256(data.encode()).hexdigest()[:12]}>"
    return _as_text({name: part for name, part in block.items() if name not in LEFT_OUT_OF_BLOCKS})


def _media(block: dict[str, Any]) -> Iterator[str]:
    for name, part in block.items():
        if isinstance(part, dict):
            yield from _media(part)
        elif isinstance(part, str) and name in MEDIA_DATA:
            yield part


def _shortened(text: str) -> str:
    if len(text) < LONG_TEXT or any(character.isspace() for character in text[:LONG_TEXT]):
        return text
    return f"<{len(text)} characters, {sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}>"


def _as_text(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str)


def _different_message(recorded: Sequence[str], now: Sequence[str]) -> Difference | None:
    if recorded == now:
        return None
    index = next((n for n, (old, new) in enumerate(zip(recorded, now, strict=False)) if old != new), None)
    if index is None:
        index = min(len(recorded), len(now))
        old, new = "\n".join(recorded[index : index + 1]), "\n".join(now[index : index + 1])
        return Difference("message", str(index + 1), unified_diff(old, new))
    if sorted(recorded) == sorted(now):
        return Difference("message order", str(index + 1), unified_diff("\n".join(recorded), "\n".join(now)))
    return Difference("message", str(index + 1), unified_diff(recorded[index], now[index]))


# -- tools and output formats


def comparable_options(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call in one form for all providers."""
    options = sent_options(params)
    tools = [_comparable_tool(tool) for tool in options.get("tools", ())]
    output = _output_schema(options.get("response_format"))
    return {
        "tools": dict(tools),
        "tool_choice": _comparable_choice(options.get("tool_choice")),
        "output": output,
        "is_structured": bool(params.get(STRUCTURED)),
    }


def _comparable_tool(tool: Any) -> tuple[str, Any]:
    if not isinstance(tool, dict):
        return str(tool), tool
    try:
        function = convert_to_openai_tool(tool)["function"]
        description, schema = function.get("description", ""), function.get("parameters", {})
        return function["name"], {"description": description, "parameters": _comparable_schema(schema)}
    except (ValueError, KeyError, TypeError):
        return str(tool.get("name") or tool.get("type")), tool


def _comparable_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_comparable_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        # A property may have the name of such a key.
        name: _comparable_schema(item)
        for name, item in schema.items()
        if name not in LEFT_OUT_OF_SCHEMAS or isinstance(item, dict)
    }


def _output_schema(response_format: Any) -> Any:
    if not isinstance(response_format, dict):
        return response_format
    inner = response_format.get("json_schema", response_format)
    return _comparable_schema(inner.get("schema", inner) if isinstance(inner, dict) else inner)


def _comparable_choice(choice: Any) -> str:
    if isinstance(choice, dict):
        named = choice.get("function", choice)
        choice = named.get("name") or choice.get("type") if isinstance(named, dict) else named
    text = str(choice) if choice is not None else "auto"
    return "any" if text in ("required", "True", "any") else text


def different_option(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Difference | None:
    """Return the first difference between the options of two calls, as `comparable_options` returns them."""
    if now["is_structured"]:  # providers ask for such an output by a tool or by a response format
        old, new = _asked_schema(recorded), _asked_schema(now)
        return Difference("response format", "", unified_diff(_as_text(old), _as_text(new))) if old != new else None
    for name in dict.fromkeys([*recorded["tools"], *now["tools"]]):
        old, new = recorded["tools"].get(name), now["tools"].get(name)
        if old != new:
            texts = ("" if tool is None else _as_text(tool) for tool in (old, new))
            return Difference("tool", name, unified_diff(*texts))
    if recorded["tool_choice"] != now["tool_choice"]:
        return Difference("tool choice", "", unified_diff(recorded["tool_choice"], now["tool_choice"]))
    if recorded["output"] != now["output"]:
        return Difference("response format", "", unified_diff(_as_text(recorded["output"]), _as_text(now["output"])))
    return None


def _asked_schema(options: Mapping[str, Any]) -> Any:
    tools = (tool.get("parameters") for tool in options["tools"].values() if isinstance(tool, dict))
    schema = options["output"] if options["output"] is not None else next(tools, None)
    if not isinstance(schema, dict):
        return schema
    return {name: part for name, part in schema.items() if name != "description"}  # a tool has it beside its schema
