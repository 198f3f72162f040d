"""A rollback makes a branch, reverses later effects once, newest first, and reports what it did."""

import asyncio

import backend
import pytest
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import tool
from scripted import GRAPHS, call, calls, obedient, scripted, tool_node_graph
from sqlalchemy import event

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
    agent, before = ready(repo, world)
    agent.run("and a table")
    calls_made = len(world.log)
    retry = agent.rollback(before)
    assert len(world.log) == calls_made + 2  # only the two undo functions ran
    recorded, replayed = agent.tool_track(), retry.tool_track()
    assert len(replayed) == before.get_tool_track_position() == 2
    for old, new in zip(recorded, replayed, strict=False):
        same = "tool_name", "args", "result", "position"
        assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
        assert new.replay_of == old.id
        assert new.internal_session_id == retry.branch.id
    assert [item.invocation.id for item in retry.report.replayed] == [c.id for c in replayed]


def test_nested_rollbacks_restore_track_conversation_and_world(repo, world):
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
    agent, before = ready(repo, world)
    retry = agent.rollback("main#1", name="again")
    assert (world.items, retry.history()) == ([], [])
    retry.run("order a chair")
    over = retry.rollback(before)
    assert over.history() == before.conversation_history
    assert over.branch.parent_session_id == agent.branch.id
    assert world.items == []  # the chair of main was reversed by the first rollback, that of `again` by the second


def test_a_rollback_reverses_the_effects_of_all_branches_newest_first(repo, world):
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
    agent, before = ready(repo, world)
    agent.run("and a table")
    agent.rollback(before)
    agent.rollback(before)
    agent.rollback("main#1")
    assert sorted(name for name, *_ in world.undone) == ["refund", "remove", "remove"]
    assert sorted(args.get("item", "") for _, args, _ in world.undone) == ["", "chair", "table"]


def test_an_undo_receives_arguments_result_and_invocation(repo):
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


async def test_an_async_undo_runs_on_the_callers_loop_or_beside_it(repo, world):
    """It runs on another loop only if a blocking verb keeps the caller's loop from running it."""
    loops = []

    async def undo(args, result):
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        world.items.remove(args["item"])

    async def in_a_pool(agent):
        with ContextThreadPoolExecutor(1) as pool:  # blocks this loop
            list(pool.map(lambda _: agent.session.rollback("main#1"), [0]))

    async def at_once(agent):
        agent.rollback("main#1")

    graph = tool_node_graph(obedient(), world.tools())
    for name, roll_back, is_here in (
        ("agent", lambda agent: agent.arollback("main#1"), True),
        ("session", lambda agent: agent.session.arollback("main#1"), True),
        ("thread", lambda agent: asyncio.to_thread(agent.rollback, "main#1"), False),
        ("pool", in_a_pool, False),
        ("blocking", at_once, False),
    ):
        agent = repo.wrap(graph, name, effects={"add": reversible(undo)}, check_effects=False)
        await agent.arun("add chair")
        await roll_back(agent)
        assert (world.items, name, loops.pop() is asyncio.get_running_loop()) == ([], name, is_here)


def test_irreversible_effects_block_a_rollback_before_it_starts(repo, world):
    """A plan and the error list each effect with its reason; with force what cannot be undone is kept."""
    every = calls(
        call("add", item="x"), call("charge", amount=1), call("look"), call("send", text="t"), call("note", text="n")
    )
    agent, before = ready(repo, world, STORY[0], "ok", every, "done")
    agent.run("everything")
    left, log = facts(agent), list(world.log)
    plan = agent.plan_rollback(before)
    decided = {step.invocation.tool_name: step.action for step in plan.steps}
    assert decided == {"add": "reverse", "charge": "reverse", "send": "block", "note": "keep"}
    assert not plan.is_admissible
    assert all(step.why for step in plan.steps)
    with pytest.raises(RollbackBlocked, match="cannot be undone") as caught:
        agent.rollback(before)
    assert [step.invocation.tool_name for step in caught.value.plan.blockers] == ["send"]
    assert (facts(agent), world.log, len(agent.session.branches())) == (left, log, 1)
    forced = agent.rollback(before, force=True)
    kept = {item.invocation.tool_name: item.reason for item in forced.report.kept}
    assert set(kept) == {"send", "note"}
    assert "declare" in kept["note"]
    assert {item.invocation.tool_name for item in forced.report.reversed} == {"add", "charge"}
    assert (world.sent, world.items) == (["t"], ["chair"])


def test_tools_keep_leaves_the_world_and_require_clean_refuses_effects(repo, world):
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
    agent, before = ready(repo, world, STORY[0], "ok", call("send", text="t"), "sent")
    agent.run("send")
    forced = agent.rollback(before, force=True)
    earlier = forced.fork().rollback("main#1")
    assert [item.reason for item in earlier.report.kept] == ["an earlier rollback kept it"]
    assert world.items == []
    with pytest.raises(RollbackBlocked):
        agent.rollback(before)


