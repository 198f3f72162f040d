"""Many recorded sessions run again at once, with a judge, on any executor."""

from __future__ import annotations

import asyncio
import enum
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from scripted import World, call, calls, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Conflict, InvalidInput, NotFound, Unavailable
from agentgit.demo import ScriptedModel
from agentgit.sessions.rerun import Reruns

WORLD = World()
"""The world of graphs that processes build."""


def build(session):
    return tool_node_graph(obedient(), WORLD.tools())


def build_or_not(session):
    if session.name == "c":
        sys.exit(0)
    if session.name == "d":
        raise OSError("no model today")
    return build(session)


class Word(enum.StrEnum):
    GOOD = "good"


def judge_by_exit(rerun):
    return sys.exit(0) if rerun.session == "b" else Word.GOOD


def graph_of(world, model=None):
    return tool_node_graph(model or obedient(), world.tools())


def record(repo, world, **said):
    """Record one session for each argument, with a turn for each text."""
    for name, texts in said.items():
        agent = repo.wrap(graph_of(world), name, effects=world.effects())
        for text in texts:
            agent.run(text)


def test_each_session_is_a_row_with_its_verdict_and_the_table_is_read_again(repo, world):
    record(repo, world, a=["add chair", "look"], b=["add table"], c=["hello"])
    log, seen = list(world.log), []
    results = repo.rerun(
        ["a", "b", "c"],
        graph_of(world),
        judge=lambda rerun: len(rerun.messages) / len(rerun.recorded_messages) / 2,
        effects=world.effects(),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert world.log == log
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [(row.session, row.status, row.match_rate, row.verdict, row.error) for row in results.rows] == [
        (name, "done", 1.0, 0.5, None) for name in "abc"
    ]
    assert (results.matched, results.judge) == (1.0, 0.5)
    assert all(row.is_same and row.source == "main" and row.branch == results.name for row in results.rows)
    assert repo.reruns(results.name) == results
    assert [session.branch().name for session in map(repo.session, "abc")] == ["main"] * 3
    with pytest.raises(NotFound, match="no reruns named 'other'"):
        repo.reruns("other")


def test_another_prompt_and_a_search(repo, world):
    record(repo, world, **{"refund-1": ["add chair"], "refund-2": ["add sofa"], "other": ["add bed"]})
    model = ScriptedModel(
        rule=lambda messages: calls(call("add", item="chair")) if messages[-1].type == "human" else calls(text="done")
    )
    results = repo.rerun(
        repo.sessions(name="refund"),
        graph_of(world, model),
        judge=lambda rerun: (
            rerun.state["messages"][1].tool_calls == rerun.recorded_state["messages"][1].tool_calls or "another call"
        ),
        effects=world.effects(),
        name="always a chair",
    )
    rows = {row.session: row for row in results.rows}
    assert set(rows) == {"refund-1", "refund-2"}
    assert rows["refund-1"].match_rate == 1
    assert rows["refund-2"].match_rate == 0
    assert rows["refund-2"].verdict == "another call"
    assert results.judge is None
    assert not results.is_passed(0.9)
    assert results.is_passed(0.5)
    assert "always a chair: 2 sessions, matched 50%" in str(results)
    assert repo.reruns("always a chair").matched == 0.5
    with pytest.raises(Conflict, match="reruns named 'always a chair' already"):
        repo.rerun("other", graph_of(world), name="always a chair")


def test_what_goes_wrong_in_one_session_is_a_row_and_the_others_go_on(repo, world, caplog):
    record(repo, world, a=["add chair"], b=["add table"])
    repo.session("empty", create=True)

    def judge(rerun):
        if rerun.session == "a":
            raise ZeroDivisionError("by zero")
        return True

    results = repo.rerun(["a", "nobody", "empty", 5.5, "b"], graph_of(world), judge=judge)
    assert [(row.session, row.status, row.verdict) for row in results.rows] == [
        ("a", "done", None),
        ("nobody", "refused", None),
        ("empty", "refused", None),
        ("5.5", "refused", None),
        ("b", "done", True),
    ]
    for row, words in zip(
        results.rows, ["ZeroDivisionError", "no session 'nobody'", "nothing to run", "5.5"], strict=False
    ):
        assert words in row.error
    assert "in judge" in caplog.text  # the traceback
    assert results.judge == 0.2
    numbers = iter(range(10_000))
    endless = ScriptedModel(rule=lambda messages: calls(call("add", item=f"i{next(numbers)}")))
    rows = repo.rerun(["a", "b"], graph_of(world, endless), max_calls=3, effects=world.effects()).rows
    assert [row.status for row in rows] == ["diverged", "diverged"]
    assert "limit" in rows[0].error
    assert rows[0].match_rate == 0
    toolless = tool_node_graph(scripted("hello"), [World().tool("look")])
    (row,) = repo.rerun("a", toolless).rows
    assert (row.status, row.match_rate, row.error) == ("done", 0.0, "The graph has no add.")
    assert world.items == ["chair", "table"]


def test_a_session_that_the_user_cannot_see_may_only_read_or_has_erased_is_a_row_that_says_so(repo, world):
    bob = repo.as_user(repo.users.add("bob"))
    record(repo, world, mine=["add chair"], read=["add bed"], gone=["add table"])
    repo.session("read").sharing.share("bob", "viewer")
    gone = repo.session("gone")
    listed = [*repo.sessions(name="gone")]
    gone.delete(force=True)
    rows = bob.rerun(["mine", repo.session("read").id], graph_of(world)).rows
    assert [row.status for row in rows] == ["refused", "refused"]
    assert "no session" in rows[0].error
    assert "NotAllowed" in rows[1].error
    rows = repo.rerun([*listed, gone, "mine"], graph_of(world)).rows
    assert [row.status for row in rows] == ["refused", "refused", "done"]
    (row,) = bob.reruns(repo.rerun(["mine", "read"], graph_of(world), judge=lambda rerun: True).name).rows
    assert (row.session.endswith("read"), row.verdict) == (True, True)
    with pytest.raises(NotFound):
        bob.reruns(repo.rerun("mine", graph_of(world)).name)


def test_branches_are_named_with_an_at_sign_or_found_by_a_search(repo, world):
    """A name that holds an at sign is a name. A hit of a search stands for its branch, each branch once."""
    agent = repo.wrap(graph_of(world), "s", effects=world.effects())
    agent.run("add chair")
    agent.fork(name="retry").run("add chair")
    record(repo, world, **{"a@b": ["hello"], "gone": ["add chair"]})
    agent.session.switch("main", sync="ignore")
    hits = [*agent.session.search("chair", all_branches=True), *repo.session("gone").search("chair")]
    results = repo.rerun(["s@retry", "s", "a@b"], graph_of(world), effects=world.effects())
    assert [row.error for row in results.rows] == [None] * 3
    told = [(row.source, row.report.recorded_turns) for row in results.rows]
    assert told == [("retry", 2), ("main", 1), ("main", 1)]
    assert results.names == ["s@retry", "s@main", "a@b"]
    assert all(f"  {name} " in str(results) for name in results.names)
    repo.session("gone").delete(force=True)
    rows = repo.rerun(hits, graph_of(world), effects=world.effects()).rows
    found = sorted((row.session, row.source, row.status) for row in rows if row.source)
    assert found == [("s", "main", "done"), ("s", "retry", "done")]
    assert [row.error[:29] for row in rows if row.source is None] == ["NotFound: There is no session"]
    (row,) = repo.rerun(hits[0], graph_of(world), effects=world.effects()).rows
    assert row.status == "done"


def test_async_nodes_and_judges(repo, world):
    async def judge(rerun):
        await asyncio.sleep(0)
        return rerun.report.is_same

    agent = repo.wrap(graph_of(world), "s", effects=world.effects())
    asyncio.run(agent.ainvoke({"messages": [("user", "add_later chair; add table")]}))
    results = asyncio.run(repo.arerun("s", graph_of(world), judge=judge, effects=world.effects()))
    assert [(row.status, row.verdict) for row in results.rows] == [("done", True)]
    assert asyncio.run(repo.areruns(results.name)) == results


def test_on_any_executor_a_session_that_fails_or_ends_its_process_is_a_row(tmp_path):
    """`sys.exit(0)` would end a check as if it had passed. The rows are in the order of the sessions."""
    with agentgit.open(tmp_path / "db") as repo:
        record(repo, WORLD, a=["add chair"], b=["add table; look"], c=["hello"], d=["look"])
        log, seen, spawn = list(WORLD.log), [], multiprocessing.get_context("spawn")
        with ThreadPoolExecutor(3) as threads, ProcessPoolExecutor(2, mp_context=spawn) as processes:
            for executor in (None, threads, processes):
                results = repo.rerun(
                    [repo.session("a"), "b", *repo.sessions(name="c"), "d"], factory=build_or_not, judge=judge_by_exit,
                    executor=executor, progress=lambda done, total: seen.append((done, total)),
                )  # fmt: skip
                assert [(row.session, row.status, row.verdict, row.error) for row in results.rows] == [
                    ("a", "done", "good", None),
                    ("b", "done", None, "The judge raised SystemExit: 0"),
                    ("c", "refused", None, "SystemExit: 0"),
                    ("d", "refused", None, "OSError: no model today"),
                ]
                stored = repo.reruns(results.name).rows
                assert sorted(stored, key=lambda row: row.session) == results.rows[:2]
            assert sorted(seen) == sorted([(1, 4), (2, 4), (3, 4), (4, 4)] * 3)
            rows = repo.rerun(list("ab"), build(None), executor=threads).rows
            assert [(row.session, row.is_same) for row in rows] == [("a", True), ("b", True)]
            for wrong in ({"graph": build(None)}, {"factory": lambda session: build(session)}):
                with pytest.raises(InvalidInput):
                    repo.rerun("a", executor=processes, **wrong)
        with pytest.raises(Unavailable, match="takes no work"):
            repo.rerun("a", factory=build, executor=processes)
        assert WORLD.log == log
        results = repo.rerun(["a", "b"], tool_node_graph(ScriptedModel(rule=lambda messages: sys.exit(0)), []))
        assert [(row.status, row.error) for row in results.rows] == [("failed", "SystemExit: 0")] * 2
        assert repo.reruns(results.name) == results


def test_arguments_that_are_wrong_as_a_whole_are_refused(repo, world):
    record(repo, world, a=["add chair"])
    graph = graph_of(world)
    for wrong in (
        {},
        {"graph": graph, "factory": build},
        {"graph": "graph"},
        {"factory": 5},
        {"graph": graph, "judge": "strict"},
        {"graph": graph, "on_miss": "ask"},
        {"graph": graph, "name": "a@b"},
        {"graph": graph, "executor": 4},
        {"graph": graph, "effects": {"add": "harmless"}},
        {"graph": graph, "prices": 5},
        {"graph": graph, "config": 5},
        {"graph": graph, "progress": 5},
    ):
        with pytest.raises(InvalidInput):
            repo.rerun("a", **wrong)
    with pytest.raises(InvalidInput, match="a list of sessions"):
        repo.rerun(5.5, graph)
    assert [branch.name for branch in repo.session("a").branches()] == ["main"]
    for nobody in ([], repo.sessions(name="no such name")):
        with pytest.raises(InvalidInput, match="There are no sessions"):
            repo.rerun(nobody, graph)
    assert not Reruns(name="empty").is_passed(0.5)


def test_names_of_reruns_belong_to_those_who_see_them(repo, world):
    """Another user's reruns, which `reruns` does not show, do not take a name away."""
    alice, bob = (repo.as_user(repo.users.add(name)) for name in ("alice", "bob"))
    for user, name in ((alice, "hers"), (bob, "his")):
        record(user, world, **{name: ["add chair"]})
        assert user.rerun(name, graph_of(world), name="tuesday").rows[0].session == name
    assert [row.session for row in bob.reruns("tuesday").rows] == ["his"]
    with pytest.raises(Conflict):
        bob.rerun("his", graph_of(world), name="tuesday")


def test_the_table_as_a_frame_and_as_json(repo, world):
    record(repo, world, **{"<i>\x1b[31m": ["add chair"]})
    results = repo.rerun(repo.sessions(), graph_of(world), judge=lambda rerun: True)
    frame = results.to_frame()
    assert frame[["status", "match_rate", "is_same", "verdict"]].values.tolist() == [["done", 1.0, True, True]]
    assert results.to_dict()["sessions"][0]["report"]["status"] == "done"
    assert "<i>" not in results._repr_html_()
    assert "\x1b" not in str(results)


def test_costs_are_in_the_results_and_in_the_stored_reports(repo):
    def graph(tokens):
        usage = {"input_tokens": tokens, "output_tokens": tokens, "total_tokens": 2 * tokens}
        reply = AIMessage("done", usage_metadata=usage, response_metadata={"model_name": "m"})
        return tool_node_graph(ScriptedModel(replies=[reply]), [])

    for name in "ab":
        repo.wrap(graph(1_000_000), name).run("hi")
    results = repo.rerun(["a", "b"], graph(2_000_000), prices={"m": (1, 2)}, name="priced")
    assert [(row.cost, row.report.recorded_cost) for row in results.rows] == [(6.0, 3.0)] * 2
    assert results.cost == results.to_dict()["cost"] == 12.0
    assert "cost 12.0000" in str(results)
    assert "cost: 3.0000 recorded, 6.0000 now" in str(repo.session("a").compare_rerun("priced"))
    assert repo.reruns("priced") == results
    assert repo.rerun("a", graph(1), prices={"other": (1, 2)}).cost is None
    assert repo.rerun("a", graph(1)).cost is None
    with pytest.raises(InvalidInput, match="price of 'm'"):
        repo.rerun("a", graph(1), prices={"m": 1})


@dataclass
class Customer:
    name: str


class Unreadable:
    def __float__(self):
        raise RuntimeError("no number")

    def __repr__(self):
        raise RuntimeError("no text")


def test_whatever_a_judge_returns_the_rerun_is_a_row_that_is_read_again(repo, world):
    record(repo, world, a=["add chair"])
    for given, verdict in [
        (10**400, None), (Unreadable(), None), (Decimal("0.5"), 0.5), (Word.GOOD, "good"), ("\x00\ud800", "\x00\ud800"),
        (-1e308, -1e308), (1j, None), (float("nan"), None), ([], None), (None, None),
    ]:  # fmt: skip
        results = repo.rerun(["a", "a"], graph_of(world), judge=lambda rerun, given=given: given)
        assert [(row.status, row.verdict) for row in results.rows] == [("done", verdict)] * 2
        assert all(type(row.verdict) is type(verdict) for row in results.rows)
        assert ("must return a bool, a number or a string" in (results.rows[0].error or "")) == (verdict is None)
        assert repo.reruns(results.name) == results
        assert results.name in str(results)
        assert not results.is_passed(0.9) or isinstance(verdict, str)


def test_what_was_stopped_before_its_verdict_does_not_pass_when_it_is_read_again(repo, world):
    """Ctrl-C in a judge leaves a rerun that has ended and has no verdict; its row is `running`, and fails."""
    record(repo, world, a=["add chair"], b=["add table"])

    def judge(rerun):
        if rerun.session == "b":
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        repo.rerun(["a", "b"], graph_of(world), judge=judge, name="stopped")
    results = repo.reruns("stopped")
    assert [(row.session, row.status, row.match_rate) for row in results.rows] == [
        ("a", "done", 1),
        ("b", "running", 0),
    ]
    assert results.judge == 0.5
    with pytest.raises(KeyboardInterrupt):
        repo.rerun("b", graph_of(world), judge=judge, name="alone")
    assert not repo.reruns("alone").is_passed(0.1)


def test_the_context_is_given_to_all_sessions(repo):
    def greet(state: MessagesState, runtime: Runtime[Customer]) -> dict[str, Any]:
        return {"messages": [("ai", f"hello {runtime.context.name}")]}

    graph = StateGraph(MessagesState, context_schema=Customer).add_node(greet).add_edge(START, "greet").compile()
    for name in "ab":
        repo.wrap(graph, name).invoke({"messages": [("user", "hi")]}, context=Customer("Anna"))
    for context in (Customer("Anna"), {"name": "Anna"}):
        assert all(row.is_same for row in repo.rerun(["a", "b"], graph, context=context).rows)
        assert all(row.is_same for row in asyncio.run(repo.arerun(["a", "b"], graph, context=context)).rows)
    assert [row.status for row in repo.rerun(["a", "b"], graph, context={"nobody": 1}).rows] == ["failed"] * 2
