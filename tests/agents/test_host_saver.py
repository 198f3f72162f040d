"""What a host does to threads and runs with `repo.saver()` happens to the sessions of the served graph."""

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from file_tools import Desk
from langgraph.types import Command
from scripted import World, call, calls, obedient, scripted, tool_node_graph
from served import THREAD, contents, run, said

import agentgit
from agentgit import Conflict, InvalidInput, RollbackBlocked


@pytest.fixture
def app(repo, world):
    return repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())


@pytest.fixture
def saver(repo):
    return repo.saver()


def thread(id):
    return {"configurable": {"thread_id": id}}


def host_run(app, text, config=THREAD):
    """Run a message as a host does, and return the id of the run."""
    id = str(uuid.uuid4())
    app.invoke(said(text), {**config, "metadata": {"run_id": id}})
    return id


def cancelled_run(app, input, config=THREAD, after="tools"):
    """Run as a host does, cancel the run after a node, and return its id."""
    id = str(uuid.uuid4())
    input = said(input) if isinstance(input, str) else input
    chunks = app.stream(input, {**config, "metadata": {"run_id": id}}, stream_mode="updates")
    assert any(after in chunk for chunk in chunks)
    chunks.close()
    return id


def test_the_saver_reads_what_the_graph_reads(app, saver):
    run(app, "add chair", "look")
    listed = [one.config for one in saver.list(THREAD)]
    assert listed == [one.config for one in app.get_state_history(THREAD)]
    newest = saver.get_tuple(THREAD)
    assert newest.config == listed[0]
    with pytest.raises(InvalidInput, match="only by runs"):
        saver.put(newest.config, newest.checkpoint, newest.metadata, {})
    with pytest.raises(InvalidInput, match="only by runs"):
        saver.put_writes(newest.config, [("messages", [])], "task")
    with pytest.raises(InvalidInput):
        list(saver.list(None))


def test_a_cancelled_run_is_rolled_back(app, saver, world, repo):
    """The run is undone on a new branch; doing it again changes nothing. The first run leaves an empty thread."""
    saver.delete_for_runs([cancelled_run(app, "add chair")])
    assert (world.items, app.get_state(THREAD).values) == ([], {})
    run(app, "add chair")
    id, branches = cancelled_run(app, "add table"), len(repo.session("t").branches())
    for _ in range(2):
        saver.delete_for_runs([id])
        assert world.items == ["chair"]
        assert len(repo.session("t").branches()) == branches + 1
    assert contents(app.get_state(THREAD).values)[0] == "add chair"
    run(app, "add lamp")
    assert world.items == ["chair", "lamp"]


def test_what_has_ended_stays(app, saver, world, repo):
    """As does a run that another one or an update of the state has followed, and one that nobody knows."""
    ended, followed = host_run(app, "add chair"), cancelled_run(app, "add table")
    last = host_run(app, "add lamp")
    saver.delete_for_runs([ended, followed, last, str(uuid.uuid4())])
    assert world.items == ["chair", "table", "lamp"]
    assert len(repo.session("t").branches()) == 1
    updated = cancelled_run(app, "add sofa")
    app.update_state(THREAD, said("hello"))
    saver.delete_for_runs([updated])
    assert world.items == ["chair", "table", "lamp", "sofa"]
    assert contents(app.get_state(THREAD).values)[-1] == "hello"


def test_what_needs_consent_or_cannot_be_undone_stays_and_is_reported(app, saver, world, repo):
    """A payment, a mail and an item whose undo raises stay, and the other effects are reversed."""
    id = cancelled_run(app, "add chair; add table; charge 5; send hello")
    world.broken.add("table")
    saver.delete_for_runs([id])
    assert (world.items, world.charges, world.sent) == (["table"], [5], ["hello"])
    report = repo.session("t").operations()[0].report
    assert (len(report["reversed"]), len(report["kept"])) == (1, 3)
    assert any("table is stuck" in one["reason"] for one in report["kept"])


