"""Templates: a checkpoint of one session starts another session."""

import pytest
from file_tools import Desk, home
from langgraph.types import Command
from scripted import call, nested_graph, obedient, say, scripted, tool_node_graph

import agentgit
from agentgit.errors import Conflict, InvalidInput, NotFound, WorkspaceChanged

__all__ = ["home"]  # the fixtures


@pytest.fixture
def agent(repo, world):
    made = repo.wrap(tool_node_graph(obedient(), world.tools()), "old", effects=world.effects())
    made.run("add chair; send mail")
    made.checkpoint("before")
    made.run("add table")
    return made


def wrapped(repo, world, session="new", **more):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), session, effects=world.effects(), **more)


@pytest.mark.parametrize("how", ["checkpoint", "id", "text", "session"])
def test_a_session_starts_from_a_template_checkpoint(repo, agent, world, how):
    before = repo.session("old").get_checkpoint("before")
    template = {"checkpoint": before, "id": before.id, "text": "old@before", "session": "old"}[how]
    point = agent.head if how == "session" else before
    made = wrapped(repo, world, template=template)
    assert made.history() == point.conversation_history
    assert made.head.metadata["state_hash"] == point.metadata["state_hash"]
    assert made.head.metadata["description"] == f"from old@{point.metadata['reference']}"
    assert (made.head.metadata["reference"], made.tool_track()) == ("main#1", [])
    made.run("note hello")
    assert len(made.history()) == len(point.conversation_history) + 4
    assert repo.session().diff(point, made.head).common_messages == len(point.conversation_history)
    assert agent.run("note bye") == "done"


def test_effects_of_the_template_are_never_reversed(repo, agent, world):
    made = wrapped(repo, world, template="old@before")
    made.run("add sofa")
    assert [step.invocation.args for step in made.plan_rollback("main#1").steps] == [{"item": "sofa"}]
    made.rollback("main#1")
    assert (world.items, world.sent) == (["chair", "table"], ["mail"])
    agent.run("add lamp")
    agent.rollback("main#1", force=True)
    assert world.items == []


def test_wrapping_again_continues_the_session(repo, agent, world):
    wrapped(repo, world, template="old@before").run("note hello")
    assert len(wrapped(repo, world, template="old@before").history()) == 9
    assert len(wrapped(repo, world).history()) == 9
    with pytest.raises(Conflict, match=r"from old@main#3, not from old@main#5"):
        wrapped(repo, world, template="old")
    with pytest.raises(Conflict, match="without a template"):
        wrapped(repo, world, "old", template="new")


def test_an_invalid_template_creates_no_session(repo, agent, world):
    for wrong in ("nowhere", "old@nowhere", "nowhere@main#1", 7, "@", "old@"):
        with pytest.raises(NotFound):
            wrapped(repo, world, template=wrong)
    with pytest.raises(InvalidInput, match="from both"):
        wrapped(repo, world, template="old", thread_id="t")
    assert [session.session_name for session in repo.sessions()] == ["old"]


def test_a_template_name_may_contain_an_at_sign(repo, world):
    wrapped(repo, world, "me@example.com").run("note x")
    assert len(wrapped(repo, world, "a", template="me@example.com").history()) == 4
    assert wrapped(repo, world, "b", template="me@example.com@main#1").history() == []


def test_a_pending_question_can_be_answered_in_the_new_session(repo, world):
    """A checkpoint that waits for a person also waits in the new session, and each is answered separately."""
    model = scripted(call("add_if_approved", item="safe"), "fine", "fine")
    agent = repo.wrap(tool_node_graph(model, world.tools()), "old", effects=world.effects())
    agent.invoke(say("buy a safe"))
    asking = agent.checkpoint("asking")
    made = repo.wrap(agent.graph, "new", effects=world.effects(), template=asking)
    made.invoke(Command(resume="yes"))
    assert [one.status for one in made.tool_track()] == ["done"]
    assert world.items == ["safe"]
    assert [one.status for one in agent.tool_track()] == ["paused"]
    made.rollback("main#1")
    assert world.items == []


def test_a_graph_with_subgraphs_continues_in_the_new_session(repo, world):
    graph = nested_graph(obedient(), world.tools())
    agent = repo.wrap(graph, "old", effects=world.effects())
    agent.run("note one")
    made = repo.wrap(graph, "new", effects=world.effects(), template="old")
    made.run("note two")
    agent.run("note two")
    assert [m["content"] for m in made.history()] == [m["content"] for m in agent.history()]
    assert made.state["visits"] == agent.state["visits"]


def test_an_imported_session_remembers_its_template(repo, agent, world, tmp_path):
    wrapped(repo, world, template="old@before").run("note hello")
    repo.session("new").export(tmp_path / "new.jsonl")
    repo.import_(tmp_path / "new.jsonl", session="again")
    assert len(wrapped(repo, world, "again", template="old@before").history()) == 9
    with pytest.raises(Conflict, match="from old@main#3, not from old@main#5"):
        wrapped(repo, world, "again", template="old")
    with agentgit.open(tmp_path / "other.db") as other:
        other.import_(tmp_path / "new.jsonl")
        with pytest.raises(NotFound):
            wrapped(other, world, template="old@before")
        assert len(wrapped(other, world).history()) == 9


# -- files


def desked(repo, desk, session, **more):
    return repo.wrap(
        desk.graph(), session, effects=desk.world.effects(), check_effects=False, workspace=desk.root, **more
    )


def test_a_new_workspace_receives_the_files_of_the_template(repo, tmp_path):
    desk, other = Desk(tmp_path / "work"), Desk(tmp_path / "other")
    agent = desked(repo, desk, "old")
    agent.run("write a.txt one")
    agent.checkpoint("before")
    agent.run("write a.txt two; write b.txt more")
    made = desked(repo, other, "new", template="old@before")
    assert (other.files, desk.files) == ({"a.txt": "one"}, {"a.txt": "two", "b.txt": "more"})
    made.run("write a.txt three")
    desked(repo, other, "new", template="old@before")
    assert other.files == {"a.txt": "three"}
    made.rollback("main#1")
    assert other.files == {"a.txt": "one"}
    assert desk.files == {"a.txt": "two", "b.txt": "more"}
    bare = repo.wrap(desk.graph(), "bare", effects=desk.world.effects(), check_effects=False, template="old@before")
    assert len(bare.history()) == 4
    bare.run("add chair")
    late = Desk(tmp_path / "late")
    desked(repo, late, "bare", template="old@before")
    assert late.files == {}  # the session had already continued without files


def test_existing_files_in_the_workspace_are_not_overwritten(repo, tmp_path):
    desk, other = Desk(tmp_path / "work"), Desk(tmp_path / "other")
    desked(repo, desk, "old").run("write a.txt one")
    (other.root / "a.txt").write_text("precious")
    (other.root / "mine.txt").write_text("mine")
    with pytest.raises(WorkspaceChanged, match="is not empty"):
        desked(repo, other, "new", template="old")
    assert other.files == {"a.txt": "precious", "mine.txt": "mine"}
    empty = Desk(tmp_path / "empty")
    desked(repo, empty, "new", template="old")
    assert empty.files == {"a.txt": "one"}
