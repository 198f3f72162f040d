"""Text that a model or a person made up can neither control a terminal nor become markup on a page."""

from datetime import UTC, datetime

from markup import HOSTILE, TABLE_TAGS, Page, call
from session_trees import HOSTILE as WILD

from agentgit import Checkpoint, Diff, RollbackPlan, RollbackReport
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import diff
from agentgit.checkpoints.merge import MergedValue, MergePlan
from agentgit.effects.invocation import ToolTrack
from agentgit.effects.plan import KEEP, PlanStep
from agentgit.effects.report import ReportItem
from agentgit.render.view import Medium, plain
from agentgit.render.views import checkpoints, files, tree
from agentgit.render.views.conversation import conversation
from agentgit.render.views.diff import differences
from agentgit.sessions.messages import History
from agentgit.sessions.tree import Branch, Point, Tree
from agentgit.workspace.values import FileCheckpoint, Restored, WorkspaceDiff

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
    values = [MergedValue(key=text, how="take", value=text * 100) for _ in range(3)]
    return MergePlan(kind="merge", source=text, into="main", values=values, messages=messages_of(text))


TEXTS = {
    "tree": lambda text: Medium(80).text(tree.tree(tree_of(text))),
    "log": lambda text: plain(checkpoints.log([checkpoint_of(text)])),
    "checkpoint": lambda text: plain(checkpoints.checkpoint(checkpoint_of(text))),
    "messages": lambda text: plain(conversation(messages_of(text))),
    "diff": lambda text: str(diff_of(text)),
    "diff at a terminal": lambda text: Medium(80).text(differences(diff_of(text))),
    "plan": lambda text: str(plan_of(text)),
    "report": lambda text: str(report_of(text)),
    "merge": lambda text: str(merge_of(text)),
    "snapshots": lambda text: plain(files.snapshots([FileCheckpoint(text, text, text, NOON, kind=text)])),
    "file diff": lambda text: plain(files.difference(WorkspaceDiff("a", "b", (text,), (text,), (text,), f"+{text}"))),
    "restore plan": lambda text: plain(files.plan(Restored("a", None, (text,), (text,), (text,), changed=(text,)))),
    "restore": lambda text: plain(
        files.restored(Restored("a", text, (text,), (text,), (text,), (text,), *[((text, text),)] * 3))
    ),
    "undone edits": lambda text: plain(
        files.undone([Restored(text, message=text, restored=(text,), left=((text, text),))])
    ),
}

WITH_MORE_LINES = {"diff", "diff at a terminal", "file diff", "merge", "plan", "report"}
"""These wrap a long text, or show the lines of a text."""


def test_hostile_text_sends_nothing_to_a_terminal_and_adds_no_line():
    for shown, draw in TEXTS.items():
        drawn = draw(WILD)
        assert all(c.isprintable() or c in "\n\u200c\u200d" for c in drawn), shown
        drawn.encode()
        assert shown in WITH_MORE_LINES or len(drawn.split("\n")) == len(draw("x").split("\n")), shown


def test_hostile_text_is_only_text_on_a_page():
    """It opens no tag, leaves no attribute and does not turn the reading direction."""
    made = diff_of(HOSTILE)
    comparison = Comparison(fork=HOSTILE, left=made, right=diff(Checkpoint(), Checkpoint()), between=made)
    values = [make(HOSTILE) for make in (plan_of, report_of, messages_of, checkpoint_of, merge_of)]
    for value in (*values, made, comparison, ToolTrack([call_of(HOSTILE)])):
        drawn = value._repr_html_()
        page = Page(drawn)
        assert page.open == [], type(value)
        assert set(page.tags) <= TABLE_TAGS | {"pre"}, type(value)
        assert page.attributes <= {"style"}, type(value)
        assert "<script>" in page.text, type(value)
        assert not {"\u202e", "\x1b"} & set(drawn), type(value)
