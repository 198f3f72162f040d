"""`repo.maintenance.gc` deletes unneeded data and frees its space, and keeps everything else."""

import os
import threading
from datetime import timedelta

import backend
import faults
import points
import processes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import Command
from saver_checkpoints import BLOB, count
from scripted import GRAPHS, World, call, nested_graph, obedient, scripted, tool_node_graph
from sqlalchemy import text

import agentgit
from agentgit import Workspace
from agentgit.checkpoints import Retention
from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.maintenance.gc import GraphStep, find_needed_steps
from agentgit.store.sql.tables import GRAPH_CHECKPOINT


def wrap(repo, world=None, kind="tool_node", session="s", model=None, **how):
    world = world or World()
    return repo.wrap(GRAPHS[kind](model or obedient(), world.tools()), session, effects=world.effects(), **how)


def same(found, would):
    """Return whether a dry run predicted the result, apart from disk sizes."""
    sizes = ("dry_run", "disk_before", "disk_after", "problem")
    return all(value == getattr(would, name) for name, value in vars(found).items() if name not in sizes)


def contents(repo, session="s"):
    """Return the checkpoints of a session, and the states and conversations of its branches."""
    found = {}
    for branch in repo.session(session).branches():
        found[branch.name] = (branch.session_state, branch.conversation_history)
        for point in repo.session(session).checkpoints(branch=branch.name):
            found[point.id] = point.to_dict()
    return found


# -- deleted and kept data


@pytest.mark.long
@pytest.mark.parametrize("kind", GRAPHS)
def test_a_collection_deletes_steps_and_keeps_checkpoints(repo, kind):
    world = World()
    agent = wrap(repo, world, kind)
    for n in range(4):
        agent.run(f"add i{n}")
    retry = agent.rollback("main#5")
    retry.run("add other")
    before, steps = contents(repo), count(backend.database(repo), GRAPH_CHECKPOINT)
    would = repo.maintenance.gc(dry_run=True)
    assert count(backend.database(repo), GRAPH_CHECKPOINT) == steps
    assert contents(repo) == before
    done = repo.maintenance.gc()
    assert same(done, would)
    assert done.steps > 0
    assert contents(repo) == before
    assert repo.maintenance.fsck(level=3).is_sound
    assert not any(
        (again := repo.maintenance.gc(dry_run=True)).to_dict()[name] for name in ("steps", "values", "lists")
    ), again
    for reference in ("main#1", "main#4", "main-2#1", "main-2#3"):
        fork = retry.fork(reference)
        messages = fork.history()
        assert messages == repo.session("s").get_checkpoint(reference).conversation_history
        fork = fork.switch(fork.branch.name, sync="ignore")
        assert fork.run("look") == "done"
        assert fork.history()[: len(messages)] == messages
    retry.run("hm")
    assert list(retry.get_state_history())[-1].parent_config is None
    assert repo.maintenance.fsck(level=3).is_sound


@pytest.mark.long
def test_a_collection_frees_disk_space(repo):
    agent = wrap(repo, auto_checkpoint="turn")
    for n in range(30):
        agent.run(f"add {n}-{os.urandom(2000).hex()}")
    repo.session("s").retention.set(Retention(compress_after=5, keep_last=2))
    done = repo.maintenance.gc()
    assert done.checkpoints == 57
    assert done.steps > 60
    if backend.is_sqlite(repo):
        assert done.disk_after < done.disk_before * 0.8
        assert done.disk_after == backend.database(repo).size()
    assert repo.maintenance.fsck(level=3).is_sound


def test_an_in_memory_database_survives_a_collection():
    """A collection does not close the only connection of an in-memory database."""
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(tool_node_graph(obedient(), World().tools()), "s")
        agent.run("hi")
        repo.session("s").retention.clear()
        assert repo.maintenance.gc().values > 0
        assert len(agent.history()) == 2


def test_a_collection_thins_out_an_idle_session(repo):
    wrap(repo).run("hm")
    wrap(repo).run("hm")
    repo.session("s").retention.set(Retention(compress_after=2, keep_last=1))
    repo.users.add("somebody else", is_admin=True)
    with agentgit.open(backend.url(repo), user="somebody else") as other:
        would = other.maintenance.gc(dry_run=True)
        assert would.checkpoints == 2
        assert len(repo.session("s").checkpoints()) == 4
        assert same(other.maintenance.gc(), would)
    assert len(repo.session("s").checkpoints()) == 2


