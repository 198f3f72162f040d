"""The marks of calls at the checkpoints of a tree, from a real database."""

import xml.etree.ElementTree as ElementTree

import pytest
from scripted import obedient, tool_node_graph

from agentgit.render.svg import tree_svg

TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture
def agent(repo, world):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())


def marks(branch) -> list[tuple[str, dict[str, int]]]:
    return [(f"{branch.name}#{point.number}", dict(point.effects)) for point in branch.points if point.effects]


def test_a_tree_counts_the_effects_of_calls_at_each_checkpoint(repo, agent):
    """Each call counts at the next checkpoint with its current status; reads and replayed calls do not count."""
    agent.run("add chair; look")
    agent.session.tag(agent.checkpoint("before"), "good", branch=agent.branch_id)
    agent.run("add table; charge 5; note hurry")
    assert marks(repo.session("s").tree().roots[0]) == [("main#2", {"done": 1}), ("main#5", {"done": 3})]
    agent.rollback("good")
    main, retry = repo.session("s").tree().walk()
    assert marks(main) == [("main#2", {"done": 1}), ("main#5", {"reversed": 2, "done": 1})]
    assert marks(retry) == []
    assert [point.tags for point in main.points if point.tags] == [("good",)]
    assert "(tag: good) before" in str(repo.session("s").tree())


def test_a_call_repeated_by_a_switch_back_is_shown_as_done(repo, agent):
    agent.run("add chair")
    agent.run("send hello; add lamp")
    agent.rollback("main#2", force=True)
    assert marks(repo.session("s").tree().roots[0])[1] == ("main#4", {"irreversible": 1, "reversed": 1})
    agent = agent.switch("main", sync="world")
    assert marks(repo.session("s").tree().roots[0])[1] == ("main#4", {"irreversible": 1, "done": 1})


def test_calls_after_the_newest_checkpoint_belong_to_the_branch(repo, agent):
    with pytest.raises(RuntimeError, match="paper"):
        agent.run("add chair; fail paper")
    main = repo.session("s").tree().roots[0]
    assert (marks(main), dict(main.effects)) == ([], {"done": 1, "unknown": 1})
    drawn = ElementTree.fromstring(tree_svg(repo.session("s").tree()))  # noqa: S314  # our own
    assert {"done", "unknown"} <= {one.text for one in drawn.iter(TEXT)}
