"""What a session wrote to LangGraph's `BaseStore` is undone and written again while the value is its own."""

from datetime import UTC, datetime

import faults
import points
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.config import get_store
from langgraph.store.memory import InMemoryStore
from memory_graphs import NAMESPACE, STORES, agent, begun, contents, noting, reasons, said, sqlite_store, store, theirs

import agentgit
from agentgit import InvalidInput

__all__ = ["agent", "store", "theirs"]  # the fixtures


def actions(plan):
    """Return the action of each step by the key in memory."""
    return {step.invocation.args["key"]: step.action for step in plan.steps}


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_memory_follows_rollbacks_and_switches(repo, store, agent):
    agent.invoke(said("+food=pizza +pet=cat"))
    point = agent.checkpoint("point")
    agent.invoke(said("+food=pasta -pet +food=soup +city=Rome"))
    assert [step.action for step in agent.plan_rollback(point).steps] == ["reverse"] * 4
    assert contents(store) == {"food": "soup", "city": "Rome"}
    retry = agent.rollback(point)
    assert contents(store) == {"food": "pizza", "pet": "cat"}
    assert (retry.report.status, len(retry.report.reversed)) == ("done", 4)
    retry.invoke(said("+food=fish"))
    back = retry.switch("main", sync="world")
    assert contents(store) == {"food": "soup", "city": "Rome"}
    assert len(back.report.redone) == 4
    there = back.switch("main-2", sync="world")
    assert contents(store) == {"food": "fish", "pet": "cat"}
    assert there.report.status == "done"
    assert repo.maintenance.fsck(3).is_sound


def test_the_journal_has_the_value_before(agent):
    agent.invoke(said("+food=pizza +food=pasta -food"))
    base = {"key": "food", "namespace": ["users", "ann"]}
    pizza, pasta = {"is": "pizza"}, {"is": "pasta"}
    assert [(one.tool_name, one.args, one.effect, one.status) for one in agent.tool_track()] == [
        ("memory.put", {**base, "value": pizza, "before": None}, "memory", "done"),
        ("memory.put", {**base, "value": pasta, "before": pizza}, "memory", "done"),
        ("memory.delete", {**base, "before": pasta}, "memory", "done"),
    ]


# -- other writers


@pytest.mark.parametrize(
    ("value", "is_late"),
    [("pasta", False), ("pasta", True), ("pizza", False)],
    ids=["before the plan", "between plan and undo", "an equal value"],
)
def test_what_another_session_wrote_since_stays_until_that_session_is_rolled_back(
    repo, store, agent, theirs, value, is_late
):
    agent.invoke(said("+food=fish"))
    point = agent.checkpoint("point")
    agent.invoke(said("+food=pizza +pet=cat"))
    if is_late:
        with faults.before(points.WORK_ON_WORLD, lambda: theirs.invoke(said(f"+food={value}"))):
            retry = agent.rollback(point)
    else:
        theirs.invoke(said(f"+food={value}"))
        assert actions(agent.plan_rollback(point)) == {"food": "keep", "pet": "reverse"}
        retry = agent.rollback(point)
    (reason,) = reasons(retry.report.kept).values()
    assert "since by session 'theirs', so it stays as it is" in reason
    assert (retry.report.status, contents(store)) == ("done", {"food": value})
    assert actions(retry.plan_rollback(point)) == {"food": "keep"}
    theirs.rollback("before")
    assert contents(store) == {"food": "pizza"}
    assert actions(retry.plan_rollback(point)) == {"food": "reverse"}
    assert agent.switch("main").plan_rollback(point).reversals
    again = retry.switch("main-2", sync="world")
    assert contents(store) == {"food": "fish"}
    again.switch("main", sync="world")
    assert contents(store) == {"food": "pizza", "pet": "cat"}
    assert repo.maintenance.fsck(3).is_sound


def test_a_conflict_names_a_few_of_many_sessions(repo, store, agent):
    agent.invoke(said("+food=pasta"))
    for number in range(5):
        repo.wrap(noting(store), f"s{number}").invoke(said(" ".join(f"+food=soup{turn}" for turn in range(12))))
    reason = reasons(agent.rollback("before").report.kept)["food"]
    assert "by session 's4' and session 's3' and session 's2' and others" in reason


def test_a_session_of_another_user_is_not_named(repo, store, agent):
    agent.invoke(said("+food=pizza"))
    repo.as_user(repo.users.add("bob")).wrap(noting(store), "secret plans").invoke(said("+food=pizza"))
    reason = reasons(agent.rollback("before").report.kept)["food"]
    assert reason == "the item was written since by a session of another user, so it stays as it is"
    assert contents(store) == {"food": "pizza"}


