"""HTML of conversations, calls and differences: large values stay small, and file lines keep their spaces."""

from agentgit import Diff, ToolInvocation
from agentgit.effects.invocation import ToolTrack
from agentgit.render.views import conversation, diff
from agentgit.sessions.messages import History


def test_a_long_message_is_folded_and_a_long_list_is_cut():
    many = History([{"role": "user", "content": "word " * 10_000}] * 1_000)
    assert many._repr_html_().count("<details>") == conversation.LATEST
    assert "980 earlier messages not shown" in many._repr_html_()
    assert len(many._repr_html_()) < 500_000
    track = ToolTrack([ToolInvocation(id=n, internal_session_id=1, position=n, tool_name="t") for n in range(1_000)])
    assert "800 earlier calls not shown" in track._repr_html_()
    assert "<p>no tool calls yet</p>" in ToolTrack()._repr_html_()


def test_html_of_a_diff_keeps_spaces_and_line_ends():
    """HTML keeps the spaces of file lines, breaks only where a line of the diff ends, and is cut."""
    content = "--- a.py\n+++ a.py\n-    return  1\n+\treturn\x0c2\u2028\r\n"
    page = diff.page(Diff(from_id=1, to_id=2, modified_files=["a.py"], diff_content=content))
    assert '\n<span style="color:#d9484b">-    return  1</span>\n' in page
    assert "+\treturn\\x0c2\\u2028\\r</span></pre>" in page
    long = Diff(from_id=1, to_id=2, modified_files=["a.py"], diff_content=content + "y\n" * 100_000)
    assert "more characters" in diff.page(long)
