"""A folded tree is read from the rows of the branches, and from the checkpoints that it shows."""

from __future__ import annotations

import pytest
from many_branches import deep, wide

from agentgit import NotFound
from agentgit.sessions.folded_tree import FoldedTree, fold


def shape(folded: FoldedTree) -> list[tuple]:
    """Return what a folded tree shows: its branches with their points, and what it hides."""
    shown = [(branch.name, branch.points, branch.effects) for branch in folded.tree.walk()]
    return [*shown, folded.collapsed, folded.hidden, folded.above, folded.counts]


@pytest.fixture
def session(repo):
    wide(repo, 12)
    return repo.session("wide")


def test_a_folded_tree_without_a_limit_is_the_tree(session):
    assert shape(session.folded_tree()) == shape(fold(session.tree()))
    assert str(session.folded_tree()) == str(session.tree())


def test_a_folded_tree_reads_the_checkpoints_that_it_shows(session):
    """With a limit, what is hidden is counted and not read; shown points are those of the whole tree."""
    whole = {point.id: point for branch in session.tree().walk() for point in branch.points}
    folded = session.folded_tree(limit=4)
    assert len(list(folded.tree.walk())) == 4
    assert len(folded.counts) == 12
    assert sum(folded.counts.values()) == len(whole)
    assert not any(branch.points for branch in folded.whole.walk() if branch.id in folded.hidden)
    for branch in folded.tree.walk():
        assert branch.points, branch.name
        assert all(whole[point.id] == point for point in branch.points)


def test_a_long_branch_is_read_from_its_end(session):
    """Of a long branch the newest checkpoints are read, and those from which a shown branch leaves."""
    folded = session.folded_tree(points=2)
    main = folded.tree.roots[0]
    leaving = {child.branch_point_id for child in main.children}
    assert [point.number for point in main.points if point.number >= 8 or point.id not in leaving] == [8, 9]
    assert folded.unread(main) == 9 - len(main.points)
    assert "earlier checkpoint" in str(folded)


def test_a_folded_tree_can_be_filtered_by_the_name_of_a_branch(session):
    assert next(branch.name for branch in session.folded_tree(branch="variant-2").tree.walk()) == "main"
    with pytest.raises(NotFound, match="nobody"):
        session.folded_tree(branch="nobody")


def test_a_long_row_of_rollbacks_shows_its_end(repo):
    deep(repo, 8)
    folded = repo.session("deep").folded_tree(limit=3)
    assert [branch.name for branch in folded.tree.walk()] == ["main-6", "main-7", "main-8"]
    assert folded.above == 5
