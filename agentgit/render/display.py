"""The text and HTML with which values display themselves. Importing this module registers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.checkpoint import Checkpoints
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff
from agentgit.checkpoints.merge import MergePlan
from agentgit.checkpoints.queries import Hits, Tags
from agentgit.effects import RollbackPlan, RollbackReport, ToolInvocation
from agentgit.effects.invocation import ToolTrack
from agentgit.render import html, svg
from agentgit.render import show as shows
from agentgit.render.text import Line, Span, plain
from agentgit.render.views import conversation, diff, lists, log, maintenance, reruns, rollback, tree
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.folded_tree import FoldedTree
from agentgit.sessions.messages import History
from agentgit.sessions.rerun import RerunComparison, RerunReport, Reruns
from agentgit.sessions.session import Branches, Sessions
from agentgit.sessions.stats import Stats
from agentgit.sessions.tree import Exploration, Tree
from agentgit.values import Drawing


def _as_lines(lines: Callable[[Any], list[Line]], placeholder: str = "nothing yet") -> Drawing:
    """Return a drawing that shows a value as lines, in text and in HTML."""

    def lines_of(value: Any) -> list[Line]:
        return lines(value) or [(Span(placeholder, "dim"),)]

    return Drawing(lambda value: plain(lines_of(value)), lambda value: html.pre(lines_of(value)))


Tree.drawing = Drawing(tree.draw, svg.page)
FoldedTree.drawing = Drawing(tree.draw, lambda value: html.pre(tree.lines(value)))
RollbackPlan.drawing = Drawing(rollback.draw, rollback.page)
RollbackReport.drawing = Drawing(rollback.draw, rollback.page)
Hits.drawing = Drawing(log.draw_hits, lambda value: html.pre(log.hit_lines(value)))
Exploration.drawing = Drawing(tree.draw_exploration, lambda value: html.pre(tree.exploration_lines(value)))
Reruns.drawing = _as_lines(reruns.lines)
RerunReport.drawing = Drawing(str, lambda value: html.pre([(Span(str(value)),)], wrapped=True))
RerunComparison.drawing = Drawing(reruns.draw_comparison, reruns.comparison_page)
Diff.drawing = Drawing(Diff.__str__, diff.page)
Comparison.drawing = Drawing(Comparison.__str__, diff.side_by_side)
MergePlan.drawing = Drawing(diff.draw_merge, diff.merge_page)
Checkpoint.drawing = Drawing(shows.draw_checkpoint, shows.page)
Checkpoints.drawing = _as_lines(log.lines, "no checkpoints yet")
Tags.drawing = _as_lines(log.tag_lines, "no tags yet")
InternalSession.drawing = Drawing(repr, lists.branch_page)
Branches.drawing = _as_lines(lists.branch_lines)
ExternalSession.drawing = _as_lines(lambda session: lists.session_lines([session]))
Sessions.drawing = _as_lines(lists.session_lines, "no sessions yet")
ToolInvocation.drawing = Drawing(
    lambda call: conversation.draw_calls([call]), lambda call: conversation.call_page([call])
)
ToolTrack.drawing = Drawing(conversation.draw_calls, conversation.call_page)
History.drawing = Drawing(conversation.draw_messages, conversation.message_page)
Stats.drawing = _as_lines(maintenance.stats_lines)
