"""What a host does to threads and runs with `repo.saver()` happens to the sessions of the served graph (G3)."""

import asyncio
import uuid

import pytest
from scripted import World, obedient, tool_node_graph
from served import THREAD, contents, run, said

import agentgit
from agentgit import Conflict, InvalidInput, RollbackBlocked


@pytest.fixture
def world():
    """Create a world for the test."""
    return World()


@pytest.fixture
def app(repo, world):
    """Serve a graph."""
    return repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())


@pytest.fixture
def saver(repo):
    """Return the saver for the host."""
    return repo.saver()


def thread(id):
    """Return the config of a thread."""
    return {"configurable": {"thread_id": id}}


def host_run(app, text, config=THREAD):
    """Run a message as a host does, and return the id of the run."""
    id = str(uuid.uuid4())
    app.invoke(said(text), {**config, "metadata": {"run_id": id}})
    return id


def test_g3_the_saver_reads_what_the_graph_reads(app, saver):
    """G3: `get_tuple` and `list` give the checkpoints of the thread, and `put` is refused."""
    run(app, "add chair", "look")
    listed = [one.config for one in saver.list(THREAD)]
    assert listed == [one.config for one in app.get_state_history(THREAD)]
    newest = saver.get_tuple(THREAD)
    assert newest.config == listed[0]
    with pytest.raises(InvalidInput, match="only by runs"):
        saver.put(newest.config, newest.checkpoint, newest.metadata, {})
    with pytest.raises(InvalidInput, match="only by runs"):
        saver.put_writes(newest.config, [("messages", [])], "task")


def test_g3_a_cancelled_run_is_rolled_back(app, saver, world, repo):
    """G3: the last run is undone on a new branch, the old branch stays, and doing it again changes nothing."""
    run(app, "add chair")
    id = host_run(app, "add table")
    for _ in range(2):
        saver.delete_for_runs([id])
        assert world.items == ["chair"]
        assert len(repo.session("t").branches()) == 2
    assert contents(app.get_state(THREAD).values)[0] == "add chair"
    run(app, "add lamp")
    assert world.items == ["chair", "lamp"]


def test_g3_the_first_run_leaves_an_empty_thread(app, saver, world):
    """G3: before its first run, a thread has no values."""
    saver.delete_for_runs([host_run(app, "add chair")])
    assert world.items == []
    assert app.get_state(THREAD).values == {}
    run(app, "add lamp")
    assert world.items == ["lamp"]


def test_g3_runs_that_others_have_followed_stay(app, saver, world):
    """G3: nothing after a deleted run is undone; a run and those after it are undone together."""
    first, second = host_run(app, "add chair"), host_run(app, "add table")
    saver.delete_for_runs([first, str(uuid.uuid4())])
    assert world.items == ["chair", "table"]
    saver.delete_for_runs([first, second])
    assert world.items == []


def test_g3_what_needs_consent_stays_and_is_reported(app, saver, world, repo):
    """G3: a payment and a mail stay, and the report of the rollback names them."""
    saver.delete_for_runs([host_run(app, "add chair; charge 5; send hello")])
    assert (world.items, world.charges, world.sent) == ([], [5], ["hello"])
    report = repo.session("t").operations()[0].report
    assert (len(report["reversed"]), len(report["kept"])) == (1, 2)


def test_g3_an_undo_that_raises_does_not_stop_the_others(app, saver, world, repo):
    """G3: the other effects are reversed, and the report names the one that stays."""
    id = host_run(app, "add chair; add table")
    world.broken.add("table")
    saver.delete_for_runs([id])
    assert world.items == ["table"]
    report = repo.session("t").operations()[0].report
    assert (len(report["reversed"]), len(report["kept"])) == (1, 1)
    assert "table is stuck" in report["kept"][0]["reason"]


def test_g3_a_run_that_waits_for_consent_is_cancelled_without_effect(app, saver, world):
    """G3: the thread is where it was, and goes on."""
    (before, _) = run(app, "add chair", "charge 5")
    values = contents(app.get_state(THREAD).values)
    id = host_run(app, "add lamp", before)
    assert app.get_state(THREAD).interrupts
    saver.delete_for_runs([id])
    assert not app.get_state(THREAD).interrupts
    assert (world.items, world.charges) == (["chair"], [5])
    run(app, "add sofa")
    assert contents(app.get_state(THREAD).values)[: len(values)] == values


