"""HTML of differences and comparisons: no data becomes markup, and file lines keep their spaces."""

import pytest

from agentgit import Checkpoint, Diff, diff
from agentgit.checkpoints.comparison import Comparison
from agentgit.render.text import plain
from agentgit.render.views import diff as drawn

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\r\n</td>" + "日本" * 40


@pytest.mark.long
def test_html_of_a_diff_escapes_hostile_data():
    """A diff and a comparison render as HTML in which no data becomes markup."""
    a = Checkpoint(metadata={"reference": HOSTILE}, session_state={HOSTILE: HOSTILE})
    b = Checkpoint(conversation_history=[{"role": HOSTILE, "content": "+" + HOSTILE}])
    found = diff(a, b)
    found = Diff(**{**vars(found), "added_files": [HOSTILE], "diff_content": f"+{HOSTILE}\n-x\n" + "y\n" * 100_000})
    both = Comparison(fork=HOSTILE, left=found, right=diff(a, a), between=found)
    for value in (found, both):
        page = value._repr_html_()
        assert "<script" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
        assert value._repr_mimebundle_()["text/plain"] == str(value)
    assert "more characters" in found._repr_html_()
    assert plain(drawn.lines(both, width=60)).splitlines()[0].endswith("…")


def test_html_of_a_diff_keeps_spaces_and_line_ends():
    """HTML keeps the spaces of file lines and breaks only where a line of the diff ends."""
    content = "--- a.py\n+++ a.py\n-    return  1\n+\treturn\x0c2\u2028\r\n"
    page = drawn.page(Diff(from_id=1, to_id=2, modified_files=["a.py"], diff_content=content))
    assert '\n<span style="color:#d9484b">-    return  1</span>\n' in page
    assert "+\treturn\\x0c2\\u2028\\r</span></pre>" in page