def test_a_collection_removes_checkpoints_of_an_idle_session_by_age(repo):
    agent = wrap(repo)
    for _ in range(3):
        agent.run("hm")
    limits = Retention(compress_after=None, max_checkpoints=None, keep_last=1, max_age=timedelta(days=30))
    repo.session("s").retention.set(limits)
    assert repo.maintenance.gc().checkpoints == 0
    points = repo.session("s").checkpoints()
    for point in points[1:4]:
        backend.change(repo, "checkpoint", point.id, created_at=point.created_at - timedelta(days=31))
    would = repo.maintenance.gc(dry_run=True)
    assert would.checkpoints == 3
    assert same(repo.maintenance.gc(), would)
    assert [point.id for point in repo.session("s").checkpoints()] == [points[n].id for n in (0, 4, 5)]
    assert len(agent.history()) == 6


def test_a_collection_keeps_steps_of_savers_of_running_branches_and_on_request(repo):
    agent = wrap(repo)
    saver = agentgit.SQLModelSaver(backend.database(repo))
    graph, config = tool_node_graph(scripted("a", "b", "c"), [], saver), {"configurable": {"thread_id": "t"}}
    for _ in range(3):
        agent.run("hm")
        graph.invoke({"messages": [("user", "hi")]}, config)
    before = [state.config for state in agent.get_state_history()]
    of_saver = [state.config for state in graph.get_state_history(config)]
    assert repo.maintenance.gc(steps=False).steps == 0
    backend.write(repo, lambda c: repo.context.store.sessions.acquire(c, agent.branch_id, "elsewhere|1|1|x")())
    assert repo.maintenance.gc().steps == 0
    assert [state.config for state in agent.get_state_history()] == before
    assert [state.config for state in graph.get_state_history(config)] == of_saver


@pytest.mark.long
def test_a_subgraph_with_memory_remembers_after_a_collection(repo):
    world = World()
    agent = repo.wrap(nested_graph(obedient(), world.tools(), own_thread=True), "s", effects=world.effects())
    for n in range(5):
        agent.run(f"add i{n}")
    expected = agent.fork("main#4").get_state(subgraphs=True)
    plain = agent.fork("main#4", name="before").switch("before", sync="ignore")
    before = plain.run("look")
    assert repo.maintenance.gc().steps > 0
    fork = agent.fork("main#4", name="after").switch("after", sync="ignore")
    assert fork.get_state(subgraphs=True).values == expected.values
    assert fork.run("look") == before
    assert [m["content"] for m in fork.history()] == [m["content"] for m in plain.history()]
    assert repo.maintenance.fsck(level=3).is_sound


def test_an_interrupted_turn_resumes_after_a_collection(repo):
    world = World()
    model = scripted("hm", "hm", call("add_if_approved", item="x"), "ok")
    agent = wrap(repo, world, model=model)
    agent.run("a")
    agent.run("b")
    agent.invoke({"messages": [("user", "c")]})
    repo.maintenance.gc()
    agent.invoke(Command(resume="yes"))
    assert world.items == ["x"]
    assert repo.maintenance.fsck(level=3).is_sound


def test_a_turn_can_end_after_a_collection_in_the_middle_of_it(repo):
    world, found = World(), []
    agent = wrap(repo, world)
    agent.run("add a")
    steps = len(list(agent.get_state_history()))

    def collect_now():
        found.append(repo.maintenance.gc(shrink=False).steps)

    with faults.after(points.AUTHORIZE_CALL, collect_now):
        assert agent.run("add b") == "done"
    assert found == [0]
    assert len(list(agent.get_state_history())) == 2 * steps
    assert world.items == ["a", "b"]
    assert repo.maintenance.gc().steps > 0
    assert repo.maintenance.fsck(level=3).is_sound