def test_sessions_with_stores_of_their_own_do_not_conflict(repo, store, agent):
    other = InMemoryStore()
    theirs = begun(repo, other, session="theirs")
    agent.invoke(said("+food=pizza"))
    theirs.invoke(said("+food=pizza"))
    retry = agent.rollback("before")
    assert (len(retry.report.kept), contents(store), contents(other)) == (0, {}, {"food": "pizza"})
    retry.switch("main", sync="world")
    theirs.invoke(said("+food=pasta"))
    agent.at("main").rollback("before")
    assert (contents(store), contents(other)) == ({}, {"food": "pasta"})


def test_a_change_from_outside_stays(store, agent):
    agent.invoke(said("+food=pizza +pet=cat"))
    store.put(NAMESPACE, "food", {"is": "fish"})
    store.delete(NAMESPACE, "pet")
    report = agent.rollback("before").report
    assert reasons(report.kept) == {"food": "the item was changed since, so it stays as it is"}
    assert reasons(report.reversed) == {"pet": "the item is deleted again"}  # it is as before
    assert contents(store) == {"food": "fish"}


def test_a_write_is_not_made_again_over_another_sessions(store, agent, theirs):
    agent.invoke(said("+food=pizza +pet=cat"))
    retry = agent.rollback("before")
    theirs.invoke(said("+food=pasta"))
    report = retry.redo().report
    assert report.status == "done"
    assert "session 'theirs'" in reasons(report.gone)["food"]
    assert contents(store) == {"food": "pasta", "pet": "cat"}


# -- values


def test_values_that_json_does_not_have_are_not_written_back(store, agent):
    store.put(NAMESPACE, "food", {"is": {1, 2}})
    agent.invoke(said("+food=pizza"))
    report = agent.rollback("before").report
    assert "types that JSON does not have" in reasons(report.kept)["food"]
    assert store.get(NAMESPACE, "food").value == {"is": "pizza"}


def test_a_write_of_a_value_that_the_store_holds_as_text_is_undone_and_not_made_again(repo, tmp_path):
    def node(state):
        get_store().put(NAMESPACE, "day", {"is": datetime(2026, 1, 2, tzinfo=UTC)})

    with sqlite_store(tmp_path / "memory.db") as store:
        agent = begun(repo, store, node)
        agent.invoke(said("go"))
        retry = agent.rollback("before")
        assert contents(store) == {}
        assert "types that JSON does not have" in reasons(retry.redo().report.gone)["day"]


def test_a_value_that_is_changed_in_place_has_its_true_value_before(repo, store):
    shared = ["a"]

    def node(state):
        item = get_store().get(NAMESPACE, "count")
        item.value["is"] += 1
        get_store().put(NAMESPACE, "count", item.value)
        shared.append("b")
        get_store().put(NAMESPACE, "list", {"is": shared})

    store.put(NAMESPACE, "count", {"is": 1})
    agent = begun(repo, store, node)
    agent.invoke(said("go"))
    point = agent.checkpoint("point")
    agent.invoke(said("go"))
    assert contents(store) == {"count": 3, "list": ["a", "b", "b"]}
    agent.rollback(point)
    assert contents(store) == {"count": 2, "list": ["a", "b"]}


def test_a_value_that_equals_the_value_before_in_python_only_is_undone(repo, store):
    store.put(NAMESPACE, "on", {"is": True})
    agent = begun(repo, store, lambda state: get_store().put(NAMESPACE, "on", {"is": 1}))
    agent.invoke(said("go"))
    assert contents(store)["on"] is not True
    agent.rollback("before")
    assert contents(store)["on"] is True


def test_of_the_deletion_of_an_item_that_never_existed_there_is_nothing_to_undo(store, agent):
    agent.invoke(said("-food"))
    (step,) = agent.plan_rollback("before").steps
    assert step.why == "there is nothing to change: it left the item as it was"
    agent.rollback("before")
    assert contents(store) == {}


# -- branches


def test_what_was_undone_since_a_point_of_another_branch_is_gone_unless_it_is_redone(store, agent):
    agent.invoke(said("+food=pizza"))
    point = agent.checkpoint("point")
    retry = agent.rollback("before")
    retry.invoke(said("+pet=cat"))
    diff = str(retry.diff("main", "main-2"))
    assert "- memory.put(key='food', value={'is': 'pizza'}, namespace=['users', 'ann']" in diff
    assert "+ memory.put(key='pet', value={'is': 'cat'}, namespace=['users', 'ann']" in diff
    gone = retry.rollback(point)
    assert list(reasons(gone.report.gone)) == ["food"]
    assert contents(store) == {}
    gone.rollback(point, replay="redo")
    assert contents(store) == {"food": "pizza"}


