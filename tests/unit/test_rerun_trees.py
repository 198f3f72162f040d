"""In every tree, reruns are drawn apart from branches that acted, with a legend."""

from agentgit.render.svg import tree_svg
from agentgit.sessions.folded_tree import fold
from agentgit.sessions.tree import Branch, Point, Tree


def tree(status):
    """Return a tree in which the second branch has a status."""
    point = Point(id=5, number=1, name="start")
    child = Branch(id=2, name="again", status=status, parent_id=1, branch_point_id=5, points=[Point(id=6, number=2)])
    return Tree(session_name="s", roots=[Branch(id=1, name="main", is_current=True, points=[point], children=[child])])


def test_a_rerun_has_its_own_sign_in_the_text():
    """A rerun has its own sign and a line of legend, also in the folded tree; other branches have neither."""
    for drawn in (str(tree("simulated")), str(fold(tree("simulated")))):
        assert "◌ again#2" in drawn
        assert drawn.splitlines()[-1] == "◌ rerun: its calls were simulated"
    assert "◌" not in str(tree("open"))


def test_a_rerun_is_dashed_in_the_picture():
    """The lane of a rerun is dashed, its dots are hollow, and the legend says so; other lanes are not dashed."""
    drawn, other = tree_svg(tree("simulated")), tree_svg(tree("open"))
    assert "stroke-dasharray" in drawn
    assert "rerun: its calls were simulated" in drawn
    assert "stroke-dasharray" not in other
    assert "rerun:" not in other
