"""Stopped operations are recovered, resumed or abandoned, and other branches detect what they changed."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import backend
import faults
import points
import pytest
from scripted import World, obedient, say, tool_node_graph

import agentgit
from agentgit import Conflict, PlanChanged, RollbackBlocked, RollbackIncomplete, WorldDiverged, compensable, reversible


@dataclass
class Hands:
    """An undo function of `add` that raises the error of an item before, or `after`, it acts; and its `verify`."""

    world: World
    errors: dict[str, BaseException] = field(default_factory=dict)
    after: bool = False

    def undo(self, args, result):
        error = self.errors.get(args["item"])
        if error is None or self.after:
            self.world.remove(args, result)
        if error is not None:
            raise error

    def look(self, invocation):
        return invocation.args["item"] in self.world.items


@pytest.fixture
def hands(world):
    return Hands(world)


def wrapped(repo, world, hands, *, branch=None, verify=False):
    undo = reversible(hands.undo, verify=hands.look if verify else None)
    graph = tool_node_graph(obedient(), world.tools())
    return repo.wrap(graph, "s", effects=world.effects(add=undo), branch=branch)


@pytest.fixture
def agent(repo, world, hands):
    """Create a branch with a chair before the checkpoint `before`, and a table and a sofa after it."""
    agent = wrapped(repo, world, hands)
    agent.run("add chair")
    agent.checkpoint("before")
    agent.run("add table")
    agent.run("add sofa")
    return agent


def stopped(verb, hands, item, error):
    """Run a verb whose undo of an item raises before it acts: `KeyboardInterrupt`, as if the process had died."""
    hands.errors[item] = error()
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else RollbackIncomplete):
        verb()
    hands.errors.clear()


# -- dead processes


def test_an_interrupted_reversal_leaves_its_effect_unknown(agent, hands, repo, world):
    stopped(lambda: agent.rollback("before"), hands, "sofa", KeyboardInterrupt)
    with pytest.raises(WorldDiverged, match="unknown whether it has been reversed"):
        agent.run("and now?")
    with pytest.raises(RollbackBlocked, match="unknown whether it has been reversed"):
        agent = agent.switch("main", "world")
    assert world.items == ["chair", "table", "sofa"]
    repo.resolve(agent.tool_track()[-1], "did_not_happen")
    assert agent.run("look") == "done"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_plan_says_whether_an_undo_that_runs_again_was_killed_or_raised(world, hands, repo, error):
    graph = tool_node_graph(obedient(), world.tools())
    effects = world.effects(add=compensable(hands.undo, undo_if_unknown=True))
    agent = repo.wrap(graph, "s", effects=effects)
    agent.run("add chair")
    stopped(lambda: agent.rollback("main#1"), hands, "chair", error)
    cause = "was interrupted" if error is KeyboardInterrupt else "raised"
    (step,) = agent.plan_rollback("main#1").steps
    assert step.why.endswith(f"; again: its undo {cause}, it may have happened")
    (item,) = agent.rollback("main#1").report.reversed
    assert item.reason == step.why


def test_the_sentence_of_an_undo_that_raised_ends_with_one_full_stop(agent, hands):
    hands.errors["sofa"] = ValueError("The shop is closed.")
    with pytest.raises(RollbackIncomplete, match=r"The shop is closed\. The previous branch"):
        agent.rollback("before")


def test_a_killed_rollback_does_not_lock_its_session(agent, hands, repo, world):
    stopped(lambda: agent.rollback("before"), hands, "table", KeyboardInterrupt)
    assert world.items == ["chair", "table"]
    with pytest.raises(RollbackBlocked, match="unknown whether an earlier rollback reversed it"):
        agent.rollback("before")
    assert [operation.status for operation in repo.session("s").operations()] == ["partial"]
    repo.resolve(agent.tool_track()[-2], "did_not_happen")
    agent.rollback("before")
    assert world.items == ["chair"]
    assert repo.resume(repo.session("s").operations()[-1]).status == "done"
    assert world.items == ["chair"]


def test_an_interrupted_call_of_a_dead_turn_stops_other_branches(repo, world, hands):
    agent = wrapped(repo, world, hands)
    agent.run("add chair")
    other = agent.fork(name="other")
    world.items.append("table")  # the call acted, and its process died before it recorded that
    backend.leave_running(repo, agent.branch, item="table")
    with pytest.raises(WorldDiverged, match="unknown whether it happened"):
        other.run("look")


def test_recover_releases_a_rollback_of_another_machine(agent, hands, repo, world):
    """A rollback whose process cannot be checked is resumed only after a person calls recover."""
    with faults.on_another_machine(), faults.setting(points.GIVE_BACK, lambda *_: None):  # as if it had died
        stopped(lambda: agent.rollback("before", name="back"), hands, "sofa", KeyboardInterrupt)
    operation = repo.session("s").operations()[0]
    with pytest.raises(Conflict, match="is in progress"):
        repo.resume(operation)
    assert repo.session("s").recover(branch="back").status == "partial"
    repo.resolve(agent.tool_track()[-1], "did_not_happen")
    assert repo.resume(operation).status == "done"
    assert world.items == ["chair"]


# -- resumed operations


def test_resume_is_refused_while_a_turn_runs_and_after_an_irreversible_effect(agent, hands, repo, world):
    """With force, a mail that was sent since then is kept and reported, and the rest is reversed."""
    stopped(lambda: agent.rollback("before"), hands, "table", RuntimeError)
    operation = repo.session("s").operations()[-1]
    stream = agent.fork("before", name="other").switch("other", "ignore").stream(say("look"))
    next(stream)
    with pytest.raises(Conflict, match="running"):
        repo.resume(operation)
    stream.close()
    agent.switch("main", "ignore").run("send hello")
    with pytest.raises(RollbackBlocked, match="force"):
        repo.resume(operation)
    assert (world.items, repo.session("s").operations()[-1].status) == (["chair", "table"], "partial")
    report = repo.resume(operation, force=True)
    assert [item.invocation.tool_name for item in report.kept] == ["send"]
    assert (world.items, world.sent, report.status) == (["chair"], ["hello"], "done")


def test_a_forced_resume_abandons_a_reversal_that_always_fails(agent, hands, repo, world):
    """With force the rollback ends, the report lists the kept effect, and a later rollback accepts it."""
    hands.errors["table"] = RuntimeError("broken for ever")
    with pytest.raises(RollbackIncomplete, match="force"):
        agent.rollback("before", name="back")
    report = repo.resume(repo.session("s").operations()[0], force=True)
    assert [(item.invocation.args["item"], "broken for ever" in item.reason) for item in report.kept] == [
        ("table", True)
    ]
    assert world.items == ["chair", "table"]
    back = wrapped(repo, world, hands, branch="back")
    back.run("add lamp")
    back.rollback("main#1")
    assert world.items == ["table"]


def test_a_forced_resume_abandons_a_switch_that_always_fails(repo, world, hands):
    add, *others = world.tools()
    sold_out = []

    @functools.wraps(add.func)
    def selling(**args):
        if sold_out:
            raise RuntimeError("sold out")
        return add.func(**args)

    graph = tool_node_graph(obedient(), [add.model_copy(update={"func": selling}), *others])
    agent = repo.wrap(graph, "s", effects=world.effects(add=reversible(hands.undo)))
    agent.run("add chair")
    before = agent.checkpoint()
    agent.run("add table")
    agent.rollback(before)
    sold_out.append(True)
    with pytest.raises(RollbackIncomplete, match="sold out"):
        agent.switch("main", "world")
    with pytest.raises(Conflict, match="resume"):
        agent.run("look")
    report = repo.resume(repo.session("s").operations()[0], force=True)
    assert [item.invocation.args["item"] for item in report.gone] == ["table"]
    assert world.items == ["chair"]
    assert wrapped(repo, world, hands, branch="main").run("look") == "done"


def test_a_resumed_switch_redoes_effects_reversed_in_between(repo, world, hands):
    agent = wrapped(repo, world, hands)
    agent.run("add chair")
    agent.run("add table")
    main = agent.head
    agent.rollback("HEAD~1", name="other").run("add lamp")
    stopped(lambda: wrapped(repo, world, hands, branch="other").switch("main", "world"), hands, "lamp", RuntimeError)
    operation = repo.session("s").operations()[0]
    wrapped(repo, world, hands, branch="other").rollback("main#1")
    with pytest.raises(PlanChanged) as refused:
        repo.resume(operation)
    assert world.items == []
    assert [step.invocation.args["item"] for step in refused.value.plan.redos] == ["table", "chair"]
    repo.resume(operation, plan=refused.value.plan)
    assert sorted(world.items) == ["chair", "table"]
    assert wrapped(repo, world, hands, branch="main").head.id == main.id


def test_a_resumed_switch_does_not_redo_an_effect_twice(repo, world, hands):
    """An effect that two branches share is in the world once after both switches, one of them resumed."""
    agent = wrapped(repo, world, hands)
    agent.run("add chair")
    twin = agent.fork(name="twin")
    agent.rollback("main#1", name="other").run("add lamp")
    stopped(lambda: wrapped(repo, world, hands, branch="other").switch("main", "world"), hands, "lamp", RuntimeError)
    operation = repo.session("s").operations()[0]
    twin = twin.switch("twin", "world")
    assert world.items == ["chair"]
    assert [item.invocation.args["item"] for item in repo.resume(operation).redone] == ["chair"]
    assert world.items == ["chair"]


def test_a_resumed_rollback_reverses_effects_redone_in_between(agent, hands, repo, world):
    twin = agent.fork(name="twin")
    stopped(lambda: agent.rollback("before", conversation=False), hands, "table", RuntimeError)
    assert world.items == ["chair", "table"]
    operation = repo.session("s").operations()[0]
    twin = twin.switch("twin", "world")
    with pytest.raises(PlanChanged, match="Nothing was done") as refused:
        repo.resume(operation)
    assert sorted(world.items) == ["chair", "sofa", "table"]
    assert "the conversation is unchanged" in str(refused.value.plan)
    report = repo.resume(operation, plan=refused.value.plan)
    assert world.items == ["chair"]
    assert sorted(item.invocation.args["item"] for item in report.reversed) == ["sofa", "sofa", "table"]


# -- other branches


def test_a_redone_effect_that_is_reversed_again_causes_divergence(repo, world, hands):
    agent = wrapped(repo, world, hands)
    before = agent.checkpoint("before")
    agent.run("add chair")
    other = agent.rollback(before, name="other")
    agent = agent.switch("main", "world")
    assert world.items == ["chair"]
    other.rollback(before)
    assert world.items == []
    with pytest.raises(WorldDiverged) as caught:
        wrapped(repo, world, hands, branch="main").run("look")
    assert [str(step.invocation) for step in caught.value.plan.redos] == ["add(item='chair')"]


def test_a_fork_inherits_the_divergence_of_its_branch(repo, world, hands):
    """A fork of a branch whose effect is reversed diverges as the branch does; a fork from before it runs."""
    agent = wrapped(repo, world, hands)
    before = agent.checkpoint("before")
    agent.run("add chair")
    assert agent.fork().run("look") == "done"
    agent.rollback(before)
    with pytest.raises(WorldDiverged):
        agent.fork().run("look")
    assert agent.fork("before").run("look") == "done"


# -- tools with `verify`


def test_verify_detects_an_undo_that_raised_after_it_acted(agent, hands, repo, world):
    hands.errors, hands.after = {"table": RuntimeError("no answer")}, True
    looking = wrapped(repo, world, hands, verify=True)
    report = looking.rollback("before").report
    assert [item.invocation.args["item"] for item in report.reversed] == ["sofa", "table"]
    assert (world.items, report.status) == (["chair"], "done")
    assert len(world.undone) == 2


def test_verify_detects_an_undo_that_a_person_has_done(agent, hands, repo, world):
    looking = wrapped(repo, world, hands, verify=True)
    stopped(lambda: looking.rollback("before"), hands, "table", RuntimeError)
    world.items.remove("table")
    assert repo.resume(repo.session("s").operations()[0]).status == "done"
    assert [args["item"] for _, args, _ in world.undone] == ["sofa"]


def test_a_call_that_is_verified_late_keeps_its_reversal_order(repo, world, hands):
    agent = wrapped(repo, world, hands, verify=True)
    agent.checkpoint("before")
    backend.leave_running(repo, agent.branch, item="first")
    world.items.append("first")
    agent.run("add second")
    agent.rollback("before")
    assert [args["item"] for _, args, _ in world.undone] == ["second", "first"]


# -- concurrent operations


@pytest.mark.long
def test_concurrent_rollbacks_of_a_session_never_overlap(database, world):
    acting, most = [], []

    def undo(args, result):
        acting.append(args)
        most.append(len(acting))
        threading.Event().wait(0.01)
        world.remove(args, result)
        acting.pop()

    with agentgit.open(database.url) as repo:
        first = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(add=reversible(undo)))
        first.checkpoint("before")
        first.run("add a; add b; add c")
        agents = [repo.wrap(first.graph, "s", effects=world.effects(add=reversible(undo))) for _ in range(4)]
        ready, refused = threading.Barrier(4), []

        def roll_back(agent):
            ready.wait()
            try:
                agent.rollback("before")
            except Conflict as error:
                refused.append(error)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(roll_back, agents))
        done = [operation for operation in repo.session("s").operations() if operation.status == "done"]
    assert max(most) == 1
    assert len(world.undone) == 3
    assert len(done) == 4 - len(refused) > 0


@pytest.mark.parametrize("again", [False, True])
def test_a_resumed_rollback_reports_which_effects_are_still_kept(agent, repo, world, again):
    """A resumed rollback with tools='keep' reports effects that others reversed since as reversed, not kept."""
    with faults.interrupted(points.PUBLISH_OPERATION), pytest.raises(KeyboardInterrupt):
        agent.rollback("before", tools="keep", name="kept")
    agent.switch("main", "ignore").rollback("before", name="clean")
    if again:
        agent = agent.switch("main", "world")
    report = repo.resume(next(one for one in repo.session("s").operations() if one.status == "partial"), force=True)
    kept, taken = ({item.invocation.args["item"] for item in items} for items in (report.kept, report.reversed))
    both, none = {"table", "sofa"}, set()
    assert (kept, taken, set(world.items) & both) == ((both, none, both) if again else (none, both, none))