@pytest.mark.long
def test_collections_run_concurrently_with_turns(repo):
    repo.session(repo.session("s0", create=True)).retention.set(Retention(compress_after=6, keep_last=3))
    failed = []

    def live(number):
        try:
            agent = wrap(repo, session=f"s{number}")
            for n in range(6):
                agent.run(f"add i{n}")
            agent.rollback("HEAD~2").run("hm")
        except Exception as error:  # noqa: BLE001  # told by the test
            failed.append(error)

    threads = [threading.Thread(target=live, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        repo.maintenance.gc(shrink=False)
        assert repo.maintenance.fsck(level=3).findings == ()
    assert failed == []
    assert repo.maintenance.fsck(level=3).is_sound


KILLED = """
import os, sys, agentgit
from agentgit.store.maintenance import gc
def die(*_): os._exit(9)
setattr(gc, sys.argv[2], die)
with agentgit.open(sys.argv[1]) as repo:
    repo.maintenance.gc()
"""


@pytest.mark.parametrize("where", ["_delete_values", "_write_in_full"])
def test_a_killed_collection_changes_nothing(repo, where):
    agent = wrap(repo)
    for n in range(4):
        agent.run(f"add i{n}")
    before, steps = contents(repo), count(backend.database(repo), GRAPH_CHECKPOINT)
    url = backend.address(repo)
    done = processes.run(KILLED, url, where)
    assert done.returncode == 9, done.stderr
    assert count(backend.database(repo), GRAPH_CHECKPOINT) == steps
    assert contents(repo) == before
    assert repo.maintenance.gc().steps > 0
    assert contents(repo) == before


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE blob SET data = :junk WHERE type = 'list' AND size > 2", "fsck"),
        ("UPDATE graph_checkpoint SET channels = :junk", r"graph_checkpoint cannot be read"),
    ],
    ids=["a list", "a step"],
)
def test_a_collection_that_cannot_read_everything_deletes_nothing(repo, damage, told):
    agent = wrap(repo)
    for _ in range(3):
        agent.run("hm")
    backend.write(repo, lambda c: c.execute(text(damage), {"junk": b"\0" + bytes(32)}))
    with agentgit.open(backend.url(repo)) as other:
        rows = [count(backend.database(repo), table) for table in (GRAPH_CHECKPOINT, BLOB)]
        with pytest.raises(Corrupt, match=told):
            other.maintenance.gc()
        assert [count(backend.database(repo), table) for table in (GRAPH_CHECKPOINT, BLOB)] == rows


# -- files


def test_unused_file_snapshots_are_released(repo, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    workspace = Workspace(folder, tmp_path / "store")
    agent = wrap(repo, workspace=workspace)
    for n in range(6):
        (folder / "a").write_text(str(n))
        agent.run("hm")
    kept = Retention(compress_after=2, keep_last=1)
    repo.session("s").retention.set(kept)
    would = repo.maintenance.gc(dry_run=True)
    assert would.snapshots >= 3
    assert same(repo.maintenance.gc(), would)
    assert repo.maintenance.gc().snapshots == 0
    agent.rewind_files("main#1")
    assert repo.maintenance.fsck(level=3).is_sound
    workspace.close()


# -- the rule for needed steps


STEPS = st.lists(st.tuples(st.sampled_from(["", "", "sub", "task:1"]), st.integers(0, 30)), max_size=40)


@given(STEPS, st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_named_steps_and_their_dependencies_are_kept(made, named, asking):
    steps, newest = [], {}
    for seq, (ns, pick) in enumerate(made):
        roots = [step.checkpoint_id for step in steps if step.ns == ""]
        parent = newest.get(ns)
        root = roots[pick % len(roots)] if ns and roots else None
        steps.append(GraphStep(ns, str(seq), seq, parent, root))
        newest[ns] = str(seq)
    names = {str(n) for n in named}
    kept = find_needed_steps(steps, names, {str(n) for n in asking})
    marks = [step.seq for step in steps if step.ns == "" and step.seq in named - asking]
    for step in steps:
        key = (step.ns, step.checkpoint_id)
        if step.ns == "":
            assert key in kept or (marks and step.seq < marks[-1] and step.checkpoint_id not in names)
        elif step.root_id is not None and ("", step.root_id) in kept:
            assert key in kept
    for root in (step for step in steps if step.ns == "" and step.checkpoint_id in names):
        way, at = [], root
        while at is not None:
            way.append(at.checkpoint_id)
            at = next((one for one in steps if one.ns == "" and one.checkpoint_id == at.parent_id), None)
        known = {step.root_id for step in steps if step.ns == "sub"}
        last = next((id for id in way if id in known), None)
        assert last is None or ("", last) in kept


def test_bad_input_an_unknown_check_level_is_refused(repo):
    for level in (0, 4, True, "2", None, 2.5):
        with pytest.raises(InvalidInput, match="level must be"):
            repo.maintenance.fsck(level=level)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_collection_reports_its_progress(repo, dry_run):
    for name in ("s", "t", "u"):
        wrap(repo, session=name).run("add i")
    told = []
    repo.maintenance.gc(dry_run=dry_run, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
