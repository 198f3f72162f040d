"""Which values draw themselves where they are shown, and how. Importing it tells them."""

from __future__ import annotations

from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff
from agentgit.checkpoints.finding import Hits
from agentgit.checkpoints.merge import MergePlan
from agentgit.render import diff, exploration, html, merge, rollback, search, tree
from agentgit.sessions.exploration import Exploration
from agentgit.sessions.tree import Tree
from agentgit.tools import RollbackPlan, RollbackReport
from agentgit.values import Drawing

Tree.drawing = Drawing(tree.draw, lambda value: html.pre(tree.lines(value)))
RollbackPlan.drawing = Drawing(rollback.draw, rollback.page)
RollbackReport.drawing = Drawing(rollback.draw, rollback.page)
Hits.drawing = Drawing(search.draw_hits, lambda value: html.pre(search.lines(value)))
Exploration.drawing = Drawing(exploration.draw, lambda value: html.pre(exploration.lines(value)))
Diff.drawing = Drawing(Diff.__str__, diff.page)
Comparison.drawing = Drawing(Comparison.__str__, diff.side_by_side)
MergePlan.drawing = Drawing(merge.draw, merge.page)