def test_a_fork_leaves_memory_and_no_branch_is_stopped(store, agent):
    agent.invoke(said("+food=pizza"))
    fork = agent.fork("before")
    assert contents(store) == {"food": "pizza"}
    fork.invoke(said("+pet=cat"))
    agent.invoke(said("+city=Rome"))
    fork.invoke(said("+pet=dog"))
    assert contents(store) == {"food": "pizza", "pet": "dog", "city": "Rome"}


def test_each_variant_of_an_exploration_begins_with_the_memory_of_the_starting_point(store, agent):
    agent.invoke(said("+food=pizza"))
    fork = agent.fork(agent.checkpoint("point"))
    agent.invoke(said("+food=soup"))
    exploration = fork.explore(1, ["+food=pasta", "+pet=cat", "+food=rice"])
    assert contents(store) == {"food": "pizza"}
    tracks = [agent.session.tool_track(branch=f"explore/{number}") for number in (1, 2, 3)]
    assert [write.args["before"] for track in tracks for write in track[1:]] == [{"is": "pizza"}, None, {"is": "pizza"}]
    fork.promote(exploration.leaves[1])
    assert contents(store) == {"food": "pizza", "pet": "cat"}
    agent.switch("main", sync="world")
    assert contents(store) == {"food": "soup"}


def test_parallel_variants_may_not_share_memory_unless_it_is_left_out(repo, store, agent):
    with pytest.raises(InvalidInput, match="write to memory"):
        agent.explore(1, ["+pet=cat", "+food=pasta"], parallel=True)
    assert contents(store) == {}
    unmanaged = repo.wrap(noting(store), "b", effects=dict.fromkeys(("memory.put", "memory.delete"), "read_only"))
    unmanaged.explore(1, ["+pet=cat", "+food=pasta"], parallel=True)
    assert contents(store) == {"pet": "cat", "food": "pasta"}


# -- what is kept, and what is written again


def test_memory_that_a_rollback_was_told_to_keep_stays_accepted(store, agent):
    agent.invoke(said("+food=pizza"))
    kept = agent.rollback("before", tools="keep")
    assert contents(store) == {"food": "pizza"}
    assert reasons(kept.rollback("before").report.kept) == {"food": "an earlier rollback kept it"}
    assert contents(store) == {"food": "pizza"}


def test_memory_can_be_left_out_of_a_graph_or_of_a_whole_repository(store):
    """Its writes are seen, kept by a rollback, and answered from the record with replay="execute"."""
    with pytest.raises(InvalidInput, match="leave memory as it is"):
        agentgit.open(":memory:", effects={"memory.put": "irreversible"})
    with agentgit.open(":memory:", effects={"memory.put": "idempotent"}) as repo:
        agent = begun(repo, store, effects={"memory.delete": "read_only"})
        agent.invoke(said("+food=pizza +pet=cat -pet"))
        assert [one.effect for one in agent.tool_track()] == ["idempotent", "idempotent", "read_only"]
        point = agent.checkpoint("point")
        agent.invoke(said("+food=pasta"))
        report = agent.rollback(point, replay="execute").report
        assert report.status == "done"
        assert [one.invocation.args["key"] for one in report.answered] == ["food", "pet", "pet"]
        assert set(reasons(agent.rollback("before").report.kept)) == {"food", "pet"}
        assert contents(store) == {"food": "pasta"}
        own = repo.wrap(noting(store), "b", effects={"memory.put": "read_only"})
        assert own.effects["memory.put"] == "read_only"
        with pytest.raises(InvalidInput, match=r"memory\.put"):
            repo.wrap(noting(store), "c", effects={"memory.put": "irreversible"})


def test_replay_execute_writes_the_path_again_although_tools_are_irreversible_by_default(store):
    with agentgit.open(":memory:", effects={"*": "irreversible"}) as repo:
        agent = begun(repo, store)
        agent.invoke(said("+food=pizza"))
        point = agent.checkpoint("point")
        agent.invoke(said("+food=pasta +pet=cat"))
        retry = agent.rollback(point, replay="execute")
        assert contents(store) == {"food": "pizza"}
        assert [item.invocation.args["value"]["is"] for item in retry.report.redone] == ["pizza"]
        retry.invoke(said("+food=soup"))
        retry.undo()
        assert contents(store) == {"food": "pizza"}


@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
def test_replay_execute_answers_a_tool_that_writes_to_memory(repo, store, effect):
    """Its writes are made again by themselves, and it cannot run outside of a turn, where it has no store."""
    agent = begun(repo, store, effects={"remember": effect}, check_effects=False)
    agent.invoke(said("tool:+food=pizza"))
    point = agent.checkpoint("point")
    plan = agent.plan_rollback(point, replay="execute")
    assert {(step.action, step.invocation.tool_name) for step in plan.steps} == {
        ("reverse", "memory.put"),
        ("answer", "remember"),
        ("redo", "memory.put"),
    }
    agent.rollback(point, replay="execute")
    assert contents(store) == {"food": "pizza"}


