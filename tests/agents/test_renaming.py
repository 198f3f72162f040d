"""Sessions and branches can be renamed; what they are stays (D2)."""

import pytest
from scripted import World, obedient, tool_node_graph

from agentgit import Conflict, InvalidInput, NotAllowed, NotFound


@pytest.fixture
def agent(repo):
    """An agent that has added a chair."""
    world = World()
    made = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    made.run("add chair")
    return made


def test_d2_a_session_is_renamed_and_goes_on(repo, agent):
    """D2: a renamed session keeps its id, branches and trail, is found by the new name only, and its agents run on."""
    session = repo.session("s")
    assert session.rename("support-42").session_name == session.name == "support-42"
    assert repo.session("support-42").id == session.id
    with pytest.raises(NotFound):
        repo.session("s")
    agent.run("add table")
    assert [call.args["item"] for call in session.tool_track()] == ["chair", "table"]
    renamed = [event for event in repo.events.list(session=session) if event.kind == "session.renamed"]
    assert [(event.session_name, event.detail["before"]) for event in renamed] == [("support-42", "s")]
    assert repo.events.verify().is_sound
    assert repo.maintenance.fsck(3).is_sound


def test_d2_a_session_gets_no_name_that_is_none_or_taken(repo, agent):
    """Bad input: an empty, a long or another session's name is refused, and the session keeps its own."""
    repo.session("other", create=True)
    session = repo.session("s")
    for name in ("", " ", "x" * 201, 7):
        with pytest.raises(InvalidInput):
            session.rename(name)
    with pytest.raises(Conflict, match="other"):
        session.rename("other")
    assert session.rename("s").session_name == "s"


def test_d5_only_owners_rename_a_session_and_editors_a_branch(repo, agent):
    """D5: who may look renames nothing; a co-owner may not take a name that the owner has for another session."""
    ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
    session = ada.session("hers", create=True)
    ada.session("secret", create=True)
    session.sharing.share("bob")
    theirs = bob.session("ada/hers")
    with pytest.raises(NotAllowed):
        theirs.rename("mine")
    with pytest.raises(NotAllowed):
        theirs.rename_branch("main", "mine")
    session.sharing.share("bob", "owner")
    with pytest.raises(Conflict):
        theirs.rename("secret")
    assert theirs.rename("ours").reference == "ada/ours"


def test_d2_a_branch_is_renamed_and_goes_on(repo, agent):
    """D2: a renamed branch is a reference by its new name only; rollback, agents and reports know it."""
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


def test_d2_a_branch_gets_no_name_that_is_none_or_taken(agent):
    """Bad input: a name that no reference could have, or that something else has, is refused."""
    session = agent.session
    session.tag("main#1", "v1")
    session.fork(name="side")
    for name in ("", "HEAD", "a#1", "7", "x" * 201):
        with pytest.raises(InvalidInput):
            session.rename_branch("main", name)
    for name in ("side", "v1"):
        with pytest.raises(Conflict):
            session.rename_branch("main", name)
    with pytest.raises(NotFound):
        session.rename_branch("nothing", "x")
    assert [branch.name for branch in session.branches()] == ["main", "side"]


def test_w10_a_branch_of_an_exploration_keeps_its_name(agent):
    """W10: an exploration finds its branches by their names, so these are not renamed."""
    agent.explore(1, ["hello", "hm"])
    with pytest.raises(Conflict, match="exploration"):
        agent.session.rename_branch("explore/1", "mine")
