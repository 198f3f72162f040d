"""Text that a model or a person made up can neither control a terminal nor become markup on a page."""

from datetime import UTC, datetime

import pytest
from markup import HOSTILE, TABLE_TAGS, Page, call
from session_trees import HOSTILE as WILD

from agentgit import Checkpoint, Diff, RollbackPlan, RollbackReport
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import diff
from agentgit.checkpoints.merge import MergedValue, MergePlan
from agentgit.effects.invocation import ToolTrack
from agentgit.effects.plan import KEEP, PlanStep
from agentgit.effects.report import ReportItem
from agentgit.render import show
from agentgit.render.text import plain
from agentgit.render.views import conversation, files, log, tree
from agentgit.render.views import diff as diffs
from agentgit.sessions.messages import History
from agentgit.sessions.tree import Branch, Point, Tree
from agentgit.workspace.values import FileCheckpoint, Restored, RestorePlan, Undone, WorkspaceDiff

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def tree_of(text):
    points = [Point(id=1, number=1, kind="before", title=text), Point(id=2, number=2, name=text, title=text)]
    return Tree.grow(text, [Branch(id=1, name=text, status=text, points=points)])


def messages_of(text):
    calls = [{"id": "1", "name": text, "args": args} for args in ({text: 1}, text)]
    return History([{"role": text, "content": f"{text}\n{text}", "tool_calls": calls}])


def call_of(text):
    return call(1, text, text, text, item=text, **{text: 1})


def checkpoint_of(text):
    return Checkpoint(
        id=1, checkpoint_name=text, created_at=NOON, session_state={text: text}, conversation_history=messages_of(text),
        metadata={"reference": text, "description": text, "data": text, "restore_point": text, "tags": [text]},
        tool_invocations=[call_of(text).to_dict()],
    )  # fmt: skip


def diff_of(text):
    found = diff(
        checkpoint_of(text), Checkpoint(session_state={"x": text}, conversation_history=messages_of(f"+{text}"))
    )
    return Diff(**{**vars(found), "added_files": [text], "diff_content": f"+{text}\n-x\n"})


def plan_of(text):
    steps = [PlanStep(action=KEEP, invocation=call_of(text), why=text)]
    return RollbackPlan(checkpoint_id=7, target=text, position=1, replayed=[call_of(text)], steps=steps)


def report_of(text):
    kept = [ReportItem(invocation=call_of(text), reason=text)]
    return RollbackReport(operation_id=1, status="done", checkpoint_id=1, branch=text, kept=kept)


def merge_of(text):
    values = [MergedValue(key=text, how="take", value=text * 100) for _ in range(200)]
    return MergePlan(kind="merge", source=text, into="main", values=values, messages=messages_of(text))


TEXTS = {
    "tree": lambda text: tree.draw(tree_of(text), width=80),
    "log": lambda text: log.draw_log([checkpoint_of(text)], width=100),
    "checkpoint": lambda text: show.draw_checkpoint(checkpoint_of(text), width=100),
    "messages": lambda text: conversation.draw_messages(messages_of(text)),
    "diff": lambda text: str(diff_of(text)),
    "diff at a terminal": lambda text: plain(diffs.lines(diff_of(text), width=80)),
    "plan": lambda text: str(plan_of(text)),
    "report": lambda text: str(report_of(text)),
    "merge": lambda text: str(merge_of(text)),
    "snapshots": lambda text: plain(files.snapshot_lines([FileCheckpoint(text, text, text, NOON, kind=text)])),
    "file diff": lambda text: plain(files.diff_lines(WorkspaceDiff("a", "b", (text,), (text,), (text,), f"+{text}"))),
    "restore plan": lambda text: plain(files.plan_lines(RestorePlan("a", (text,), (text,), (text,)))),
    "restore": lambda text: plain(
        files.restored_lines(Restored("a", text, (text,), (text,), (text,), (text,), *[((text, text),)] * 3))
    ),
    "undone edits": lambda text: plain(files.undone_lines(Undone((text,), (text,), (text,), ((text, text),)))),
}
WITH_MORE_LINES = {"diff", "diff at a terminal", "file diff", "merge", "plan", "report"}
"""These wrap a long text, or show the lines of a text."""


@pytest.mark.parametrize("shown", TEXTS)
def test_hostile_text_sends_nothing_to_a_terminal_and_adds_no_line(shown):
    drawn = TEXTS[shown](WILD)
    assert all(c.isprintable() or c in "\n\u200c\u200d" for c in drawn)
    drawn.encode()
    if shown not in WITH_MORE_LINES:
        assert len(drawn.split("\n")) == len(TEXTS[shown]("x").split("\n"))


PAGES = {
    "plan": lambda: plan_of(HOSTILE),
    "report": lambda: report_of(HOSTILE),
    "messages": lambda: messages_of(HOSTILE),
    "track": lambda: ToolTrack([call_of(HOSTILE)]),
    "checkpoint": lambda: checkpoint_of(HOSTILE),
    "diff": lambda: diff_of(HOSTILE),
    "comparison": lambda: Comparison(
        fork=HOSTILE, left=diff_of(HOSTILE), right=diff(Checkpoint(), Checkpoint()), between=diff_of(HOSTILE)
    ),
    "merge": lambda: merge_of(HOSTILE),
}


@pytest.mark.parametrize("shown", PAGES)
def test_hostile_text_is_only_text_on_a_page(shown):
    """It opens no tag, leaves no attribute and does not turn the reading direction."""
    value = PAGES[shown]()
    drawn = value._repr_html_()
    page = Page(drawn)
    assert page.open == []
    assert set(page.tags) <= TABLE_TAGS | {"pre"}
    assert page.attributes <= {"style"}
    assert "<script>" in page.text
    assert not {"\u202e", "\x1b"} & set(drawn)
