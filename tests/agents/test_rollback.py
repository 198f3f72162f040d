"""A rollback makes a branch, reverses later effects once, newest first, and reports what it did."""

import asyncio
from pathlib import Path

import backend
import processes
import pytest
from langchain_core.tools import tool
from scripted import GRAPHS, call, calls, obedient, scripted, tool_node_graph
from sqlalchemy import event

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, RollbackBlocked, RollbackIncomplete, reversible

STORY = (
    calls(call("add", item="chair"), call("look")), "a chair",
    calls(call("add", item="table"), call("charge", amount=5)), "a table",
    calls(call("add", item="sofa")), "a sofa",
)  # fmt: skip


def say(text: str) -> dict:
    return {"messages": [("user", text)]}


def ready(repo, world, *replies, session="s", **more):
    """Wrap the usual graph, order a chair, and return the agent and the checkpoint `before`."""
    graph = tool_node_graph(scripted(*(replies or STORY)), world.tools())
    agent = repo.wrap(graph, session, effects=world.effects(**more))
    agent.run("order a chair")
    return agent, agent.checkpoint("before")


def facts(agent) -> tuple:
    """Return everything that must not change on a branch that a rollback leaves."""
    return agent.history(), [c.to_dict()["args"] for c in agent.tool_track()], [p.id for p in agent.checkpoints()]


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_rollback_makes_a_branch_and_reverses_later_effects(kind, repo, world):
    """With any graph the old branch is unchanged, and the new branch and the world match the checkpoint."""
    agent = repo.wrap(GRAPHS[kind](scripted(*STORY), world.tools()), "s", effects=world.effects())
    agent.invoke(say("order a chair"))
    before = agent.checkpoint("before")
    agent.invoke(say("and a table"))
    left = facts(agent)
    assert (world.items, world.charges) == (["chair", "table"], [5])

    retry = agent.rollback("before")

    assert (world.items, world.charges) == (["chair"], [])
    assert facts(agent) == left
    assert retry.branch.name == "main-2"
    assert retry.branch.is_current
    assert retry.branch.branch_point_checkpoint_id == before.id
    assert retry.branch.parent_session_id == agent.branch.id
    assert retry.history() == before.conversation_history
    assert retry.head.metadata["state_hash"] == before.metadata["state_hash"]
    assert retry.invoke(say("rather a sofa"))["messages"][-1].content == "a table"
    assert facts(agent) == left


def test_a_rollback_replays_the_track_from_the_record(repo, world):
    """The new branch's track has the same calls, arguments and results, each linked to the call it replays."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    calls_made = len(world.log)
    retry = agent.rollback(before)
    assert len(world.log) == calls_made + 2  # only the two undo functions ran
    recorded, replayed = agent.tool_track(), retry.tool_track()
    assert len(replayed) == before.get_tool_track_position() == 2
    for old, new in zip(recorded, replayed, strict=False):
        assert (new.tool_name, new.args, new.result, new.position) == (
            old.tool_name,
            old.args,
            old.result,
            old.position,
        )
        assert new.replay_of == old.id
        assert new.internal_session_id == retry.branch.id
    assert [item.invocation.id for item in retry.report.replayed] == [c.id for c in replayed]


def test_the_old_branch_stays_readable_and_runnable(repo, world):
    """After a rollback both branches continue independently, each after it has accepted the world."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    retry = agent.rollback(before)
    agent = agent.switch("main", sync="ignore")  # accepts that the table was reversed
    assert agent.run("on with the old one") == "a sofa"
    retry = retry.switch("main-2", sync="ignore")
    assert retry.run("on with the new one") == "a table"
    assert len(agent.history()) == 14
    assert len(retry.history()) == 10
    assert [c.args.get("item") for c in agent.tool_track() if c.tool_name == "add"] == ["chair", "table", "sofa"]
    assert [c.args.get("item") for c in retry.tool_track() if c.tool_name == "add"] == ["chair", "table"]


