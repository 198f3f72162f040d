"""Batches run in order, abandoned streams and callbacks leave no half-done work, and closed repositories raise."""

import asyncio
import gc
import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import backend
import faults
import points
import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.base import empty_checkpoint
from scripted import World, node_graph, obedient, obeying, say, tool_node_graph

import agentgit
from agentgit import AgentGitError, Conflict, NotFound, SQLModelSaver, Unavailable

SAID = ["add chair", "add table", "add lamp"]
INPUTS = [say(text) for text in SAID]


def wrapped(repo, world, **how):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(), **how)


def asked(agent):
    return [message.content for message in agent.messages() if message.type == "human"]


# -- batches


async def test_a_batch_runs_its_inputs_one_after_another(repo, world):
    """The turns form one conversation in the order of the inputs, also through a binding that LangChain makes."""
    agent = wrapped(repo, world)
    with pytest.raises(ValueError, match="2 configs for 3 inputs"):
        agent.batch(INPUTS, [{}, {}])
    assert [answer["messages"][-1].content for answer in agent.batch(INPUTS)] == ["done"] * 3
    found = [(n, answer["messages"][-1].content) for n, answer in agent.batch_as_completed(INPUTS)]
    assert found == [(0, "done"), (1, "done"), (2, "done")]
    bound = agent.with_config(tags=["bound"])
    assert [n async for n, _ in bound.abatch_as_completed(INPUTS)] == [0, 1, 2]
    assert (asked(agent), world.items) == (SAID * 3, ["chair", "table", "lamp"] * 3)


async def test_a_batch_with_return_exceptions_runs_every_turn(repo):
    agent = wrapped(repo, World())
    wrong = [say("hm"), {"messages": 5}, say("add chair")]
    kinds = [isinstance(one, Exception) for _, one in agent.batch_as_completed(wrong, return_exceptions=True)]
    again = [isinstance(one, Exception) async for _, one in agent.abatch_as_completed(wrong, return_exceptions=True)]
    assert kinds == again == [False, True, False]
    with pytest.raises(type(next(one for _, one in agent.batch_as_completed(wrong[1:], return_exceptions=True)))):
        list(agent.batch_as_completed(wrong))


# -- turns that Ctrl-C breaks off as they begin or end


def ctrl_c():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("broken_off", "place"),
    [
        (faults.before, points.FLUSH_WITH_WORK),
        (faults.after, points.FLUSH_WITH_WORK),
        (faults.before, points.END_TURN),
        (faults.after, points.END_TURN),
        (faults.after, points.BEGIN_TURN),
    ],
)
def test_a_turn_that_is_broken_off_gives_its_branch_back(repo, work, broken_off, place):
    """What it did is recorded as its own, so that it can be undone, and the next turn runs at once."""
    agent = writing(repo, work)
    agent.run("hm")
    with faults.on_another_machine(), broken_off(place, ctrl_c, in_this_thread=True), pytest.raises(KeyboardInterrupt):
        agent.run("note second")
    has_run = place is not points.BEGIN_TURN
    assert (work / "a.txt").read_text() == ("second" if has_run else "first")
    assert (agent.run("hm"), writing(repo, work).run("hm")) == ("hm", "hm")
    assert asked(agent) == ["hm", *["note second"][:has_run], "hm", "hm"]
    assert agent.rollback("main#2").report.files.problem == ""
    assert (work / "a.txt").read_text() == "first"


def test_a_stream_that_is_broken_off_gives_its_branch_back(repo, world):
    agent = wrapped(repo, world)
    with faults.on_another_machine(), faults.before(points.END_TURN, ctrl_c), pytest.raises(KeyboardInterrupt):
        list(agent.stream(INPUTS[0]))
    assert agent.run("add table") == "done"
    assert wrapped(repo, world).run("add lamp") == "done"
    assert world.items == ["chair", "table", "lamp"]


# -- abandoned streams