def test_g3_undo_functions_of_coroutines_run_on_the_hosts_loop(repo):
    """G3: `adelete_for_runs` awaits an undo that is bound to the loop of the host."""
    world, loops = World(), []

    async def remove(args, result):
        loops.append(asyncio.get_running_loop())
        world.items.remove(args["item"])

    app = repo.graph(tool_node_graph(obedient(), [world.tool("add")]), effects={"add": agentgit.reversible(remove)})

    async def host():
        id = str(uuid.uuid4())
        await app.ainvoke(said("add chair"), {**THREAD, "metadata": {"run_id": id}})
        await repo.saver().adelete_for_runs([id])
        return asyncio.get_running_loop()

    assert asyncio.run(host()) in loops
    assert world.items == []


def test_g3_a_copied_thread_has_a_world_of_its_own(app, saver, world):
    """G3: the copy continues from the newest state; cancelling its run touches nothing of the original."""
    id = host_run(app, "add chair")
    saver.copy_thread("t", "copy")
    assert contents(app.get_state(thread("copy")).values) == contents(app.get_state(THREAD).values)
    copied = host_run(app, "add table", thread("copy"))
    saver.delete_for_runs([copied])
    assert world.items == ["chair"]
    saver.delete_for_runs([id])
    assert world.items == []
    assert contents(app.get_state(thread("copy")).values)[0] == "add chair"


def test_g3_a_copy_never_replaces_a_thread(app, saver):
    """G3: an existing target and an impossible name are refused, and a thread that nobody has is not copied."""
    run(app, "add chair")
    app.invoke(said("look"), thread("other"))
    with pytest.raises(Conflict, match="already exists"):
        saver.copy_thread("t", "other")
    with pytest.raises(InvalidInput, match="name"):
        saver.copy_thread("t", "")
    saver.copy_thread("nobody", "new")
    assert app.get_state(thread("new")).values == {}


def test_g3_a_deleted_thread_is_erased(app, saver, repo, world):
    """G3: its session is gone, what its tools did stays, and a run begins it anew."""
    run(app, "add chair")
    saver.delete_thread("t")
    saver.delete_thread("t")
    assert repo.sessions() == []
    assert world.items == ["chair"]
    run(app, "look")
    assert contents(app.get_state(THREAD).values)[0] == "look"


def test_g3_prune_keeps_the_conversation_or_deletes_the_thread(app, saver, repo):
    """G3: `keep_latest` deletes checkpoints that nothing needs, `delete` the session; other words are refused."""
    run(app, *["look"] * 5)
    values, points = contents(app.get_state(THREAD).values), len(repo.session("t").log())
    saver.prune(["t", "nobody"])
    assert contents(app.get_state(THREAD).values) == values
    assert len(repo.session("t").log()) < points
    with pytest.raises(InvalidInput, match="strategy"):
        saver.prune(["t"], strategy="all")
    saver.prune(["t"], strategy="delete")
    assert repo.sessions() == []


def test_g3_other_users_threads_are_not_there(repo, world):
    """G3: a user's saver neither reads, copies, cancels nor deletes a thread of somebody else with the same id."""
    graph = tool_node_graph(obedient(), world.tools())
    ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
    app = ada.graph(graph, effects=world.effects())
    id = host_run(app, "add chair")
    foreign = bob.saver()
    assert foreign.get_tuple(THREAD) is None
    assert list(foreign.list(THREAD)) == []
    foreign.delete_for_runs([id])
    foreign.copy_thread("t", "copy")
    foreign.delete_thread("t")
    foreign.prune(["t"], strategy="delete")
    assert world.items == ["chair"]
    assert bob.sessions() == []
    assert contents(app.get_state(THREAD).values)[0] == "add chair"


# -- the tools of served graphs in another process


def test_g3_a_session_is_rolled_back_before_any_run_of_this_process(database, app, world):
    """G3: after a restart, the tools of the served graph undo the calls of threads that it has not run yet."""
    before = run(app, "add chair", "add table")
    with agentgit.open(database.url) as restarted:
        graph = restarted.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
        restarted.session("t").undo()
        assert world.items == ["chair"]
        assert len(contents(graph.get_state(THREAD).values)) < len(contents(app.get_state(before[1]).values))


def test_g3_tools_that_two_graphs_have_are_not_guessed(database, app, world):
    """G3: if two graphs have different tools of one name, neither undoes a call whose graph is not known."""
    run(app, "add chair")
    other = World()
    with agentgit.open(database.url) as restarted:
        graphs = [
            restarted.graph(tool_node_graph(obedient(), one.tools()), effects=one.effects()) for one in (world, other)
        ]
        with pytest.raises(RollbackBlocked, match="declared here"):
            restarted.session("t").undo()
        assert (world.items, len(graphs)) == (["chair"], 2)
        graphs[0].invoke(said("look"), THREAD)  # now it is known
        restarted.session("t").undo(2)
        assert world.items == []