def test_nested_rollbacks_restore_track_conversation_and_world(repo, world):
    """Rollbacks of rollbacks have the right track, conversation and world at every level."""
    agent = repo.wrap(
        tool_node_graph(scripted(*(r for n in range(9) for r in (call("add", item=str(n)), "ok"))), world.tools()),
        "s",
        effects=world.effects(),
    )
    agent.run("first")
    for depth in range(1, 6):
        agent.run(f"turn {depth}")
        agent.run("too much")
        agent = agent.rollback("HEAD~2")
        assert len(agent.tool_track()) == depth + 1
        assert len(world.items) == depth + 1
        assert len([m for m in agent.history() if m["role"] == "user"]) == depth + 1
    assert [b.name for b in agent.session.branches()] == ["main", "main-2", "main-3", "main-4", "main-5", "main-6"]
    root = agent.rollback("main#1")
    assert (world.items, root.history(), root.tool_track()) == ([], [], [])


def test_a_rollback_can_target_any_checkpoint_of_the_session(repo, world):
    """The target may be the first checkpoint, or one that is not on this branch's path."""
    agent, before = ready(repo, world)
    retry = agent.rollback("main#1", name="again")
    assert (world.items, retry.history()) == ([], [])
    retry.run("order a chair")
    over = retry.rollback(before)
    assert over.history() == before.conversation_history
    assert over.branch.parent_session_id == agent.branch.id
    assert world.items == []  # the chair of main was reversed by the first rollback, that of `again` by the second


def test_a_rollback_reverses_the_effects_of_all_branches_newest_first(repo, world):
    """Effects of all branches that are not on the path are reversed in the order opposite to the world log."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    before = agent.checkpoint("before")
    agent.fork(name="other")
    done = ["table", "sofa", "lamp", "desk", "bed"]
    for number, item in enumerate(done):
        agent = agent.switch(("other", "main")[number % 2], sync="ignore")
        agent.run(f"add {item}")
    agent.rollback(before)
    assert [args["item"] for args in world.happened("remove")] == done[::-1]
    assert world.items == ["chair"]


def test_each_effect_is_reversed_exactly_once(repo, world):
    """A second rollback over the same effects runs no undo twice."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    agent.rollback(before)
    agent.rollback(before)
    agent.rollback("main#1")
    assert sorted(name for name, *_ in world.undone) == ["refund", "remove", "remove"]
    assert sorted(args.get("item", "") for _, args, _ in world.undone) == ["", "chair", "table"]


def test_an_undo_receives_arguments_result_and_invocation(repo):
    """An undo function receives arguments and result, and with a third parameter also the invocation."""
    got = []

    @tool
    def order(item: str) -> dict:
        """Order."""
        return {"order_id": 41}

    graph = tool_node_graph(scripted(calls(call("order", item="x")), "ok"), [order])
    undo = reversible(lambda args, result, invocation: got.append((args, result, invocation.tool_name)))
    agent = repo.wrap(graph, "s", effects={"order": undo})
    agent.run("go")
    agent.rollback("main#1")
    assert got == [({"item": "x"}, {"order_id": 41}, "order")]


async def test_an_async_undo_runs_on_the_callers_event_loop(repo, world):
    """Arollback runs a coroutine undo on the same event loop."""
    loops = []

    async def undo(args, result):
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        world.items.remove(args["item"])

    graph = tool_node_graph(scripted(call("add", item="a"), "ok", call("add", item="b"), "ok"), world.tools())
    agent = repo.wrap(graph, "s", effects={"add": reversible(undo)})
    await agent.arun("one")
    await agent.arollback("main#1")
    assert loops == [asyncio.get_running_loop()]
    agent = await agent.aswitch("main", sync="ignore")
    await agent.arun("two")
    await asyncio.to_thread(agent.rollback, "main#2")
    assert world.items == []


def test_a_plan_lists_every_effect_and_changes_nothing(repo, world):
    """A plan lists each effect with its action and reason; nothing is run, made or changed."""
    agent, before = ready(repo, world, STORY[0], "ok", calls(*(call(*c[:1], **c[1]) for c in EVERY)), "done")
    agent.run("everything")
    left, log = facts(agent), list(world.log)
    plan = agent.plan_rollback(before)
    decided = {step.invocation.tool_name: step.action for step in plan.steps}
    assert decided == {"add": "reverse", "charge": "reverse", "send": "block", "note": "keep"}
    assert not plan.is_admissible
    assert all(step.why for step in plan.steps)
    assert (facts(agent), world.log, len(agent.session.branches())) == (left, log, 1)