def test_failed_calls_are_never_reversed(repo, world):
    graph = tool_node_graph(scripted("hi", calls(call("fail", why="x")), "ok"), world.tools(), handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("hi")
    agent.run("try")
    retry = agent.rollback("HEAD~1")
    assert world.undone == []
    assert [item.invocation.tool_name for item in retry.report.kept] == ["fail"]


# -- failed reversals


def test_a_failing_undo_stops_the_rollback_until_it_is_resumed(repo, world):
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
    with pytest.raises(Conflict):
        repo.session("s").switch("retry")

    with pytest.raises(RollbackIncomplete):
        repo.resume(operation)
    world.broken.clear()
    with pytest.raises(RollbackIncomplete, match="unknown whether it was reversed"):
        repo.resume(operation)  # the refund raised, and may have been paid
    repo.resolve(report.failed[0].invocation, "did_not_happen")
    assert repo.resume(operation).status == "done"
    assert (world.items, world.charges) == (["chair"], [])
    assert [args.get("item") for name, args, _ in world.undone if name == "remove"] == ["sofa", "table"]
    assert repo.session().operations()[0].status == "done"
    assert repo.session().branch().name == "retry"
    assert repo.resume(operation).status == "done"  # a second resume does nothing


def test_on_error_continue_tries_the_other_reversals_and_a_person_resolves_the_failed_one(repo, world):
    agent, before = ready(repo, world)
    agent.run("and a table")
    world.broken.add("5")
    with pytest.raises(RollbackIncomplete) as caught:
        agent.rollback(before, on_error="continue")
    report = caught.value.report
    assert [item.invocation.tool_name for item in report.failed] == ["charge"]
    assert [item.invocation.tool_name for item in report.reversed] == ["add"]
    assert report.remaining == []
    failed = report.failed[0].invocation
    with pytest.raises(InvalidInput, match="happened"):
        repo.resolve(failed, "maybe")
    assert repo.resolve(failed, "did_not_happen").status == "reverse_failed"
    assert repo.resolve(failed, "happened").status == "reversed"
    with pytest.raises(InvalidInput, match="nothing to resolve"):
        repo.resolve(failed, "happened")
    assert repo.resume(caught.value.operation).status == "done"
    assert world.charges == [5]  # resolved as reversed by a person, so the undo did not run again


def test_a_repeated_request_makes_no_second_rollback(repo, world):
    """Its id is refused for anything else."""
    agent, before = ready(repo, world)
    agent.run("and a table")
    agent.rollback(before, request_id="r1", tools="keep")
    for other in ({}, {"conversation": False}, {"tools": "keep", "replay": "redo"}):
        with pytest.raises(InvalidInput, match=r"r1.*tools: keep.*use another one"):
            agent.rollback(before, request_id="r1", **other)
    assert (world.undone, len(agent.session.branches())) == ([], 2)
    switch = agent.switch("main", sync="ignore") and repo.session().operations()[0]
    with pytest.raises(InvalidInput, match="was used for a switch"):
        agent.rollback(before, request_id=switch.request_id)
    first, second = (agent.rollback(before, request_id="r2") for _ in range(2))
    assert first.branch.id == second.branch.id
    assert first.report.to_dict() == second.report.to_dict()
    assert len(world.undone) == 2
    with pytest.raises(InvalidInput, match="r2"):
        agent.rollback("main#1", request_id="r2")


@pytest.mark.parametrize("lazy", [
    lambda did: lambda args, result: (did(args) for _ in "1"),
    lambda did: lambda args, result: map(did, [args]),
])  # fmt: skip
def test_an_undo_that_returns_an_unconsumed_iterator_has_failed(repo, world, lazy):
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
    agent, _ = ready(repo, world)
    stream = agent.stream(say("and a table"))
    next(stream)
    with pytest.raises(Conflict, match="running"):
        agent.session.rollback("before")
    with pytest.raises(Conflict, match="running"):
        agent.checkpoint("now")
    stream.close()
    assert len(agent.session.branches()) == 1


# -- fork, undo, switch


def test_fork_makes_a_branch_without_touching_the_world(repo, world):
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


def test_undo_steps_back_by_the_checkpoints_that_differ(repo, world):
    agent, _ = ready(repo, world)
    agent.run("and a table")
    whole = agent.plan_undo(2)
    assert (whole.target, len(whole.reversals)) == ("main#1", 3)
    once = agent.undo()
    assert (world.items, len(once.history())) == (["chair"], 5)
    twice = once.undo()
    assert (world.items, twice.history()) == ([], [])
    with pytest.raises(NotFound, match="no earlier"):
        twice.undo()
    at_once = agent.undo(2)
    assert (at_once.history(), len(agent.session.branches())) == ([], 4)
    with pytest.raises(NotFound, match="2 earlier checkpoints"):
        agent.undo(3)
    with pytest.raises(InvalidInput, match="from 1"):
        agent.undo(0)


async def test_plan_redo_lists_the_calls_that_redo_runs_again(repo, world):
    agent, _ = ready(repo, world)
    with pytest.raises(NotFound, match="nothing to redo"):
        agent.plan_redo()
    assert (await agent.aplan_undo()).target == "main#1"
    back = await agent.aundo(1)
    assert [step.invocation.args for step in (await back.aplan_redo()).redos] == [{"item": "chair"}]
    assert back.redo().branch.name == "main"
    assert world.items == ["chair"]


def test_undo_after_a_failed_turn_reverts_the_whole_turn(repo, world):
    agent, _ = ready(repo, world, STORY[0], "ok", calls(call("add", item="table"), call("fail", why="x")))
    with pytest.raises(RuntimeError):
        agent.run("table, and fail")
    assert world.items == ["chair", "table"]
    back = agent.undo()
    assert world.items == ["chair"]
    assert back.history()[-1]["content"] == "ok"


def test_a_report_is_read_in_a_constant_number_of_statements(repo, world):
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