def test_a_run_that_asks_for_consent_is_cancelled_without_effect(app, saver, world):
    (before, _) = run(app, "add chair", "charge 5")
    values = contents(app.get_state(THREAD).values)
    id = cancelled_run(app, "add lamp", before, after="__interrupt__")
    saver.delete_for_runs([id])
    assert not app.get_state(THREAD).interrupts
    assert (world.items, world.charges) == (["chair"], [5])
    run(app, "add sofa")
    assert contents(app.get_state(THREAD).values)[: len(values)] == values


def asking(repo, world, first):
    """Serve a graph that makes a call and, in the same batch, one that asks."""
    model = scripted(calls(first, call("add_if_approved", item="table")), "done", "hello")
    return repo.graph(tool_node_graph(model, world.tools()), effects=world.effects())


def test_an_answer_is_taken_back_and_the_question_is_open_again(repo, saver, world):
    """Cancelling the run of an answer keeps what the run before it did, and another answer counts."""
    app = asking(repo, world, call("add", item="chair"))
    run(app, "hello")
    assert app.get_state(THREAD).interrupts
    saver.delete_for_runs([cancelled_run(app, Command(resume="yes"))])
    assert world.items == ["chair"]
    assert app.get_state(THREAD).interrupts
    app.invoke(Command(resume="no"), THREAD)
    assert world.items == ["chair"]


def test_files_in_conflict_stay_and_the_report_says_why(repo, saver, tmp_path):
    """The effects of tools are still reversed, and an undo that raises stops nothing."""
    desk = Desk(tmp_path / "files")
    effects = desk.world.effects(write_file="workspace")
    app = repo.graph(desk.graph(), effects=effects, workspace=desk.root, check_effects=False)
    run(app, "add chair")
    id = cancelled_run(app, "add table; write a.txt draft; add lamp")
    (desk.root / "a.txt").write_text("keep me")
    desk.world.broken.add("table")
    saver.delete_for_runs([id])
    assert desk.world.items == ["chair", "table"]
    report = repo.session("t").operations()[0].report
    kept = {one["reason"] for one in report["kept"]}
    assert "both a turn and somebody else have changed files, so all are left as they are" in kept
    assert not any("as requested" in reason for reason in kept)
    assert desk.files == {"a.txt": "keep me"}