EVERY = [
    ("add", {"item": "x"}), ("charge", {"amount": 1}), ("look", {}), ("send", {"text": "t"}), ("note", {"text": "n"}),
]  # fmt: skip


def test_irreversible_effects_block_a_rollback_before_it_starts(repo, world):
    """RollbackBlocked carries the plan, and nothing is done; with force the effects are kept and reported."""
    agent, before = ready(repo, world, STORY[0], "ok", calls(*(call(*c[:1], **c[1]) for c in EVERY)), "done")
    agent.run("everything")
    with pytest.raises(RollbackBlocked, match="cannot be undone") as caught:
        agent.rollback(before)
    assert [step.invocation.tool_name for step in caught.value.plan.blockers] == ["send"]
    assert len(agent.session.branches()) == 1
    assert world.undone == []
    forced = agent.rollback(before, force=True)
    assert {item.invocation.tool_name for item in forced.report.kept} == {"send", "note"}
    assert {item.invocation.tool_name for item in forced.report.reversed} == {"add", "charge"}
    assert world.sent == ["t"]
    assert world.items == ["chair"]


def test_undeclared_effects_are_listed_and_do_not_block(repo, world):
    """Undeclared effects stay in the world and are listed in the report."""
    agent, before = ready(repo, world, STORY[0], "ok", calls(call("note", text="n")), "done")
    agent.run("note it")
    retry = agent.rollback(before)
    (kept,) = retry.report.kept
    assert kept.invocation.tool_name == "note"
    assert "declare" in kept.reason


def test_tools_keep_leaves_the_world_and_require_clean_refuses_effects(repo, world):
    """Tools="keep" leaves the world unchanged; "require_clean" refuses if there is anything to reverse."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    with pytest.raises(RollbackBlocked, match="clean"):
        agent.rollback(before, tools="require_clean")
    kept = agent.rollback(before, tools="keep")
    assert world.items == ["chair", "table"]
    assert len(kept.report.kept) == 2
    assert agent.rollback("HEAD", tools="require_clean").report.reversed == []
    with pytest.raises(InvalidInput, match="tools must be"):
        agent.rollback(before, tools="maybe")
    with pytest.raises(InvalidInput, match="on_error must be"):
        agent.rollback(before, on_error="maybe")


def test_a_kept_effect_blocks_no_later_rollback(repo, world):
    """An effect kept by a forced rollback blocks no rollback of the new branch, but still one of the old branch."""
    agent, before = ready(repo, world, STORY[0], "ok", call("send", text="t"), "sent")
    agent.run("send")
    forced = agent.rollback(before, force=True)
    earlier = forced.fork().rollback("main#1")
    assert [item.reason for item in earlier.report.kept] == ["an earlier rollback kept it"]
    assert world.items == []
    with pytest.raises(RollbackBlocked):
        agent.rollback(before)


def test_failed_calls_are_never_reversed(repo, world):
    """A call that failed has no result to reverse; the report lists it as kept."""
    graph = tool_node_graph(scripted("hi", calls(call("fail", why="x")), "ok"), world.tools(), handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("hi")
    agent.run("try")
    retry = agent.rollback("HEAD~1")
    assert world.undone == []
    assert [item.invocation.tool_name for item in retry.report.kept] == ["fail"]


async def test_an_async_undo_works_inside_a_running_loop(repo, world):
    """A synchronous rollback inside a running event loop can wait for a coroutine undo."""

    async def undo(args, result):
        await asyncio.sleep(0)
        world.items.remove(args["item"])

    graph = tool_node_graph(scripted(call("add", item="a"), "ok"), world.tools())
    agent = repo.wrap(graph, "s", effects={"add": reversible(undo)})
    agent.run("one")
    agent.rollback("main#1")
    assert world.items == []


# -- failed reversals


def test_a_failing_undo_stops_the_rollback_until_it_is_resumed(repo, world):
    """The old branch stays as before, the report is exact, and resume does the rest exactly once."""
    one_by_one = (call("add", item="table"), call("charge", amount=5), "paid", call("add", item="sofa"), "a sofa")
    agent, before = ready(repo, world, *STORY[:2], *one_by_one)
    agent.run("and a table")
    agent.run("and a sofa")
    left = facts(agent)
    world.broken.add("5")
    with pytest.raises(RollbackIncomplete, match="5 is stuck") as caught:
        agent.rollback(before, name="retry")
    report = caught.value.report
    assert [item.invocation.args["item"] for item in report.reversed] == ["sofa"]
    assert [item.invocation.tool_name for item in report.failed] == ["charge"]
    assert [item.invocation.args["item"] for item in report.remaining] == ["table"]
    (operation,) = repo.session().operations()
    assert (operation.id, operation.status, operation.kind) == (caught.value.operation, "partial", "rollback")
    assert facts(agent) == left
    assert repo.session().branch(name="retry").status == "partial"
    assert repo.session().branch().name == "main"
    with pytest.raises(Conflict, match="resume"):
        repo.wrap(agent.graph, "s", branch="retry").run("hi")

    with pytest.raises(RollbackIncomplete):
        repo.resume(operation)
    world.broken.clear()
    assert repo.resume(operation).status == "done"
    assert (world.items, world.charges) == (["chair"], [])
    assert [args.get("item") for name, args, _ in world.undone if name == "remove"] == ["sofa", "table"]
    assert repo.session().operations()[0].status == "done"
    assert repo.session().branch().name == "retry"
    assert repo.resume(operation).status == "done"  # a second resume does nothing


def test_on_error_continue_tries_the_remaining_reversals(repo, world):
    """With on_error="continue" every reversal is tried once, and the rollback is still incomplete."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    world.broken.add("5")
    with pytest.raises(RollbackIncomplete) as caught:
        agent.rollback(before, on_error="continue")
    assert [item.invocation.tool_name for item in caught.value.report.failed] == ["charge"]
    assert [item.invocation.tool_name for item in caught.value.report.reversed] == ["add"]
    assert caught.value.report.remaining == []


