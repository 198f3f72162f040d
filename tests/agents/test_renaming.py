"""Renamed sessions and branches keep their identity, and invalid names are refused."""

import pytest
from scripted import World, obedient, tool_node_graph

from agentgit import Conflict, InvalidInput, NotFound


@pytest.fixture
def agent(repo):
    world = World()
    made = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    made.run("add chair")
    return made


def test_a_renamed_session_keeps_its_id_track_and_trail(repo, agent):
    session = repo.session("s")
    assert session.rename("support-42").session_name == session.name == "support-42"
    assert repo.session("support-42").id == session.id
    with pytest.raises(NotFound):
        repo.session("s")
    agent.run("add table")
    assert [call.args["item"] for call in session.tool_track()] == ["chair", "table"]
    renamed = [event for event in repo.events.newest(session=session) if event.kind == "session.renamed"]
    assert [(event.session_name, event.detail["before"]) for event in renamed] == [("support-42", "s")]
    assert repo.maintenance.fsck(3).is_sound


def test_an_invalid_or_taken_session_name_is_refused(repo, agent):
    repo.session("other", create=True)
    session = repo.session("s")
    for name in ("", " ", "x" * 201, 7):
        with pytest.raises(InvalidInput):
            session.rename(name)
    with pytest.raises(Conflict, match="other"):
        session.rename("other")
    assert session.rename("s").session_name == "s"


def test_a_shared_session_is_renamed_among_the_sessions_of_its_owner(repo):
    ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
    ada.session("secret", create=True)
    ada.session("hers", create=True).sharing.share("bob", "owner")
    theirs = bob.session("ada/hers")
    with pytest.raises(Conflict):
        theirs.rename("secret")
    assert theirs.rename("ours").reference == "ada/ours"


def test_a_renamed_branch_is_found_only_by_its_new_name(repo, agent):
    session = agent.session
    agent.rollback("main#1")
    assert session.rename_branch("main", "first try").name == "first try"
    assert [branch.name for branch in session.branches()] == ["first try", "main-2"]
    assert session.get_checkpoint("first try#2").metadata["reference"] == "first try#2"
    with pytest.raises(NotFound):
        session.get_checkpoint("main#1")
    assert session.switch("first try", sync="world").branch == agent.branch.name == "first try"
    agent.run("add lamp")
    assert str(session.tree()).count("first try") >= 1
    assert repo.maintenance.fsck(3).is_sound


def test_an_invalid_or_taken_branch_name_is_refused(agent):
    session = agent.session
    session.tag("main#1", "v1")
    session.fork(name="side")
    for name in ("", "HEAD", "a#1", "7", "-idea", "x" * 201):
        for give in (session.rename_branch, session.tag, lambda _, name: session.fork(name=name)):
            with pytest.raises(InvalidInput):
                give("main", name)
    for name in ("side", "v1"):
        with pytest.raises(Conflict):
            session.rename_branch("main", name)
    with pytest.raises(NotFound):
        session.rename_branch("nothing", "x")
    assert [branch.name for branch in session.branches()] == ["main", "side"]


def test_a_branch_of_an_exploration_cannot_be_renamed(agent):
    """An exploration finds its branches by their names, so renaming one raises Conflict."""
    agent.explore(1, ["hello", "hm"])
    with pytest.raises(Conflict, match="exploration"):
        agent.session.rename_branch("explore/1", "mine")
