"""Rollback, switch, resume, checkpoints, undo and redo work through a session, without a wrapped graph."""

import backend
import pytest
from file_tools import Desk
from scripted import World, call, obedient, scripted, tool_node_graph

import agentgit
from agentgit import (
    Ambiguous,
    InvalidInput,
    NotFound,
    RollbackBlocked,
    Unavailable,
    WorldDiverged,
    reversible,
)

WORLD = World()


def remove(args, result):
    """Undo `add`, also in a second repository that trusts this module as another process would."""
    WORLD.remove(args, result)


DECLARED = {"add": reversible(remove)}
"""The declarations that a process gets by trusting this module."""


@pytest.fixture
def world():
    """Empty the world of this module, and return it."""
    WORLD.__init__()
    return WORLD


@pytest.fixture
def agent(repo, world):
    """Create an agent that has added a chair and then a table."""
    graph = tool_node_graph(scripted(call("add", item="chair"), "ok", call("add", item="table"), "ok"), world.tools())
    made = repo.wrap(graph, "s", effects=world.effects(add=reversible(remove)))
    made.run("one")
    made.checkpoint("one chair")
    made.run("two")
    return made


@pytest.fixture
def later(repo, agent):
    with agentgit.open(backend.url(repo), trust=[__name__]) as later:
        yield later


def test_a_rollback_without_a_graph_uses_a_trusted_module(later, world):
    """The same request returns the same report, even after later switches from and to its branch."""
    session = later.session("s")
    assert [step.invocation.args for step in session.plan_rollback("one chair").reversals] == [{"item": "table"}]
    assert world.items == ["chair", "table"]
    report = session.rollback("one chair", name="again", request_id="click")
    assert (report.branch, report.status, report.kind) == ("again", "done", "rollback")
    assert (world.items, session.branch().name) == (["chair"], "again")
    session.switch("main", sync="ignore")
    session.switch("again", sync="note")
    assert session.rollback("one chair", branch="main", request_id="click") == report
    assert len(world.undone) == 1


def test_a_world_only_rollback_makes_no_branch(later, world):
    assert later.session("s").plan_rollback("main#1", conversation=False).kind == "world_only"
    report = later.session("s").rollback("main#1", conversation=False)
    assert (report.kind, report.branch, world.items) == ("world_only", "main", [])
    assert len(later.session("s").branches()) == 1


def test_switch_restores_the_world_only_if_sync_asks_for_it(later, agent, world):
    """Without sync nothing is changed or recorded; sync='world' is blocked if a tool is unknown here."""
    session = later.session("s")
    session.rollback("one chair", name="other")
    before = len(session.operations())
    assert session.switch("main").operation_id == 0
    assert len(session.operations()) == before
    assert session.branch().name == "main"
    with pytest.raises(WorldDiverged):
        agent.run("on")
    assert session.plan_switch("main").blockers
    with pytest.raises(RollbackBlocked, match="the tool add is unknown"):
        session.switch("main", sync="world")
    agent.session.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    assert session.switch("other", sync="ignore").kind == "switch"


def test_the_result_of_a_resolved_call_is_passed_to_its_undo(repo, world):
    undone = []
    undo = reversible(lambda args, result: undone.append((args, result)))
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(fail=undo))
    with pytest.raises(RuntimeError):
        agent.run("fail late")
    (lost,) = repo.session("s").tool_track()
    assert lost.status == "unknown"
    with pytest.raises(InvalidInput, match="Leave it out"):
        repo.resolve(lost, "did_not_happen", result={"number": 9})
    assert repo.resolve(lost, "happened", result={"number": 9}).result == {"number": 9}
    repo.session("s").rollback("main#1")
    assert undone == [({"why": "late"}, {"number": 9})]


def test_an_operation_is_found_by_its_id(repo, agent):
    agent.rollback("one chair")
    (operation,) = repo.session("s").operations()
    assert repo.operation(operation.id) == operation
    assert repo.resume(operation.id).status == "done"
    with agentgit.open(backend.url(repo), user="mallory") as other:
        for ask in (other.operation, other.resume):
            with pytest.raises(NotFound, match="no operation"):
                ask(operation.id)
    for bad in (None, "x", 1.5, -1, 2**70):
        with pytest.raises(NotFound, match="no operation"):
            repo.resume(bad)
        with pytest.raises(NotFound, match="no tool invocation"):
            repo.resolve(bad, "happened")


def test_a_wrong_session_branch_target_or_mode_is_refused(repo, agent):
    agent.checkpoint("twice")
    fork = agent.fork(name="fork")
    fork.checkpoint("twice")
    agent.fork("main#1", name="early")
    with pytest.raises(NotFound):
        repo.session("nobody")
    session = repo.session("s")
    for ask in (session.plan_rollback, session.rollback):
        with pytest.raises(NotFound):
            ask("main#1", branch="nothing")
        with pytest.raises(NotFound):
            ask("nowhere")
        with pytest.raises(Ambiguous):
            ask("twice", branch="early")
        with pytest.raises(InvalidInput):
            ask("main#1", tools="undo")
    for switch in (session.plan_switch, session.switch):
        with pytest.raises(NotFound):
            switch("nothing")
    with pytest.raises(InvalidInput):
        session.switch("main", sync="perhaps")
    assert len(session.operations()) == 2


def test_a_checkpoint_is_saved_without_the_graph(repo, agent):
    made = repo.session().checkpoint("before payment", description="all there", data={"ticket": 9})
    assert made.metadata["reference"] == agent.head.metadata["reference"] == "main#6"
    assert repo.session().get_checkpoint("before payment").conversation_history == agent.history()
    assert repo.session().search("payment").items[0].reference == "main#6"
    with pytest.raises(InvalidInput, match="1 to 200"):
        repo.session().checkpoint(" ")


def test_undo_and_redo_work_without_the_graph(repo, agent, world):
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


def test_a_checkpoint_saves_the_files_of_an_existing_workspace(repo, tmp_path):
    desk = Desk(tmp_path / "work")
    agent = repo.wrap(desk.graph(), "s", check_effects=False, workspace=desk.root)
    agent.run("write a.txt one")
    with agentgit.open(backend.url(repo)) as other:
        other.session().checkpoint("with a")
        agent.run("write a.txt two")
        other.session().rewind_files("with a")
        assert desk.files == {"a.txt": "one"}
        desk.root.rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable, match="files=False"):
            other.session().checkpoint("no files here")
        assert other.session().checkpoint("without files", files=False).metadata["reference"] == "main#6"


def test_redo_reverts_a_file_rewind(repo, tmp_path):
    """Redo after `rewind_files` restores the earlier files; after another turn there is nothing to redo."""
    desk = Desk(tmp_path / "work")
    agent = repo.wrap(desk.graph(), "s", check_effects=False, workspace=desk.root)
    agent.run("add chair")
    agent.run("write a.txt made")
    agent.rewind_files("main#2")
    assert desk.files == {}
    assert "a.txt" in str(agent.plan_redo())
    assert agent.redo().branch.name == "main"
    assert desk.files == {"a.txt": "made"}
    with pytest.raises(NotFound, match="nothing to redo"):  # a redo is no rewind
        repo.session().redo()
    assert desk.files == {"a.txt": "made"}
    agent.rewind_files("main#2")
    agent.run("add table")
    with pytest.raises(NotFound, match="nothing to redo"):
        agent.redo()