async def test_waiting_for_a_run_holds_no_thread_of_the_loop(repo, app, saver):
    """With one thread in the executor of the loop, a thread is deleted as soon as its run has ended."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    running = asyncio.create_task(app.ainvoke(said("add_later chair"), THREAD))
    while not repo.sessions():
        await asyncio.sleep(0.01)
    await asyncio.gather(saver.adelete_thread("t"), running, return_exceptions=True)
    assert repo.sessions() == []


async def test_undo_functions_of_coroutines_run_on_the_hosts_loop(repo, saver, world):
    loops, id = [], str(uuid.uuid4())

    async def remove(args, result):
        loops.append(asyncio.get_running_loop())
        world.items.remove(args["item"])

    app = repo.graph(tool_node_graph(obedient(), [world.tool("add")]), effects={"add": agentgit.reversible(remove)})
    chunks = app.astream(said("add chair"), {**THREAD, "metadata": {"run_id": id}}, stream_mode="updates")
    async for chunk in chunks:
        if "tools" in chunk:
            break
    await chunks.aclose()
    await asyncio.gather(*(saver.adelete_for_runs([id]) for _ in range(3)))
    assert (loops, world.items) == ([asyncio.get_running_loop()], [])


def test_a_copied_thread_has_a_world_of_its_own(app, saver, world):
    """The copy continues from the newest state; cancelling its run touches nothing of the original."""
    run(app, "add chair")
    saver.copy_thread("t", "copy")
    assert contents(app.get_state(thread("copy")).values) == contents(app.get_state(THREAD).values)
    saver.delete_for_runs([cancelled_run(app, "add table", thread("copy"))])
    assert world.items == ["chair"]
    saver.delete_for_runs([cancelled_run(app, "add lamp")])
    assert world.items == ["chair"]
    assert contents(app.get_state(thread("copy")).values)[0] == "add chair"


def test_a_thread_that_waits_is_not_copied(repo, saver, world):
    """The calls of a batch whose question is open would happen again in the copy, so it is refused."""
    app = asking(repo, world, call("charge", amount=5))
    run(app, "hello")
    with pytest.raises(Conflict, match="waits for an answer"):
        saver.copy_thread("t", "copy")
    app.invoke(Command(resume="yes"), THREAD)
    saver.copy_thread("t", "copy")
    app.invoke(said("hello"), thread("copy"))
    assert (world.items, world.charges) == (["table"], [5])


def test_a_copy_never_replaces_a_thread(app, saver):
    run(app, "add chair")
    app.invoke(said("look"), thread("other"))
    with pytest.raises(Conflict, match="already exists"):
        saver.copy_thread("t", "other")
    with pytest.raises(InvalidInput, match="name"):
        saver.copy_thread("t", "")
    saver.copy_thread("nobody", "new")
    assert app.get_state(thread("new")).values == {}


def test_a_deleted_thread_is_erased(app, saver, repo, world):
    run(app, "add chair")
    saver.delete_thread("t")
    saver.delete_thread("t")
    assert repo.sessions() == []
    assert world.items == ["chair"]
    run(app, "look")
    assert contents(app.get_state(THREAD).values)[0] == "look"


def test_prune_keeps_the_conversation_or_deletes_the_thread(app, saver, repo):
    run(app, *["look"] * 5)
    values, points = contents(app.get_state(THREAD).values), len(repo.session("t").log())
    saver.prune(["t", "nobody"])
    assert contents(app.get_state(THREAD).values) == values
    assert len(repo.session("t").log()) < points
    with pytest.raises(InvalidInput, match="strategy"):
        saver.prune(["t"], strategy="all")
    saver.prune(["t"], strategy="delete")
    assert repo.sessions() == []


def test_other_users_threads_are_not_there(repo, world):
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


def test_a_session_is_rolled_back_before_any_run_of_this_process(database, app, world):
    before = run(app, "add chair", "add table")
    with agentgit.open(database.url) as restarted:
        graph = restarted.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
        restarted.session("t").undo()
        assert world.items == ["chair"]
        assert len(contents(graph.get_state(THREAD).values)) < len(contents(app.get_state(before[1]).values))


def test_tools_that_two_graphs_have_are_not_guessed(database, app, world):
    """If two graphs have different tools of one name, neither undoes a call whose graph is not known."""
    run(app, "add chair")
    with agentgit.open(database.url) as restarted:
        worlds = (world, World())
        graphs = [restarted.graph(tool_node_graph(obedient(), one.tools()), effects=one.effects()) for one in worlds]
        with pytest.raises(RollbackBlocked, match="declared here"):
            restarted.session("t").undo()
        assert world.items == ["chair"]
        graphs[0].invoke(said("look"), THREAD)  # now it is known
        restarted.session("t").undo(2)
        assert world.items == []


@pytest.mark.parametrize("other", ["user", "wrap", "name"])
def test_tools_of_another_world_undo_nothing(database, other):
    """The graph of another user, of another name, or beside `repo.wrap` does not undo a call of this session."""
    own, foreign = World(), World()
    foreign.items.append("chair")
    graph = tool_node_graph(obedient(), own.tools())
    with agentgit.open(database.url) as repo:
        bob = repo.as_user(repo.users.add("bob")) if other == "user" else repo
        if other == "wrap":
            bob.wrap(graph, "t", effects=own.effects()).invoke(said("add chair"))
        else:
            bob.graph(graph, effects=own.effects()).invoke(said("add chair"), THREAD)
    with agentgit.open(database.url) as restarted:
        graph = tool_node_graph(obedient(), foreign.tools())
        if other == "name":
            graph.name = "another"
        served = restarted.graph(graph, effects=foreign.effects())
        bob = restarted.as_user("bob") if other == "user" else restarted
        with pytest.raises(RollbackBlocked, match="declared here"):
            bob.session("t").undo()
        assert (own.items, foreign.items, served.name) == (["chair"], ["chair"], graph.name)
