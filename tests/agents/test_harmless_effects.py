"""Tools that change only the state of the graph or only files of the workspace, and what reports say of them."""

import operator
from typing import Annotated, Any

import pytest
from file_tools import Desk, desk, home
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.config import get_config
from langgraph.graph import MessagesState
from langgraph.types import Command, RetryPolicy, interrupt
from scripted import call, calls, say, scripted, tool_node_graph

from agentgit import InvalidInput, RollbackBlocked, Workspace, effect

__all__ = ["desk", "home"]  # the fixtures

FILES = {"write_file": "workspace", "delete_file": "workspace"}


class Notes(MessagesState):
    """A conversation with notes."""

    notes: Annotated[list[str], operator.add]


@tool
def note(text: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write a note into the state."""
    return Command(update={"notes": [text], "messages": [ToolMessage("noted", tool_call_id=call_id)]})


@tool
def jot(text: str) -> str:
    """Write a note into the state, as deepagents does it: without a command."""
    get_config()["configurable"]["__pregel_send"]([("notes", [text])])
    return "jotted"


NOTES = {"note": "state", "jot": "state"}


def notes_graph(model, *tools, retry=None):
    return tool_node_graph(model, [note, jot, *tools], retry=retry, schema=Notes)


# -- state


def test_a_state_call_is_taken_back_without_a_line(repo):
    """Neither plan nor report lists it, whatever the rollback does with tools."""
    agent = repo.wrap(notes_graph(scripted(call("note", text="a"), call("jot", text="b"), "done")), "s", effects=NOTES)
    before = agent.checkpoint("before")
    agent.invoke(say())
    assert agent.state["notes"] == ["a", "b"]
    assert [one.effect for one in agent.tool_track()] == ["state", "state"]
    plan = agent.plan_rollback(before)
    assert (plan.steps, plan.changes_world) == ([], False)
    for tools in ("reverse", "keep", "require_clean"):
        back = agent.rollback(before, tools=tools)
        assert back.state.get("notes", []) == []
        assert not any(items for group, items in back.report.groups().items() if group != "replayed")


@pytest.mark.parametrize("effects", [NOTES, NOTES | {"deliver": "idempotent"}])
@pytest.mark.parametrize("why", ["resumed", "retried"])
def test_a_state_call_without_a_command_runs_again_with_its_task(repo, world, effects, why):
    """Because its writes were lost."""
    fails = [ConnectionError("not yet")] if why == "retried" else []

    @tool
    def deliver(item: str) -> str:
        """Deliver, if a person agrees or the second time."""
        if fails:
            raise fails.pop()
        world.items.append(f"{item} for {interrupt('for whom?') if why == 'resumed' else 'Ann'}")
        return "delivered"

    batch = calls(call("jot", text="a"), call("note", text="b"), call("deliver", item="chair"))
    graph = notes_graph(scripted(batch, "done"), deliver, retry=RetryPolicy(initial_interval=0.01))
    agent = repo.wrap(graph, "s", effects=effects)
    before = agent.checkpoint("before")
    agent.invoke(say())
    if why == "resumed":
        agent.invoke(Command(resume="Ann"))
    assert sorted(agent.state["notes"]) == ["a", "b"]
    assert world.items == ["chair for Ann"]
    assert {item.invocation.tool_name for item in agent.rollback(before).report.kept} == {"deliver"}


def test_replay_execute_answers_state_and_workspace_calls_from_the_record(repo, desk):
    script = scripted(call("note", text="a"), call("write_file", path="a.txt", text="1"), call("add", item="x"), "done")
    graph = notes_graph(script, *desk.tools())
    effects = NOTES | FILES | {"shell": "irreversible", "add": desk.world.effects()["add"]}
    agent = repo.wrap(graph, "s", effects=effects, workspace=desk.root)
    agent.invoke(say())
    plan = agent.plan_rollback(agent.head, replay="execute")
    assert [(step.action, step.invocation.tool_name) for step in plan.steps] == [
        ("reverse", "add"),
        ("answer", "note"),
        ("answer", "write_file"),
        ("redo", "add"),
    ]
    again = agent.rollback(agent.head, replay="execute")
    assert (again.state["notes"], desk.files, desk.world.items) == (["a"], {"a.txt": "1"}, ["x"])
    assert [one.tool_name for one in again.tool_track()] == ["note", "write_file", "add"]


def test_a_nested_effect_is_not_hidden_by_the_state_call_around_it(repo, world):
    send = world.tool("send")

    @tool
    def plan_and_send(text: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Send, and note it."""
        send.invoke({"text": text})
        return Command(update={"notes": [text], "messages": [ToolMessage("sent", tool_call_id=call_id)]})

    graph = notes_graph(scripted(call("plan_and_send", text="hi"), "done"), plan_and_send)
    effects = {"plan_and_send": "state", "send": "irreversible"}
    agent = repo.wrap(graph, "s", effects=effects, check_effects=False)
    before = agent.checkpoint("before")
    agent.invoke(say())
    with pytest.raises(RollbackBlocked) as blocked:
        agent.rollback(before)
    assert [step.invocation.tool_name for step in blocked.value.plan.steps] == ["send"]
    blockers = agent.plan_rollback(agent.head, replay="execute").blockers
    assert [step.invocation.tool_name for step in blockers] == ["plan_and_send", "send"]


# -- workspace


def written(repo, desk: Desk, *orders: str, effects: Any = FILES, **options: Any):
    """Wrap a desk's graph, make the checkpoint `before`, and run the orders, one turn each."""
    agent = repo.wrap(desk.graph(), "s", effects=effects, **options)
    agent.checkpoint("before")
    for order in orders:
        agent.invoke(say(order))
    return agent


def test_a_workspace_call_goes_with_its_files(repo, desk):
    agent = written(repo, desk, "write a.txt hello", "write b.txt x; delete a.txt", workspace=desk.root)
    assert desk.files == {"b.txt": "x"}
    plan = agent.plan_rollback("before")
    assert (plan.steps, [change.path for change in plan.files.changes]) == ([], ["b.txt"])
    back = agent.rollback("before")
    assert (desk.files, back.report.kept) == ({}, [])
    forth = back.switch("main", sync="world")
    assert (desk.files, forth.report.kept, forth.report.gone) == ({"b.txt": "x"}, [], [])


def test_kept_files_are_said_to_be_kept(repo, desk):
    agent = written(repo, desk, "write a.txt 1", workspace=desk.root)
    second = agent.rollback("before")  # a.txt is gone
    second.invoke(say("write b.txt 2"))
    third = second.rollback("before", files=False)
    (kept,) = third.report.kept
    assert (kept.invocation.args["path"], desk.files) == ("b.txt", {"b.txt": "2"})
    assert kept.reason == "the files of the workspace are left as they are, as requested"
    fourth = third.rollback("before", files=False)
    assert [item.reason for item in fourth.report.kept] == ["an earlier rollback kept it"]
    assert fourth.rollback("before").report.kept == []
    assert desk.files == {}


def test_files_that_were_rewound_are_not_said_to_be_kept(repo, desk):
    agent = written(repo, desk, "write a.txt 1", workspace=desk.root)
    middle = agent.checkpoint("middle")
    agent.invoke(say("write b.txt 2"))
    agent.rewind_files(middle)
    agent.invoke(say("write c.txt 3"))
    assert set(desk.files) == {"a.txt", "c.txt"}
    kept = {step.invocation.args["path"] for step in agent.plan_rollback("before", files=False).kept}
    assert kept == {"a.txt", "c.txt"}


def test_without_a_snapshot_the_files_are_said_to_stay(repo, desk):
    agent = written(repo, desk, "write a.txt 1")
    (step,) = agent.plan_rollback("before").steps
    assert (step.action, step.why) == ("keep", "there is no snapshot to restore its files from")
    agent.rollback("before")
    assert desk.files == {"a.txt": "1"}


def test_files_outside_the_workspace_and_excluded_files_are_not_covered(repo, desk, tmp_path):
    """No snapshot has them, so a call that names one is undeclared, and is listed."""
    outside = tmp_path / "outside.txt"
    (desk.root / "link").symlink_to(tmp_path)
    for name in (".git", "cache"):
        (desk.root / name).mkdir()
        (desk.root / name / "old").write_text("old", "utf-8")
    uncovered = [str(outside), "../up.txt", "link/linked.txt", "a.log", ".git/old", "cache/new"]
    orders = "; ".join(f"write {path} 1" for path in [*uncovered, "in.txt"])
    workspace = Workspace(desk.root, exclude_patterns=["*.log", "cache/"])
    agent = written(repo, desk, orders, workspace=workspace)
    assert {one.args["path"]: one.effect for one in agent.tool_track()} == (
        dict.fromkeys(uncovered, "undeclared") | {"in.txt": "workspace"}
    )
    why = "it changed files that are not saved, so it can only be undone by hand"
    assert {step.why for step in agent.plan_rollback("before").kept} == {why}
    back = agent.rollback("before")
    assert {item.invocation.args["path"]: item.reason for item in back.report.kept} == dict.fromkeys(uncovered, why)
    assert outside.exists()
    assert not (desk.root / "in.txt").exists()


def test_an_environment_of_the_user_decides_what_it_restores(repo, desk):
    """A custom environment may keep files anywhere, so a declared `workspace` call is believed."""

    class Environment:
        def checkpoint(self) -> str:
            return "1"

        def restore(self, id: str) -> None:
            (desk.root / "a.txt").unlink()

    (desk.root.parent / "storage").mkdir(exist_ok=True)
    workspace = Workspace(desk.root.parent / "storage", environment=Environment())
    agent = written(repo, desk, f"write {desk.root / 'a.txt'} 1", workspace=workspace)
    assert [one.effect for one in agent.tool_track()] == ["workspace"]
    assert (agent.rollback("before").report.kept, desk.files) == ([], {})


def test_files_of_another_branch_do_not_stop_a_branch(repo, desk):
    """The `workspace` calls of another branch are no effects that a branch must bring back first."""
    agent = written(repo, desk, "write a.txt 1", effects=FILES)
    other = agent.fork(name="other")
    other.invoke(say("write b.txt 2"))
    agent.invoke(say("write c.txt 3"))
    assert set(desk.files) == {"a.txt", "b.txt", "c.txt"}


@pytest.mark.parametrize("kind", ["state", "workspace"])
def test_options_that_need_an_effect_outside_are_refused(kind):
    for options in ({"once": True}, {"identity_args": ["a"]}, {"verify": lambda invocation: True}):
        with pytest.raises(InvalidInput, match="leave out"):
            effect(kind, **options)