def test_calls_of_a_template_write_to_new_memory_and_overwrite_nothing(repo, store, agent):
    agent.invoke(said("+food=pizza +food=pasta +pet=cat"))
    agent.checkpoint("end")
    other = InMemoryStore()
    other.put(NAMESPACE, "food", {"is": "soup"})
    made = repo.wrap(noting(other), "b", template="ours@end", replay="execute")
    assert contents(other) == {"food": "soup", "pet": "cat"}
    made.rollback("main#1")
    assert (contents(other), contents(store)) == ({"food": "soup"}, {"food": "pasta", "pet": "cat"})


# -- random sessions


STEPS = st.lists(
    st.tuples(st.sampled_from(["one", "two"]), st.sampled_from(["+a=1", "+a=2", "-a", "+b=1", "-b", "mark", "back"])),
    max_size=14,
)


@pytest.mark.long
@settings(max_examples=40)
@given(STEPS)
def test_random_writes_of_two_sessions(steps):
    """A rollback undoes exactly the writes above which no other session's write stands, as in a model."""
    store, model = InMemoryStore(), Model()
    with agentgit.open(":memory:") as repo:
        agents = {name: repo.wrap(noting(store), name) for name in ("one", "two")}
        marks = {name: agent.checkpoint("start") for name, agent in agents.items()}
        for name, step in steps:
            if step in ("mark", "back"):
                if step == "back":
                    agents[name] = agents[name].rollback(marks[name])
                    assert set(reasons(agents[name].report.kept)) >= model.back(name)
                marks[name] = agents[name].checkpoint(f"mark {model.mark(name)}")
            else:
                agents[name].invoke(said(step))
                model.write(name, step)
            assert contents(store) == model.items


class Model:
    """What memory should be: the items, and the writes that stand, oldest first."""

    def __init__(self):
        self.items = {}
        self.writes = []
        self.marks = {"one": 0, "two": 0}
        self.time = 0

    def write(self, name, step):
        """Put or delete an item."""
        key, _, value = step[1:].partition("=")
        new, old = (value if step[0] == "+" else None), self.items.get(key)
        self.time += 1
        self.writes.append((self.time, name, key, old, new))
        self._set(key, new)

    def mark(self, name):
        """Remember the point to which a session rolls back."""
        self.marks[name] = self.time
        self.time += 1
        return self.time

    def back(self, name):
        """Roll a session back, and return the keys whose writes stay."""
        kept = set()
        for one in [w for w in reversed(self.writes) if w[1] == name and w[0] > self.marks[name]]:
            time, _, key, old, new = one
            current = self.items.get(key)
            is_newer = any(w[1] != name and w[2] == key and w[0] > time for w in self.writes)
            if current == old or (current == new and not is_newer):
                self._set(key, old)
                self.writes.remove(one)
            else:
                kept.add(key)
        return kept

    def _set(self, key, value):
        if value is None:
            self.items.pop(key, None)
        else:
            self.items[key] = value


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(["+a=1", "+a=2", "-a", "+b=1", "-b"])),
        st.tuples(st.sampled_from(["back", "switch", "fork"]), st.integers(0, 20)),
    ),
    max_size=12,
)


@pytest.mark.long
@settings(max_examples=30)
@given(MOVES)
def test_random_moves_between_branches(moves):
    """After a rollback memory is as at its point, and after a switch as at the end of the branch."""
    store = InMemoryStore()
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(noting(store), "a")
        paths = {"main": [(agent.checkpoint("p0"), {})]}  # the points on the path of each branch
        for number, (kind, choice) in enumerate(moves, 1):
            path = paths[agent.branch.name]
            if kind == "write":
                agent.invoke(said(choice))
                path.append((agent.checkpoint(f"p{number}"), contents(store)))
                continue
            if kind == "back":
                path = path[: choice % len(path) + 1]
                agent = agent.rollback(path[-1][0])
            elif kind == "fork":
                other = list(paths.values())[choice % len(paths)]
                path = other[: choice % len(other) + 1]
                fork = agent.fork(path[-1][0])
                agent = fork.switch(fork.branch.name, sync="world")
            else:
                agent = agent.switch(list(paths)[choice % len(paths)], sync="world")
                path = paths[agent.branch.name]
            paths[agent.branch.name] = list(path)
            assert contents(store) == path[-1][1]
        assert repo.maintenance.fsck(3).is_sound
