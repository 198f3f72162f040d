"""HTML of conversations, calls and checkpoints: no data becomes markup, and large values stay small."""

from markup import HOSTILE, TABLE_TAGS, Page, call

from agentgit import Checkpoint, ToolInvocation
from agentgit.effects.invocation import ToolTrack
from agentgit.render import show
from agentgit.render.views import conversation
from agentgit.sessions.messages import History

SAFE = TABLE_TAGS | {"pre"}


def test_hostile_content_is_only_text_on_a_page():
    """Messages, states and calls cannot open a tag on a page or send an escape to a terminal."""
    said = History(
        [
            {
                "role": HOSTILE,
                "content": HOSTILE + "\n" + HOSTILE,
                "tool_calls": [{"name": HOSTILE, "args": {HOSTILE: 1}}],
            }
        ]
    )
    made = call(1, HOSTILE, HOSTILE, HOSTILE, item=HOSTILE)
    point = Checkpoint(
        checkpoint_name=HOSTILE, session_state={HOSTILE: HOSTILE}, conversation_history=said,
        metadata={"description": HOSTILE, "tags": [HOSTILE]}, tool_invocations=[made.to_dict()],
    )  # fmt: skip
    for drawn in (
        conversation.message_page(said),
        conversation.call_page([made]),
        show.page(point),
        ToolTrack([made])._repr_html_(),
    ):
        page = Page(drawn)
        assert page.open == []
        assert set(page.tags) <= SAFE
        assert page.attributes <= {"style"}
        assert "\u202e" not in drawn
    assert "\x1b" not in conversation.draw_messages(said)


def test_a_long_message_is_folded_and_a_long_list_is_cut():
    """The HTML of a large conversation or track stays small and says how much is missing."""
    many = History([{"role": "user", "content": "word " * 10_000}] * 1_000)
    assert many._repr_html_().count("<details>") == conversation.LATEST
    assert "980 earlier messages not shown" in many._repr_html_()
    assert len(many._repr_html_()) < 500_000
    track = ToolTrack([ToolInvocation(id=n, internal_session_id=1, position=n, tool_name="t") for n in range(1_000)])
    assert "800 earlier calls not shown" in track._repr_html_()
    assert ToolTrack()._repr_html_() == "<p>no tool calls yet</p>"