def test_a_failed_reversal_can_be_resolved_as_happened(repo, world):
    """Repo.resolve records that a person reversed the call, and resume continues without repeating it."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    world.broken.add("5")
    with pytest.raises(RollbackIncomplete) as caught:
        agent.rollback(before)
    failed = caught.value.report.failed[0].invocation
    with pytest.raises(InvalidInput, match="happened"):
        repo.resolve(failed, "maybe")
    assert repo.resolve(failed, "did_not_happen").status == "reverse_failed"
    assert repo.resolve(failed, "happened").status == "reversed"
    with pytest.raises(InvalidInput, match="nothing to resolve"):
        repo.resolve(failed, "happened")
    assert repo.resume(caught.value.operation).status == "done"
    assert world.charges == [5]  # resolved as reversed by a person, so the undo did not run again


@pytest.mark.long
def test_a_repeated_request_id_returns_the_same_branch(repo, world):
    """A repeated request makes no second rollback, and its id is refused for another target."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    first = agent.rollback(before, request_id="r1")
    second = agent.rollback(before, request_id="r1")
    assert first.branch.id == second.branch.id
    assert first.report.to_dict() == second.report.to_dict()
    assert len(world.undone) == 2
    with pytest.raises(InvalidInput, match="r1"):
        agent.rollback("main#1", request_id="r1")


