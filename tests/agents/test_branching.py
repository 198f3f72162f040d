"""Checkpoints, forks, undo and redo through a session, without the graph."""

import backend
import pytest
from scripted import obedient, tool_node_graph

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, Unavailable


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.run("add table")
    return agent


def test_a_checkpoint_is_saved_without_the_graph(repo, agent):
    """`session.checkpoint` saves the state of a branch like `agent.checkpoint`, and the checkpoint can be found."""
    made = repo.session().checkpoint("before payment", description="all there", data={"ticket": 9})
    assert made.metadata["reference"] == agent.head.metadata["reference"] == "main#5"
    assert repo.session().get_checkpoint("before payment").conversation_history == agent.history()
    assert repo.session().search("payment").items[0].reference == "main#5"
    with pytest.raises(InvalidInput, match="1 to 200"):
        repo.session().checkpoint(" ")


def test_a_branch_is_forked_without_the_graph(repo, agent, world):
    """`session.fork` changes neither the current branch nor the world; a duplicate name is refused."""
    made = repo.session().branch(repo.session().fork("main#2", name="side").branch)
    assert (made.name, made.is_current, made.tool_invocation_count) == ("side", False, 1)
    assert repo.session().branch().name == "main"
    assert world.items == ["chair", "table"]
    with pytest.raises(Conflict, match="side"):
        repo.session().fork("main#2", name="side")
    here = repo.session().branch(repo.session().fork().branch)
    assert here.branch_point_checkpoint_id == agent.head.id


def test_undo_and_redo_work_without_the_graph(repo, agent, world):
    """`session.undo` reverses the last turn, `session.redo` repeats it, and each has a plan."""
    assert str(repo.session().plan_undo()) == str(agent.plan_undo())
    report = repo.session().undo()
    assert (report.branch, world.items) == ("main-2", ["chair"])
    assert str(repo.session().plan_redo()).startswith("Switch of session s to branch main")
    assert repo.session().redo().branch == "main"
    assert world.items == ["chair", "table"]
    with pytest.raises(NotFound, match="nothing to redo"):
        repo.session().redo()
    with pytest.raises(NotFound, match="are 2 earlier checkpoints"):
        repo.session().undo(9)


def test_a_checkpoint_saves_the_files_of_an_existing_workspace(repo, world, tmp_path):
    """A checkpoint saves the current files; if the workspace is missing, the error names files=False."""
    work = tmp_path / "work"
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(), workspace=work)
    agent.run("hello")
    (work / "a.txt").write_text("one")
    with agentgit.open(backend.url(repo)) as other:
        other.session().checkpoint("with a")
        (work / "a.txt").write_text("two")
        other.session().rewind_files("with a", force=True)
        assert (work / "a.txt").read_text() == "one"
        work.rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable, match="files=False"):
            other.session().checkpoint("no files here")
        assert other.session().checkpoint("without files", files=False).metadata["reference"] == "main#4"


def test_redo_reverts_a_file_rewind(repo, world, tmp_path):
    """Redo after `rewind_files` restores the earlier files; after another turn there is nothing to redo."""
    work = tmp_path / "work"
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(), workspace=work)
    agent.run("hello")
    (work / "a.txt").write_text("by hand")
    agent.run("hello again")
    agent.rewind_files("main#1")
    assert not (work / "a.txt").exists()
    assert "a.txt" in str(agent.plan_redo())
    assert agent.redo().branch.name == "main"
    assert (work / "a.txt").read_text() == "by hand"
    assert repo.session().redo().files is not None  # a second redo reverts the first one
    assert not (work / "a.txt").exists()
    agent.run("on we go")
    with pytest.raises(NotFound, match="nothing to redo"):
        agent.redo()
