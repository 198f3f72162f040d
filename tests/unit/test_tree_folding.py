"""Folding of big trees: which branches are shown, which are collapsed, and which are counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_trees import Story

from agentgit.errors import InvalidInput, NotFound
from agentgit.render.view import Medium
from agentgit.render.views import tree as trees
from agentgit.sessions.folded_tree import FoldedTree, fold
from agentgit.sessions.tree import Branch, Tree


def grown(parents: list[int | None], current: int | None = None) -> Tree:
    """Build a tree of branches 1, 2, …, each with one turn, from the numbers of their parents."""
    story = Story()
    points = [story.turn(1, f"question {n}") for n in range(1, len(parents) + 1)]
    return Tree.grow(
        "s",
        [
            Branch(
                id=n,
                name=f"b{n}",
                parent_id=parent,
                branch_point_id=points[parent - 1][-1].id if parent else None,
                is_current=n == current,
                points=points[n - 1],
            )
            for n, parent in enumerate(parents, 1)
        ],
    )


def ids(tree: Tree) -> list[int]:
    return [branch.id for branch in tree.walk()]


@st.composite
def random_trees(draw: st.DrawFn) -> Tree:
    n = draw(st.integers(1, 40))
    parents = [None, *(draw(st.one_of(st.none(), st.integers(1, i))) for i in range(1, n))]
    return grown(parents, draw(st.one_of(st.none(), st.integers(1, n))))


@given(random_trees(), st.integers(1, 12), st.booleans(), st.data())
def test_each_branch_is_shown_or_counted_once(tree: Tree, limit: int, filtered: bool, data: st.DataObject):
    branch = data.draw(st.sampled_from(ids(tree))) if filtered else None
    expand, collapse = (data.draw(st.sets(st.sampled_from(ids(tree)))) for _ in range(2))
    folded = fold(tree, limit=limit, branch=branch, expand=expand, collapse=collapse)
    shown = ids(folded.tree)
    assert len(shown) + sum(folded.hidden.values()) + folded.above == len(ids(tree))
    assert set(folded.hidden) <= set(shown)
    assert all(folded.hidden.values())
    assert folded.collapsed <= set(shown)
    assert [id for id in ids(tree) if id in shown] == shown, "the order of the branches has changed"


@given(random_trees(), st.integers(1, 12))
def test_a_folded_tree_keeps_to_its_limit_and_shows_the_current_branch_in_full(tree: Tree, limit: int):
    """At most `limit` branches are shown; the current one is among them and not collapsed."""
    folded = fold(tree, limit=limit)
    assert len(ids(folded.tree)) <= limit
    for branch in tree.walk():
        if branch.is_current:
            assert branch.id in ids(folded.tree)
            assert branch.id not in folded.collapsed


@given(random_trees())
def test_a_small_tree_is_not_folded(tree: Tree):
    for limit in (None, 40):
        assert fold(tree, limit=limit) == FoldedTree(whole=tree, tree=tree, counts=dict.fromkeys(ids(tree), 3))


def test_a_branch_that_is_expanded_shows_its_branches_and_hides_no_other():
    tree = grown([None, 1, 1, 2, 2, 2], current=1)
    before, after = fold(tree, limit=3), fold(tree, limit=3, expand=[2])
    assert ids(before.tree) == [1, 2, 3]
    assert before.hidden == {2: 3}
    assert ids(after.tree) == [1, 2, 4, 5, 6, 3]
    assert after.collapsed == {3, 4, 5, 6}
    assert after.hidden == {}


def test_a_branch_that_is_collapsed_takes_one_line_and_hides_what_is_below_it():
    """A branch can be collapsed in a small tree, too; the path to the current branch cannot."""
    folded = fold(grown([None, 1, 2, 2, 1], current=5), collapse=[2, 1])
    assert ids(folded.tree) == [1, 2, 5]
    assert folded.collapsed == {2}
    assert folded.hidden == {2: 2}


def test_a_limit_below_one_and_an_unknown_branch_are_refused():
    with pytest.raises(InvalidInput, match="limit must be at least 1, not 0"):
        fold(grown([None]), limit=0)
    with pytest.raises(NotFound, match="no branch with the id 7"):
        fold(grown([None]), branch=7)
    assert fold(Tree(session_name="none", roots=[]), limit=1).above == 0


def test_a_folded_tree_is_drawn_with_what_it_hides():
    folded = fold(grown([None, 1, 1, 1, 2, 2, 3, 4], current=5), limit=5)
    assert Medium(80).text(trees.tree(folded)).splitlines() == [
        "s: 8 branches, 24 checkpoints",
        "● b1#3      (b1) question 1",
        "├─● b2#3    (b2) question 2",
        "│ ├─● b5#3  (HEAD -> b5 *) question 5",
        "│ ╰─● b6#3  (b6) question 6",
        "├─● b4#3    (b4) (+1 branch) question 4",
        "┆           2 more branches",
    ]
    deep = fold(grown([None, 1, 2], current=3), limit=1)
    assert str(deep).splitlines()[1:] == ["┆ 2 more branches above", "● b3#3  (HEAD -> b3 *) question 3"]