def test_a_request_id_is_refused_for_a_different_operation(repo, world):
    """An id that was used with other arguments or for a switch is refused, and nothing is done."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    agent.rollback(before, request_id="r1", tools="keep")
    for other in ({}, {"conversation": False}, {"tools": "keep", "replay": "redo"}):
        with pytest.raises(InvalidInput, match=r"r1.*tools: keep.*use another one"):
            agent.rollback(before, request_id="r1", **other)
    assert not world.undone
    assert len(agent.session.branches()) == 2
    switch = agent.switch("main", sync="ignore") and repo.session().operations()[0]
    with pytest.raises(InvalidInput, match="was used for a switch"):
        agent.rollback(before, request_id=switch.request_id)


@pytest.mark.parametrize("lazy", [
    lambda did: lambda args, result: (did(args) for _ in "1"),
    lambda did: lambda args, result: map(did, [args]),
])  # fmt: skip
def test_an_undo_that_returns_an_unconsumed_iterator_has_failed(repo, world, lazy):
    """An undo function that returns a generator or a map has done nothing, so its call is not reversed."""
    agent = repo.wrap(
        tool_node_graph(scripted(call("add", item="chair"), "done"), world.tools()), "s",
        effects=world.effects(add=reversible(lazy(lambda args: world.items.remove(args["item"])))),
    )  # fmt: skip
    agent.run("order a chair")
    with pytest.raises(RollbackIncomplete, match="that has not run"):
        agent.rollback("main#1")
    assert agent.tool_track()[0].status == "reverse_failed"
    assert world.items == ["chair"]


def test_an_exception_whose_str_raises_is_journaled(repo):
    """An exception without readable text of a tool, precheck or undo is recorded with the true status."""

    class Mute(Exception):
        def __str__(self):
            raise ValueError("no text")

    def refuse(*_):
        raise Mute

    @tool
    def put(item: str) -> str:
        """Put."""
        if item == "bad":
            raise Mute
        return item

    story = scripted(call("put", item="good"), "done", call("put", item="bad"))
    agent = repo.wrap(tool_node_graph(story, [put]), "s", effects={"put": reversible(refuse)})
    agent.run("put it")
    with pytest.raises(Mute):
        agent.run("put it")
    assert [(c.status, c.error_message) for c in agent.tool_track()] == [("done", None), ("unknown", "Mute")]
    with pytest.raises(RollbackIncomplete, match="its undo raised Mute"):
        agent.rollback("main#1")
    assert agent.tool_track()[0].status == "reverse_failed"
    checked = repo.wrap(agent.graph, "s", effects={"put": reversible(refuse, precheck=refuse)})
    assert "its precheck raised Mute" in str(checked.plan_rollback("main#1"))


def test_a_running_branch_cannot_be_rolled_back(repo, world):
    """Bad input: while a turn runs, rollback and checkpoint of its branch raise Conflict, and nothing is done."""
    agent, _ = ready(repo, world)
    stream = agent.stream(say("and a table"))
    next(stream)
    with pytest.raises(Conflict, match="running"):
        agent.rollback("before")
    with pytest.raises(Conflict, match="running"):
        agent.checkpoint("now")
    stream.close()
    assert len(agent.session.branches()) == 1


# -- restarts and crashes


def undo_file(args, result):
    """Undo the tool `touch` of the child process."""
    Path(result["path"]).unlink()


TOUCHING = {"touch": reversible(undo_file)}
"""The declarations that a process gets by trusting this module."""


CHILD = """
import sys
from pathlib import Path
import agentgit
from langchain_core.tools import tool
from scripted import call, calls, scripted, tool_node_graph

@tool
def touch(name: str) -> dict:
    "Make a file."
    path = Path(name)
    path.write_text("here")
    if name == "die":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"path": str(path)}}

graph = tool_node_graph(scripted(call("touch", name="a"), "ok", calls(call("touch", name={second!r})), "ok"), [touch])
repo = agentgit.open({database!r})
agent = repo.wrap(graph, "s", effects={{"touch": agentgit.reversible("test_rollback:undo_file")}})
agent.run("one")
agent.run("two")
"""


def run_child(database, folder: Path, second: str) -> int:
    code = CHILD.format(database=database.url.render_as_string(hide_password=False), second=second)
    return processes.run(code, cwd=folder).returncode


def test_a_trusted_module_provides_the_undo_after_a_restart(repo, database, tmp_path, monkeypatch):
    """After a restart, without the graph and effects=, a rollback uses the undo of a trusted module."""
    folder = tmp_path / "work"
    folder.mkdir()
    assert run_child(database, folder, "b") == 0
    monkeypatch.chdir(folder)
    agent = repo.wrap(tool_node_graph(scripted("hi"), []), "s")
    with pytest.raises(RollbackBlocked, match="test_rollback:undo_file is not declared here"):
        agent.rollback("main#2")
    repo.trust(__name__)
    retry = agent.rollback("main#2")
    assert [item.invocation.args["name"] for item in retry.report.reversed] == ["b"]
    assert (folder / "a").exists()
    assert not (folder / "b").exists()


def test_a_missing_undo_function_blocks_the_rollback(repo, world):
    """A local undo function does not survive a restart, so the rollback is refused before anything happens."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    with agentgit.open(backend.url(repo)) as later:
        again = later.wrap(tool_node_graph(scripted("hi"), []), "s")
        with pytest.raises(RollbackBlocked, match="wrap the graph again"):
            again.rollback(before)
    assert world.undone == []


