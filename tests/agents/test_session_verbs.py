"""Rollback, switch and resume work through a session, without a wrapped graph."""

import backend
import pytest
from scripted import World, call, scripted, tool_node_graph

import agentgit
from agentgit import Ambiguous, Conflict, InvalidInput, NotFound, RollbackBlocked, WorldDiverged, reversible

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
    """Open the repository as another process does, without a wrapped graph."""
    with agentgit.open(backend.url(repo), trust=[__name__]) as later:
        yield later


def test_a_rollback_without_a_graph_uses_a_trusted_module(later, world):
    """Plan and rollback work with the undo function of a trusted module; the report names the new branch."""
    plan = later.session("s").plan_rollback("one chair")
    assert [step.invocation.args for step in plan.reversals] == [{"item": "table"}]
    assert world.items == ["chair", "table"]
    report = later.session("s").rollback("one chair", name="again", request_id="click")
    assert (report.branch, report.status, report.kind) == ("again", "done", "rollback")
    assert world.items == ["chair"]
    assert later.session("s").branch().name == "again"
    assert later.session("s").rollback("one chair", branch="main", request_id="click") == report
    assert len(world.undone) == 1


def test_a_repeated_request_returns_its_original_report(later, world):
    """The same request returns the same report, even after later switches from and to its branch."""
    report = later.session("s").rollback("one chair", request_id="click")
    later.session("s").switch("main", sync="ignore")
    later.session("s").switch(report.branch, sync="note")
    assert later.session("s").rollback("one chair", branch="main", request_id="click") == report


def test_a_world_only_rollback_makes_no_branch(later, world):
    """With conversation=False no branch is made, and plan and report have the kind world_only."""
    assert later.session("s").plan_rollback("main#1", conversation=False).kind == "world_only"
    report = later.session("s").rollback("main#1", conversation=False)
    assert (report.kind, report.branch, world.items) == ("world_only", "main", [])
    assert len(later.session("s").branches()) == 1


def test_switch_restores_the_world_only_if_sync_asks_for_it(later, agent, world):
    """Without sync nothing is changed or recorded; sync='world' is blocked if a tool is unknown here."""
    later.session("s").rollback("one chair", name="other")
    before = len(later.session("s").operations())
    assert later.session("s").switch("main").operation_id == 0
    assert len(later.session("s").operations()) == before
    assert later.session("s").branch().name == "main"
    with pytest.raises(WorldDiverged):
        agent.run("on")
    assert later.session("s").plan_switch("main").blockers
    with pytest.raises(RollbackBlocked, match="the tool add is unknown"):
        later.session("s").switch("main", sync="world")
    agent.session.switch("main", sync="world")
    assert world.items == ["chair", "table"]
    assert later.session("s").switch("other", sync="ignore").kind == "switch"


@pytest.mark.long
def test_the_result_of_a_resolved_call_is_passed_to_its_undo(repo, world):
    """An interrupted call resolved as happened is recorded with the result that its undo function needs."""

    def put(args, result):
        world.undone.append(("put", args, result))

    class Killed(BaseException):
        pass

    def dying(item):
        raise Killed

    tools = world.tools()
    next(tool for tool in tools if tool.name == "add").func = dying
    agent = repo.wrap(
        tool_node_graph(scripted(call("add", item="safe"), "ok"), tools),
        "s",
        effects=world.effects(add=reversible(put)),
    )
    with pytest.raises(Killed):
        agent.run("a safe")
    agent.plan_rollback("main#1")
    (lost,) = repo.session("s").tool_track()
    assert lost.status == "unknown"
    with pytest.raises(InvalidInput, match="Leave it out"):
        repo.resolve(lost, "did_not_happen", result={"number": 9})
    assert repo.resolve(lost, "happened", result={"number": 9}).result == {"number": 9}
    repo.session("s").rollback("main#1")
    assert world.undone == [("put", {"item": "safe"}, {"number": 9})]


def test_an_operation_is_found_by_its_id(repo, agent):
    """`resume` accepts an operation or its id; another user's operation and an invalid id are not found."""
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
    """Bad input: a wrong session, branch, target or mode raises the usual error, and nothing is done."""
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
        repo.session("s").switch("main", sync="perhaps")
    assert len(repo.session("s").operations()) == 2


def test_a_switch_to_a_partial_branch_is_refused(repo, agent, world):
    """The branch of an unfinished rollback cannot be switched to."""
    world.broken.add("table")
    with pytest.raises(agentgit.RollbackIncomplete):
        repo.session("s").rollback("one chair", name="half")
    with pytest.raises(Conflict):
        repo.session("s").switch("half")
