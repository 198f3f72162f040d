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
from agentgit.render.view import Medium, View, plain
from agentgit.render.views import checkpoints, conversation, diff, lists, maintenance, reruns, rollback, tree
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.folded_tree import FoldedTree
from agentgit.sessions.messages import History
from agentgit.sessions.rerun import RerunComparison, RerunReport, Reruns
from agentgit.sessions.session import Branches, Sessions
from agentgit.sessions.stats import Stats
from agentgit.sessions.tree import Exploration, Tree
from agentgit.values import Drawing


def _drawing(view: Callable[[Any], View]) -> Drawing:
    return Drawing(lambda value: plain(view(value)), lambda value: html.page(view(value)))


def _outcome_page(value: RollbackPlan | RollbackReport) -> str:
    return html.page([*rollback.outcome(value), *rollback.replayed(value)])


def _preformatted(view: Callable[[Any], View], *, wrapped: bool = False) -> Drawing:
    return Drawing(
        lambda value: plain(view(value)), lambda value: html.pre(Medium().lines(view(value)), wrapped=wrapped)
    )


Tree.drawing = Drawing(lambda value: plain(tree.tree(value)), svg.page)
FoldedTree.drawing = _preformatted(tree.tree)
RollbackPlan.drawing = Drawing(lambda value: plain(rollback.outcome(value)), _outcome_page)
RollbackReport.drawing = Drawing(lambda value: plain(rollback.outcome(value)), _outcome_page)
Hits.drawing = _drawing(checkpoints.hits)
Exploration.drawing = _drawing(tree.exploration)
Reruns.drawing = _drawing(reruns.results)
RerunReport.drawing = Drawing(str, lambda value: html.page(reruns.report(value)))
RerunComparison.drawing = _preformatted(reruns.comparison, wrapped=True)
Diff.drawing = Drawing(Diff.__str__, diff.page)
Comparison.drawing = Drawing(Comparison.__str__, diff.side_by_side)
MergePlan.drawing = _drawing(diff.merge)
Checkpoint.drawing = _drawing(checkpoints.checkpoint)
Checkpoints.drawing = _drawing(lambda value: checkpoints.log(value, value.questions))
Tags.drawing = _drawing(checkpoints.tags)
InternalSession.drawing = Drawing(repr, lambda value: html.page(lists.branch(value)))
Branches.drawing = _drawing(lists.branches)
ExternalSession.drawing = _drawing(lambda session: lists.sessions([session]))
Sessions.drawing = _drawing(lists.sessions)
ToolInvocation.drawing = _drawing(lambda call: conversation.calls([call]))
ToolTrack.drawing = _drawing(conversation.calls)
History.drawing = _drawing(conversation.conversation)
Stats.drawing = _drawing(maintenance.stats)