def test_a_call_whose_process_was_killed_is_unknown_and_blocks(repo, database, tmp_path, monkeypatch):
    """After kill -9 inside a tool the branch is open again, and its unknown call blocks until it is resolved."""
    folder = tmp_path / "work"
    folder.mkdir()
    assert run_child(database, folder, "die") == -9
    monkeypatch.chdir(folder)
    assert repo.session("s").branch().status == "running"
    agent = repo.wrap(tool_node_graph(scripted("ok", "ok", "well"), []), "s")
    assert not agent.plan_rollback("main#2").is_admissible
    assert [c.status for c in agent.tool_track()] == ["done", "unknown"]
    assert repo.session("s").branch().status == "open"
    with pytest.raises(RollbackBlocked, match="unknown"):
        agent.rollback("main#2")
    # No result was recorded that the undo could use, so the person resolves the call as one that did not happen.
    seen = repo.resolve(agent.tool_track()[1], "did_not_happen")
    assert seen.status == "failed"
    assert agent.rollback("main#2").branch.name == "main-2"


KILLED = """
import contextlib, os, signal
import agentgit, faults, points, test_rollback
from scripted import World, scripted, tool_node_graph
world = World()
def undo(world, args, result):
    print(args["item"], flush=True)
    if args["item"] == "table" and {die!r} == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
undo.__module__, undo.__qualname__ = "scripted", "World.remove"
World.remove = undo
repo = agentgit.open({database!r})
agent = repo.wrap(tool_node_graph(scripted("x"), world.tools()), "s", effects=world.effects())
with faults.killed(points.OPEN_NEW_BRANCH) if {die!r} == "publish" else contextlib.nullcontext():
    agent.rollback("before", request_id="r")
"""


@pytest.mark.parametrize("die", ["inside", "publish"])
def test_resume_finishes_a_rollback_that_was_killed_halfway(die, repo, database, world):
    """After kill -9 in an undo or before publishing, the old branch is unchanged and resume repeats no undo."""
    agent, _ = ready(repo, world, STORY[0], "ok", call("add", item="table"), "ok", call("add", item="sofa"), "ok")
    agent.run("table")
    agent.run("sofa")
    left = facts(agent)
    code = KILLED.format(database=database.url.render_as_string(hide_password=False), die=die)
    done = processes.run(code)
    assert done.returncode == -9, done.stderr
    assert done.stdout.split() == ["sofa", "table"]
    assert facts(agent) == left
    assert repo.session("s").branch().name == "main"
    (operation,) = repo.session("s").operations()
    assert operation.status == "running"
    if die == "inside":  # it is unknown whether the undo of the table took effect
        with pytest.raises(RollbackIncomplete, match="unknown"):
            repo.resume(operation)
        repo.resolve(agent.tool_track()[-2], "happened")
    report = repo.resume(operation)
    assert report.status == "done"
    assert [item.invocation.args["item"] for item in report.reversed] == ["sofa", "table"]
    assert world.undone == []
    assert repo.session("s").branch().name == report.branch == "main-2"


# -- fork, undo, switch