@pytest.fixture
def work(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    (made / "a.txt").write_text("first")
    return made


def writing(repo, work):
    """Wrap a graph whose tool `note` writes a file of its workspace."""

    @tool
    def note(text: str) -> str:
        """Write a file."""
        (work / "a.txt").write_text(text)
        return "noted"

    return repo.wrap(tool_node_graph(obedient(), [note]), "s", workspace=work)


def until_written(work):
    return (work / "a.txt").read_text() == "x"


@pytest.mark.parametrize("force", [False, True])
def test_a_rewind_by_others_during_a_stream_names_the_running_turn(repo, work, force):
    """A rewind or rollback by others fails because the turn runs, not because the files changed."""
    agent = writing(repo, work)
    stream = agent.stream(say("note x"))
    for _ in stream:
        if until_written(work):
            break
    other = wrapped(repo, World(), workspace=work)
    for back in (other.rewind_files, other.rollback, repo.session("s").rewind_files, repo.session("s").rollback):
        with pytest.raises(Conflict, match=r"main is running.*close the stream"):
            back("main#1", force=force)
    with ThreadPoolExecutor() as pool, pytest.raises(Conflict, match="main is running"):
        pool.submit(agent.rewind_files, "main#1").result()
    assert (work / "a.txt").read_text() == "x"


BACK = {
    "rewind_files": lambda agent: agent.rewind_files("main#1") and agent,
    "undo": lambda agent: agent.undo(),
    "rollback": lambda agent: agent.rollback("main#1"),
}


@pytest.mark.parametrize("verb", BACK)
def test_the_reader_of_a_stream_goes_back_inside_of_it(repo, work, verb):
    """Going back ends the turn: the stream yields nothing more, and the agent goes on."""
    agent = after = writing(repo, work)
    for _ in agent.stream(say("note x")):
        assert after is agent
        if until_written(work):
            after = BACK[verb](agent)
    assert (work / "a.txt").read_text() == "first"
    assert after.run("hello") == "hm"


def test_a_rewind_works_after_a_break_out_of_a_stream(repo, work):
    """A stream without a reference ends with the loop, so that the files can be rewound."""
    agent = writing(repo, work)
    for _ in agent.stream(say("note x")):
        if until_written(work):
            break
    agent.rewind_files("main#1")
    assert (work / "a.txt").read_text() == "first"


@pytest.mark.parametrize("verb", [*BACK, "aundo"])
async def test_the_reader_of_an_async_stream_goes_back_inside_of_it(repo, work, verb):
    agent = after = writing(repo, work)
    async for _ in agent.astream(say("note x")):
        assert after is agent
        if until_written(work):
            after = await agent.aundo() if verb == "aundo" else BACK[verb](agent)
    assert (work / "a.txt").read_text() == "first"
    assert await after.arun("hello") == "hm"


@pytest.mark.parametrize("mode", ["checkpoints", "tasks", "values", "updates"])
@pytest.mark.parametrize(("steps", "items"), [(1, ["chair", "lamp"]), (2, ["chair"]), (3, [])])
@pytest.mark.parametrize("verb", ["undo", "aundo"])
async def test_undo_at_the_first_event_of_a_stream_takes_back_its_own_turn_first(repo, verb, mode, steps, items):
    """The first event may come before the turn has changed anything; the turns before it stay."""
    world = World()
    agent = obeying(repo, world)
    for text in ("add chair", "add lamp"):
        await agent.arun(text)
    async for _ in agent.astream(say("add table"), stream_mode=mode):
        back = await agent.aundo(steps) if verb == "aundo" else agent.undo(steps)
    assert world.items == items
    assert [one.content for one in back.messages() if one.type == "human"] == [f"add {item}" for item in items]
    assert await back.arun("hello") == "hm"


@pytest.mark.parametrize(("verb", "given"), [("rollback", "nowhere"), ("rewind_files", "nowhere"), ("undo", 99)])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_refusal_inside_of_a_stream_says_that_its_turn_has_ended(repo, work, verb, given, is_async):
    agent = writing(repo, work)
    async for _ in agent.astream(say("note x")):
        if until_written(work):
            with pytest.raises(NotFound, match=r"stream was read has ended.*agent\.invoke\(None\) continues") as ended:
                await getattr(agent, f"a{verb}")(given) if is_async else getattr(agent, verb)(given)
    assert [step.verb for step in ended.value.next].count("continue") == 1
    assert (await agent.ainvoke(None))["messages"][-1].content == "done"
    with pytest.raises(NotFound) as refused:
        await getattr(agent, f"a{verb}")(given)
    assert "has ended" not in str(refused.value)


@pytest.mark.parametrize("kind", ["on_chat_model_start", "on_chat_model_end", "on_tool_end", "on_chain_end"])
@pytest.mark.parametrize("leaves", [False, True])
async def test_an_event_stream_in_which_the_reader_went_back_ends_without_a_word(repo, work, caplog, kind, leaves):
    agent = after = writing(repo, work)
    async for event in agent.astream_events(say("note x"), version="v2"):
        assert after is agent
        if event["event"] == kind:
            after = await agent.aundo()
            if leaves:
                break
    gc.collect()
    await asyncio.sleep(0.1)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert await after.arun("hello") == "hm"


async def test_going_back_inside_a_stream_is_refused_while_a_tool_acts(repo):
    begun, go_on = threading.Event(), threading.Event()

    @tool
    def note(text: str) -> str:
        """Wait."""
        begun.set()
        return str(go_on.wait(30))

    agent = repo.wrap(tool_node_graph(obedient(), [note]), "s")
    async for event in agent.astream_events(say("note x"), version="v2"):
        if event["event"] == "on_tool_start":
            await asyncio.to_thread(begun.wait, 30)
            with pytest.raises(Conflict, match="a tool of this turn is running"):
                agent.undo()
            go_on.set()
    assert [call.status for call in agent.tool_track()] == ["done"]


@pytest.mark.parametrize("verb", ["arewind_files", "arollback", "aundo", "acheckpoint", "aswitch"])
@pytest.mark.parametrize("events", [False, True])
async def test_verbs_work_after_a_break_out_of_an_async_stream(repo, work, verb, events):
    """Verbs that need the branch wait until the event loop has closed the abandoned stream."""
    agent = writing(repo, work)
    asked = say("note x")
    async for _ in agent.astream_events(asked, version="v2") if events else agent.astream(asked):
        if until_written(work):
            break
    arguments = {"arewind_files": ["main#1"], "arollback": ["main#1"], "aswitch": ["main", "world"]}
    await getattr(agent, verb)(*arguments.get(verb, []))
    if verb != "acheckpoint":
        assert (work / "a.txt").read_text() == ("x" if verb == "aswitch" else "first")


STREAMS = {
    "agent": lambda agent, app: agent.astream(say("note x")),
    "events": lambda agent, app: agent.astream_events(say("note x"), version="v2"),
    "served graph": lambda agent, app: app.astream(say("note x"), {"configurable": {"thread_id": "t"}}),
}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("how", ["break", "error", "kept", "undo"])
def test_a_stream_that_is_left_as_its_loop_ends_prints_nothing(repo, work, kind, how, monkeypatch, caplog):
    """The turn ends, as with LangGraph alone, and the next one begins."""
    agent, printed, kept = writing(repo, work), [], []
    app = repo.graph(agent.graph, workspace=work)
    monkeypatch.setattr(sys, "unraisablehook", lambda one: printed.append(str(one.exc_value)))

    async def leave():
        after = agent
        stream = STREAMS[kind](agent, app)
        if how == "kept":
            kept.append(stream)
        async for chunk in stream:
            if until_written(work) and chunk.get("event", "on_tool_end") == "on_tool_end":
                if how == "undo" and kind != "served graph":
                    after = agent.undo()
                if how == "error":
                    del stream
                    raise RuntimeError("storm")
                break
        return after

    after = agent
    with suppress(RuntimeError):
        after = asyncio.run(leave())
    kept.clear()
    gc.collect()
    assert (printed, [one.message for one in caplog.records if one.name == "asyncio"]) == ([], [])
    assert after.run("hello") == "hm"
    assert app.invoke(say("hello"), {"configurable": {"thread_id": "t"}})["messages"][-1].text == "hm"


# -- callbacks inside transactions


def exported(repo):
    file = io.BytesIO()
    repo.session("s").export(file)
    file.seek(0)
    return file


IN_A_TRANSACTION = {
    "gc": lambda repo, progress: repo.maintenance.gc(progress=progress),
    "import_": lambda repo, progress: repo.import_(exported(repo), session="copy", progress=progress),
}


@pytest.mark.parametrize("verb", IN_A_TRANSACTION)
@pytest.mark.parametrize("other", [False, True])
def test_a_progress_callback_that_writes_is_refused(repo, verb, other, request):
    """A callback that writes would deadlock: it raises Conflict, nothing is half done, and later writes work."""
    agent = wrapped(repo, World())
    agent.run("add chair")
    writer = agentgit.open(backend.url(repo)) if other else repo
    request.addfinalizer(writer.close)
    made = []

    def progress(*_):
        made.append(writer.session(f"written {len(made)}", create=True))

    with pytest.raises(Conflict, match="inside a transaction"):
        IN_A_TRANSACTION[verb](repo, progress)
    assert "copy" not in [one.session_name for one in repo.sessions()]
    assert writer.session("afterwards", create=True).name == "afterwards"
    assert IN_A_TRANSACTION[verb](repo, None)
    assert repo.maintenance.fsck(level=3).findings == ()


VERBS = IN_A_TRANSACTION | {"fsck": lambda repo, progress: repo.maintenance.fsck(progress=progress)}


@pytest.mark.parametrize("verb", VERBS)
def test_a_progress_callback_may_read(repo, verb):
    wrapped(repo, World()).run("add chair")
    seen = []
    VERBS[verb](repo, lambda *_: seen.append(len(repo.sessions())))
    assert set(seen) == {1}


@pytest.mark.parametrize("verb", VERBS)
def test_a_callback_that_reads_an_in_memory_database_is_refused(verb):
    """An in-memory database has one connection, so a nested transaction raises Conflict."""
    with agentgit.open(":memory:") as repo:
        wrapped(repo, World()).run("add chair")
        with pytest.raises(Conflict, match="inside a transaction"):
            VERBS[verb](repo, lambda *_: repo.sessions())
        assert repo.maintenance.fsck(level=3).findings == ()
        assert VERBS[verb](repo, None)


async def test_a_callback_that_writes_through_a_thread_is_refused(repo):
    wrapped(repo, World()).run("add chair")
    raised = []

    def progress(*_):
        try:
            asyncio.run(repo.asession("written", create=True))
        except Conflict as error:
            raised.append(str(error))

    await asyncio.to_thread(repo.maintenance.gc, progress=progress)
    assert raised


def test_an_error_in_a_callback_leaves_the_repository_consistent(repo):
    wrapped(repo, World()).run("add chair")

    def progress(*_):
        raise KeyError("mine")

    for work in IN_A_TRANSACTION.values():
        with pytest.raises(KeyError, match="mine"):
            work(repo, progress)
    assert [one.session_name for one in repo.sessions()] == ["s"]
    assert repo.maintenance.fsck(level=3).findings == ()


# -- after close


def test_every_verb_raises_after_the_repository_is_closed(database, tmp_path):
    repo = agentgit.open(database.url)
    work = tmp_path / "work"
    work.mkdir()
    agent = wrapped(repo, World(), workspace=work)
    agent.run("add chair")
    session, point = repo.session("s"), agent.head
    saver = SQLModelSaver(backend.database(repo))
    repo.close()
    repo.close()
    config = {"configurable": {"thread_id": "t"}}
    verbs = [
        *(getattr(agent, name) for name in ("get_state", "undo", "redo", "fork", "tree", "messages", "tool_track")),
        *(partial(getattr(agent, name), "main") for name in ("run", "checkpoint", "switch", "merge", "explore")),
        *(partial(getattr(agent, name), "main#1") for name in ("rollback", "rewind_files")),
        lambda: agent.invoke(None),
        lambda: next(agent.stream(say("hm"))),
        lambda: agent.head,
        lambda: agent.update_state(None, {"messages": []}),
        lambda: asyncio.run(agent.ainvoke(say("hm"))),
        repo.sessions,
        repo.maintenance.gc,
        repo.maintenance.fsck,
        lambda: list(repo.events.list()),
        lambda: repo.events.on("*", print),
        lambda: repo.as_user("ann"),
        lambda: repo.wrap(agent.graph, "s"),
        lambda: repo.import_(io.BytesIO(b"x")),
        lambda: saver.get_tuple(config),
        lambda: list(saver.list(config)),
        lambda: saver.delete_thread("t"),
        lambda: asyncio.run(saver.aget_tuple(config)),
        saver.gc,
        agent.session.tags,
        session.branches,
        lambda: repo.session("s").export(io.BytesIO()),
        lambda: point.session_state,
    ]
    assert repr(agent).endswith("closed)")
    for verb in verbs:
        with pytest.raises(Unavailable, match=r"was closed, and .*Open it again"):
            verb()
    with agentgit.open(database.url) as again:
        assert asked(again.wrap(agent.graph, "s")) == ["add chair"]


def test_closing_the_repository_ends_a_running_turn_with_an_error(repo):
    world = World()
    with agentgit.open(backend.url(repo)) as other:
        agent = wrapped(other, world)
        stream = agent.stream(say("add chair"))
        next(stream)
        closing = threading.Thread(target=other.close)
        closing.start()
        closing.join()
        with pytest.raises(AgentGitError):
            list(stream)
    again = wrapped(repo, world)
    again.run("add table")
    assert repo.maintenance.fsck(level=3).findings == ()


def test_what_an_interrupted_run_saves_late_does_not_reach_the_next_turn(repo):
    """Ctrl-C does not stop LangGraph's threads, which may save a step after the turn has ended."""
    interrupted = []

    def save_late():
        config = interrupted[0]
        saver = config["configurable"]["__pregel_checkpointer"]
        checkpoint = empty_checkpoint() | {"channel_versions": {"messages": 9}}
        with pytest.raises(Conflict, match="This run was interrupted"):
            saver.put(config, checkpoint, {"source": "loop", "step": 7, "parents": {}}, {"messages": 9})
        with pytest.raises(Conflict, match="This run was interrupted"):
            saver.put_writes(
                config | {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}, [], "t"
            )

    def answer(state, config: RunnableConfig):
        if not interrupted:
            interrupted.append(config)
            raise KeyboardInterrupt
        save_late()
        return {"messages": [("ai", "done")]}

    agent, turns = repo.wrap(node_graph(answer), "s"), []

    def remember(turn_of, *args):
        turns.append(turn_of(*args))
        return turns[-1]

    with faults.around(points.TURN_OF_SAVE, remember), pytest.raises(KeyboardInterrupt):
        agent.run("one")
    save_late()
    with faults.around(points.TURN_OF_SAVE, lambda *_: turns[0]):  # the thread had looked before the turn ended
        save_late()
    agent.run("two")
    assert [one["content"] for one in agent.history()] == ["one", "two", "done"]
    assert repo.maintenance.fsck(3).is_sound
