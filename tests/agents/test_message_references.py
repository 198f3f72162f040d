"""Message ids work as references, messages can be edited, and agents warn when their session has moved."""

import warnings

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from scripted import World, obedient, tool_node_graph

import agentgit
from agentgit.demo import ScriptedModel
from agentgit.errors import BranchMoved, InvalidInput, NotFound


@pytest.fixture
def agent(repo, world):
    """Create an agent that has added a chair and a table."""
    made = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    made.run("add chair")
    made.run("add table")
    return made


def ids(agent):
    """Return the ids of the user's messages, oldest first."""
    return [message["id"] for message in agent.history() if message["role"] == "user"]


def test_a_message_id_names_the_checkpoint_before_that_message(agent):
    """Wherever a checkpoint can be named, a message id means the restore point before the message."""
    first, second = ids(agent)
    for form in (second, f"message:{second}"):
        found = agent.get_checkpoint(form)
        assert (found.metadata["reference"], len(found.conversation_history)) == ("main#3", 4)
        assert agent.session.get_checkpoint(form).id == found.id
        assert agent.plan_rollback(form).checkpoint_id == found.id
        assert agent.session.diff(f"message:{first}", form).common_messages == 0
        assert agent.session.fork(form).branch
    with pytest.raises(NotFound, match="no restore point 'message:nothing'"):
        agent.get_checkpoint("message:nothing")


def test_a_checkpoint_name_wins_over_a_message_id(repo, world):
    """A checkpoint's name wins over an equal message id, and the form `message:` means the message."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [HumanMessage("hello", id="mine")]})
    named = agent.checkpoint("mine")
    assert agent.get_checkpoint("mine").id == named.id
    assert agent.get_checkpoint("message:mine").metadata["reference"] == "main#1"


def test_a_repeated_message_id_means_the_asking_branch(repo, world):
    """If two branches have a message with the same id, the id means that of the asking branch."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("hello")
    agent.invoke({"messages": [HumanMessage("add chair", id="wish")]})
    edited = agent.rollback("message:wish")
    edited.invoke({"messages": [HumanMessage("add table", id="wish")]})
    assert agent.get_checkpoint("message:wish").metadata["reference"].startswith("main#")
    assert edited.get_checkpoint("message:wish").metadata["reference"].startswith("main-2#")


def test_an_edited_message_replaces_the_old_one(agent, world):
    """Edit rolls back to before the message, reverses later effects, and runs with the new text."""
    _, second = ids(agent)
    edited = agent.edit(second, "add lamp")
    assert world.items == ["chair", "lamp"]
    assert [m["content"] for m in edited.history() if m["role"] == "user"] == ["add chair", "add lamp"]
    assert (agent.branch.name, edited.branch.name) == ("main", "main-2")
    with pytest.raises(NotFound):
        agent.edit("nothing", "add sofa")
    assert len(agent.session.branches()) == 2


async def test_aedit_does_the_same_as_edit(agent, world):
    """The async twin replaces a message and reverses later effects like edit."""
    edited = await agent.aedit(ids(agent)[1], "add lamp", name="rather a lamp")
    assert (edited.branch.name, world.items) == ("rather a lamp", ["chair", "lamp"])


@pytest.mark.long
def test_an_agent_on_a_branch_its_session_left_warns_once(repo):
    """An agent stays on its branch, and warns once when it runs on a branch that its session has left."""
    agent = repo.wrap(tool_node_graph(obedient(), []), "s")
    agent.run("hello")
    back = agent.rollback("main#1")
    with pytest.warns(BranchMoved, match=r"continues on branch 'main-2'.*runs on 'main'"):
        agent.run("hello")
    with warnings.catch_warnings():
        warnings.simplefilter("error", BranchMoved)
        agent.run("hello again")
        back.run("hello")
        agent.at("main").run("and again")
    back.session.switch("main")
    with pytest.warns(BranchMoved, match=r"continues on branch 'main'.*runs on 'main-2'"):
        back.run("hello")


def test_a_rollback_by_the_session_makes_agents_warn(repo):
    """An agent also warns after a rollback through its session."""
    agent = repo.wrap(tool_node_graph(obedient(), []), "s")
    agent.run("hello")
    agent.session.rollback("main#1")
    with pytest.warns(BranchMoved):
        agent.run("hello")


def test_each_branch_verb_returns_a_new_agent(agent):
    """Rollback, undo, redo, fork and switch leave the agent where it is and return another one."""
    made = [agent.fork(name="side"), agent.rollback("main#1"), agent.undo(), agent.switch("side")]
    made.append(made[1].redo())
    assert agent.branch.name == "main"
    assert all(one is not agent for one in made)
    assert [one.branch.name for one in made] == ["side", "main-2", "main-3", "side", "main"]