def test_fork_makes_a_branch_without_touching_the_world(repo, world):
    """A fork leaves the world and the current branch unchanged, and an invalid or taken name is refused."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    log = list(world.log)
    here, there = agent.fork(), agent.fork(before, name="there")
    assert world.log == log
    assert here.history() == agent.history()
    assert there.history() == before.conversation_history
    assert (here.branch.name, there.branch.name) == ("main-2", "there")
    assert agent.branch.is_current
    assert [c.replay_of for c in here.tool_track()] == [c.id for c in agent.tool_track()]
    assert here.report is None
    with pytest.raises(Conflict, match="there"):
        agent.fork(name="there")
    for bad in ("", "a#1", "a~", "HEAD", "12", "a\nb"):
        with pytest.raises(InvalidInput, match="called"):
            agent.fork(name=bad)


def test_undo_steps_back_to_the_previous_differing_checkpoint(repo, world):
    """Undo() is a rollback to the previous checkpoint that differs; a second undo goes further back."""
    agent, _ = ready(repo, world)
    agent.run("and a table")
    once = agent.undo()
    assert world.items == ["chair"]
    assert len(once.history()) == 5
    twice = once.undo()
    assert (world.items, twice.history()) == ([], [])
    with pytest.raises(NotFound, match="no earlier"):
        twice.undo()


def test_undo_with_a_number_steps_back_in_one_rollback(repo, world):
    """Undo(n) is one rollback over n differing checkpoints; a number out of range is refused."""
    agent, _ = ready(repo, world)
    agent.run("and a table")
    assert agent.plan_undo(2).target == "main#1"
    back = agent.undo(2)
    assert (world.items, back.history(), len(agent.session.branches())) == ([], [], 2)
    with pytest.raises(NotFound, match="2 earlier checkpoints"):
        agent.undo(3)
    with pytest.raises(InvalidInput, match="from 1"):
        agent.undo(0)


async def test_plan_redo_lists_the_calls_that_redo_runs_again(repo, world):
    """Plan_redo() lists the calls of redo(), and raises NotFound if there was no rollback."""
    agent, _ = ready(repo, world)
    with pytest.raises(NotFound, match="nothing to redo"):
        agent.plan_redo()
    assert (await agent.aplan_undo()).target == "main#1"
    back = await agent.aundo(1)
    assert [step.invocation.args for step in (await back.aplan_redo()).redos] == [{"item": "chair"}]
    assert back.redo().branch.name == "main"
    assert world.items == ["chair"]


def test_undo_after_a_failed_turn_reverts_the_whole_turn(repo, world):
    """A turn that raised halfway is undone as a whole."""
    agent, _ = ready(repo, world, STORY[0], "ok", calls(call("add", item="table"), call("fail", why="x")))
    with pytest.raises(RuntimeError):
        agent.run("table, and fail")
    assert world.items == ["chair", "table"]
    back = agent.undo()
    assert world.items == ["chair"]
    assert back.history()[-1]["content"] == "ok"


def test_switch_continues_on_another_branch(repo, world):
    """Switch changes the session's current branch and returns an agent on it; the old agent keeps its branch."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    retry = agent.rollback(before)
    again = retry.switch("main", sync="ignore")
    assert (again.branch.name, retry.branch.name) == ("main", "main-2")
    assert repo.session("s").branch().name == "main"
    assert again.run("on") == "a sofa"


def test_rollbacks_of_two_sessions_are_independent(repo, world):
    """A rollback reverses only the effects of its session."""
    one, before = ready(repo, world, session="one")
    two, _ = ready(repo, world, session="two")
    two.run("and a table")
    one.rollback(before)
    assert world.items == ["chair", "chair", "table"]


def test_a_report_is_read_in_a_constant_number_of_statements(repo, world):
    """A report of many calls is read with as many SQL statements as a report of a few."""
    said, counts = [], set()
    event.listen(backend.database(repo).engine, "before_cursor_execute", lambda *told: said.append(told[2]))
    for name, many in (("few", 3), ("many", 30)):
        asked = calls(*(call("add", item=f"{name}-{n}") for n in range(many)))
        agent = repo.wrap(tool_node_graph(scripted(asked, "ok"), world.tools()), name, effects=world.effects())
        before = agent.checkpoint("before")
        agent.run("go")
        back = agent.rollback(before)
        said.clear()
        assert sorted(item.invocation.position for item in back.report.reversed) == list(range(many))
        counts.add(len(said))
    assert len(counts) == 1
