"""Conversations in turns, and the Markdown of messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agentgit.checkpoints import Checkpoint
from agentgit.effects import ToolInvocation
from agentgit.web.pages.rendering import is_link, markdown
from agentgit.web.pages.turns import Said, images_of, turns_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def point(number: int, kind: str, messages: int, position: int = 0) -> Checkpoint:
    facts = {"kind": kind, "message_count": messages, "tool_track_position": position, "reference": f"main#{number}"}
    return Checkpoint(id=number, created_at=START + timedelta(seconds=number), metadata=facts)


def call(number: int, status: str = "done", call_id: str | None = "c1") -> ToolInvocation:
    return ToolInvocation(
        id=number, internal_session_id=1, position=number, tool_name="pay", status=status, tool_call_id=call_id
    )


USER, ANSWER = {"role": "user", "content": "pay"}, {"role": "assistant", "content": "paid", "tool_calls": []}
ASK = {
    "role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "pay", "args": {"euros": 5}}],
    "usage_metadata": {"input_tokens": 10, "output_tokens": 2},
}  # fmt: skip
RESULT = {"role": "tool", "content": "ok", "tool_call_id": "c1", "tool_calls": []}


def test_a_turn_folds_its_checkpoints_and_its_tool_results():
    points = [point(1, "before", 0), point(2, "tools", 3, 1), point(4, "after", 4, 1), point(5, "named", 4, 1)]
    [turn] = turns_of(points, [USER, ASK, RESULT, ANSWER], [call(0)])
    assert [entry.text if isinstance(entry, Said) else entry.id for entry in turn.entries] == ["pay", "", "paid", 5]
    [card] = turn.entries[1].cards
    assert (card.name, card.args, card.result, card.outcome) == ("pay", {"euros": 5}, "ok", ("done", "good"))
    assert (turn.tokens, turn.seconds, turn.before.id, turn.after.id) == (12, 3.0, 1, 4)


WORDS = {
    "intended": "running",
    "done": "kept",
    "failed": "failed",
    "unknown": "unknown",
    "reversed": "undone",
    "reverse_failed": "could not be undone",
    "reverse_unknown": "undo unknown",
}
"""What the card of a call says if a rollback kept it, by the status of the call."""


def test_a_card_says_what_became_of_its_call():
    for status, word in WORDS.items():
        [turn] = turns_of([point(1, "before", 0)], [USER, ASK], [call(7, status)], kept={7})
        assert turn.entries[1].cards[0].outcome[0] == word


def test_each_turn_gets_its_own_call_of_a_repeated_id():
    points = [point(1, "before", 0), point(2, "after", 4, 1), point(3, "before", 4, 1), point(4, "after", 8, 2)]
    turns = turns_of(points, [USER, ASK, RESULT, ANSWER] * 2, [call(0, "reversed"), call(1)])
    assert [turn.entries[1].cards[0].outcome[0] for turn in turns] == ["undone", "done"]


def test_a_call_that_no_message_asked_for_has_a_card():
    """The calls of nodes without messages are shown at the end of their turn."""
    [turn] = turns_of([point(1, "before", 0)], [USER], [call(0, call_id=None)])
    assert [card.name for card in turn.loose] == ["pay"]


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "image", "base64": "aGk=", "mime_type": "image/png"}, [None]),
        ({"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,aGk="}}, [None]),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "aGk="}}, [None]),
        ({"type": "image_url", "image_url": {"url": "DATA:image/png;base64,aGk="}}, [None]),
        ({"type": "image_url", "image_url": "https://a.example/b.png"}, ["https://a.example/b.png"]),
        ({"type": "image", "base64": "aGk=", "mime_type": "image/svg+xml"}, []),
        ({"type": "image_url", "image_url": None}, []),
        ({"type": "image", "base64": 7, "mime_type": None}, []),
        ("text", []),
        (None, []),
    ],
)
def test_images_of_each_provider_are_found(block, shown):
    """The images of each provider's blocks are shown; SVG, which can contain scripts, and broken blocks are not."""
    assert [image.url for image in images_of({"content": [block]})] == shown


@pytest.mark.parametrize(
    "text",
    [
        "<script>x</script>",
        "<img src=x onerror=y>",
        "[x](javascript:alert(1))",
        "[x](/logout)",
        "[x](//evil.example)",
        "[x](data:text/html,x)",
        "[x](JavaScript:alert(1)) ![y](/users)",
        "![x](https://evil.example/x.png)",
        "![x](javascript:x)",
        "<javascript:x>",
        "&#x202e;x \u202ex",
        "# heading",
        "\ud800",
    ],
)
def test_markdown_runs_and_loads_nothing(text):
    """No Markdown makes a script, an image, a heading, a local link or a character that reverses text."""
    html = str(markdown(text))
    assert not any(
        part in html for part in ("<script", "<img", "<h1", 'href="/', 'href="j', 'href="J', 'href="d', "\u202e")
    )
    html.encode()


def test_markdown_is_rendered():
    html = markdown("- **a**\n\n```\nx < 1\n```\n\n|a|\n|-|\n|1|\n\n[b](https://b.example)")
    for part in (
        "<li><strong>a</strong></li>",
        "<code>x &lt; 1",
        "<table>",
        '<a href="https://b.example" rel="noopener',
    ):
        assert part in html


@pytest.mark.parametrize(
    "text",
    [
        "[a]: https://" + "x" * 9_000 + "\n" + "[a]" * 3_000,
        "|" + "a|" * 2_000 + "\n|" + "-|" * 2_000 + "\n" + "|b\n" * 2_000,
        ">" * 5_000 + "a",
        "![a](https://a.example/b.png)" * 500,
    ],
    ids=["references", "table", "quotes", "images"],
)
def test_a_message_cannot_swell_a_page(text):
    assert len(markdown(text)) <= 30 * len(text)


@pytest.mark.parametrize("address", ["javascript:alert(1)", "JavaScript:x", "/users", "data:text/html,x", "//a.b"])
def test_an_image_links_only_to_web_and_mail_addresses(address):
    assert not is_link(address)