def test_each_session_verb_returns_a_report(agent):
    """The session's verbs report their kind, branch and status."""
    session = agent.session
    reports = [session.fork(name="side"), session.rollback("main#1"), session.redo(), session.switch("side")]
    assert [(one.kind, one.branch, one.status) for one in reports] == [
        ("fork", "side", "done"),
        ("rollback", "main-2", "done"),
        ("switch", "main", "done"),
        ("switch", "side", "done"),
    ]
    assert reports[-1].operation_id == 0


def test_session_and_repository_verbs_have_async_twins():
    """Each public method that does IO has an `a` twin with the same signature."""
    import inspect

    from agentgit.handles.retention import SessionRetention
    from agentgit.handles.sharing import Sharing
    from agentgit.repository.maintenance import Maintenance
    from agentgit.repository.users import Keys, Users

    without = {"close", "trust", "wrap", "agent", "graph", "saver", "trajectories"}
    for kind in (agentgit.Session, Sharing, SessionRetention, agentgit.Repository, Maintenance, Users, Keys):
        public = {n: f for n, f in inspect.getmembers(kind, inspect.isfunction) if not n.startswith("_")}
        verbs = {n for n in public if not (n.startswith("a") and n[1:] in public)} - without
        own = {n for n in verbs if public[n].__qualname__.startswith(kind.__name__)}
        assert {f"a{n}" for n in own} <= set(public), kind
        for name in own:
            assert inspect.signature(public[f"a{name}"]) == inspect.signature(public[name]), name


async def test_a_session_twin_runs_async_undo_on_the_callers_loop(repo):
    """An async undo function called by a session's async twin runs on the caller's loop."""
    import asyncio

    loops, world = [], World()

    async def undo(args, result):
        loops.append(asyncio.get_running_loop())
        world.remove(args, result)

    effects = world.effects(add=agentgit.reversible(undo))
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=effects)
    await agent.arun("add chair")
    report = await agent.session.arollback("main#1")
    assert (report.branch, world.items, loops) == ("main-2", [], [asyncio.get_running_loop()])
    with pytest.raises(InvalidInput):
        await agent.session.aundo(0)


def test_a_rollback_that_does_not_move_the_session_warns_nobody(repo):
    """A rollback of a branch that is not current, or of effects only, moves no session and causes no warning."""
    agent = repo.wrap(tool_node_graph(obedient(), []), "s")
    agent.run("hello")
    side = agent.fork(name="side")
    side.run("hello")
    side.rollback("side#1")
    agent.rollback("main#1", conversation=False)
    assert agent.session.branch().name == "main"
    with warnings.catch_warnings():
        warnings.simplefilter("error", BranchMoved)
        agent.run("hello")


def test_the_warning_points_at_the_users_code(repo):
    """The warning points at the code that called the agent, not at agentgit."""
    agent = repo.wrap(tool_node_graph(obedient(), []), "s")
    agent.run("hello")
    agent.rollback("main#1")
    with pytest.warns(BranchMoved) as told:
        agent.run("hello")
    assert told[0].filename == __file__


async def test_a_sync_verb_in_a_thread_does_not_deadlock_with_the_loop(repo):
    """After an async turn, a sync verb in a worker thread runs coroutine functions on another loop."""
    from langchain_core.runnables.config import ContextThreadPoolExecutor

    world = World()

    async def undo(args, result):
        world.remove(args, result)

    effects = world.effects(add=agentgit.reversible(undo))
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=effects)
    await agent.arun("add chair")
    with ContextThreadPoolExecutor(1) as pool:  # blocks this loop
        (report,) = pool.map(lambda _: agent.session.rollback("main#1"), [0])
    assert (report.branch, world.items) == ("main-2", [])


def test_a_failed_edit_names_the_branch_to_continue_on(repo):
    """If the new turn raises, the rollback is kept and the error names the branch."""

    def fails(messages):
        if "fail" in str(messages[-1].content):
            raise RuntimeError("no model")
        return AIMessage("ok")

    agent = repo.wrap(tool_node_graph(ScriptedModel(rule=fails), []), "s")
    agent.run("hello")
    with pytest.raises(RuntimeError) as raised:
        agent.edit(ids(agent)[0], "fail")
    assert "branch 'main-2'" in raised.value.__notes__[-1]
    assert agent.at().branch.name == "main-2"


def test_names_that_look_like_message_references_are_refused(agent):
    """Bad input: a tag or a branch whose name begins like a message reference is refused."""
    for name in (lambda: agent.session.tag("HEAD", "message:x"), lambda: agent.fork(name="message:x")):
        with pytest.raises(InvalidInput, match="message:"):
            name()
    assert agent.session.get_checkpoint(agent.checkpoint("message: sent").checkpoint_name).checkpoint_name
