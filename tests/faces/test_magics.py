"""The notebook magics %agentgit and %%branch, their completion and the live tree."""

import io

import pytest
from IPython.core.error import UsageError
from notebook_shells import magic, restart
from scripted import obedient, tool_node_graph

import agentgit
from agentgit import InvalidInput, WorldDiverged
from agentgit.notebook import live

# IPython's history leaves a thread and a file open, for which the garbage collector warns.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def shell(ipython, repo, world):
    """Create a shell with a repository and an agent that has run two turns."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "my session", effects=world.effects())
    agent.run("add chair")
    agent.checkpoint("before the table")
    agent.run("add table")
    restart(ipython, repo=repo, agent=agent)
    return ipython


def usage_error(shell, line) -> str:
    with pytest.raises(UsageError) as raised:
        magic(shell, line)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.long
def test_read_only_magics_return_the_same_values_as_the_agent(shell, world):
    agent, repo = shell.user_ns["agent"], shell.user_ns["repo"]
    assert "my session" in repr(magic(shell, ""))
    assert str(magic(shell, "tree")) == str(agent.tree())
    assert magic(shell, "branches") == agent.session.branches()
    assert magic(shell, "tool-track") == agent.tool_track()
    assert magic(shell, "tool-track -n 1") == agent.tool_track()[-1:]
    assert [p.id for p in magic(shell, "log")][::-1] == [p.id for p in agent.session.log(branch=agent.branch_id)]
    assert [p.metadata["reference"] for p in magic(shell, "log -n 2")] == ["main#4", "main#5"]
    assert str(magic(shell, "plan 'before the table'")) == str(agent.plan_rollback("before the table"))
    assert str(magic(shell, "diff main#3 HEAD")) == str(repo.session().diff("main#3", "main#5"))
    assert magic(shell, "search table").items
    assert magic(shell, "stats").total.checkpoints == 5
    assert magic(shell, "diff main#2 HEAD --since-fork") is not None
    assert world.items == ["chair", "table"]


def test_a_rollback_rebinds_the_variable_to_an_agent_on_the_new_branch(shell, shown, world):
    first = shell.user_ns["agent"]
    shell.user_ns["also"] = first
    report = magic(shell, "rollback 'before the table' --name retry --yes")
    assert (report.status, world.items) == ("done", ["chair"])
    assert shell.user_ns["agent"].branch.name == "retry"
    assert shell.user_ns["also"].branch.name == "main"
    assert repr(shown[-1]) == "agent is on branch retry of session my session"
    magic(shell, "switch main --sync world --yes")
    assert shell.user_ns["agent"].branch.name == "main"
    assert world.items == ["chair", "table"]
    shell.user_ns["agent"].run("add lamp")
    magic(shell, "undo --yes")
    assert world.items == ["chair", "table"]
    assert first.branch.name == "main"


def test_the_variable_follows_a_command_while_the_session_is_on_another_branch(shell, shown, world):
    agent = shell.user_ns["agent"]
    side = shell.user_ns["agent"] = agent.fork(name="side")
    side.run("add lamp")
    magic(shell, "undo --yes")
    assert shell.user_ns["agent"].branch.name == "side-2"
    assert repr(shown[-1]) == "agent is on branch side-2 of session my session"
    assert (agent.session.branch().name, world.items) == ("main", ["chair", "table"])
    shell.user_ns["agent"].run("hello")
    agent.session.switch("side")
    magic(shell, "rollback side#2 --yes --json")
    assert shell.user_ns["agent"].branch.name == "side-3"
    magic(shell, "rollback @main main#2 --yes --force")
    assert shell.user_ns["agent"].branch.name == "side-3"


def test_the_checkpoint_and_tag_magics_name_tag_and_untag(shell):
    assert "all done - at last" in repr(magic(shell, "checkpoint create 'all done' --description 'at last'"))
    magic(shell, "tag HEAD good")
    magic(shell, "tag main#2 old")
    assert {tag.name: tag.reference for tag in magic(shell, "tag")} == {"good": "main#6", "old": "main#2"}
    magic(shell, "tag --delete old")
    assert [tag.name for tag in magic(shell, "tag")] == ["good"]


WRONG = {
    "rolback x": "No such command 'rolback'. Did you mean 'rollback'?",
    "rollback nowhere --yes": "NotFound: Session my session has no checkpoint 'nowhere'",
    "tag a b c d": "write a session, a reference and a name; put quotes around each",
    "plan before the table": "put quotes around a name",
    "plan 'main": "InvalidInput: Invalid command: No closing quotation",
    "chat shop:graph": "InvalidInput: Run it in a terminal: agentgit chat",
}


def test_a_wrong_command_fails_with_one_line_and_changes_nothing(shell):
    for line, said in WRONG.items():
        assert said in usage_error(shell, line)
    assert len(shell.user_ns["agent"].session.branches()) == 1


def test_another_database_is_read_although_that_of_the_agent_is_closed(shell, world, tmp_path):
    with agentgit.open(tmp_path / "other.db") as other:
        other.wrap(tool_node_graph(obedient(), world.tools()), "theirs", effects=world.effects()).run("add lamp")
    with agentgit.open(tmp_path / "mine.db") as mine:
        agent = mine.wrap(tool_node_graph(obedient(), world.tools()), "mine", effects=world.effects())
    restart(shell, agent=agent)
    assert len(magic(shell, f"--db {tmp_path / 'other.db'} log theirs")) == 2
    assert "closed" in usage_error(shell, "log")


def test_a_blocked_rollback_shows_its_plan(shell, shown, world):
    shell.user_ns["agent"].run("send hello")
    assert "RollbackBlocked" in usage_error(shell, "rollback main#3")
    assert "send(text='hello')" in str(shown[-1])
    magic(shell, "rollback main#3 --force --yes")
    assert world.items == ["chair"]


def test_magics_read_the_session_of_the_agent_that_ran_last_and_need_an_agent_or_a_repository(shell, repo, world):
    other = repo.wrap(tool_node_graph(obedient(), world.tools()), "other")
    other.run("hello")
    shell.user_ns["other"] = other
    assert magic(shell, "log")[-1].metadata["reference"] == "main#2"
    shell.user_ns["agent"].run("hello again")
    assert magic(shell, "log")[-1].metadata["reference"] == "main#7"
    assert magic(shell, "log other")[-1].metadata["reference"] == "main#2"
    del shell.user_ns["other"], shell.user_ns["agent"], shell.user_ns["repo"]
    for line in ("", "tree"):
        assert "There is no agent here yet" in usage_error(shell, line)


def cell_magic(shell, line, cell):
    return shell.run_cell_magic("branch", line, cell)


def test_a_branch_cell_runs_on_a_new_branch_and_restores_the_agent(shell, shown, repo, world):
    agent = shell.user_ns["agent"]
    cell = "said = agent.run('note hurry')\nagent.branch.name"
    assert cell_magic(shell, "try --from 'before the table'", cell) == "try"
    assert cell_magic(shell, "try --from 'before the table'", cell) == "try-2"
    assert shell.user_ns["agent"] is agent
    assert shell.user_ns["said"] == "done"
    assert repo.session("my session").branch().name == "main"
    assert repr(shown[-1]) == "branch try-2 is at try-2#3; agent is on main again"
    assert [m["content"] for m in agent.at("try").history() if m["role"] == "user"] == ["add chair", "note hurry"]
    agent.run("add lamp")
    assert world.items == ["chair", "table", "lamp"]


def test_a_failing_branch_cell_raises_and_restores_the_agent(shell, shown):
    agent = shell.user_ns["agent"]
    with pytest.raises(ZeroDivisionError):
        cell_magic(shell, "try", "agent.run('hello')\n1 / 0")
    assert shell.user_ns["agent"] is agent
    count = len(agent.session.branches())
    with pytest.raises(UsageError, match="await"):
        cell_magic(shell, "try", "await agent.ainvoke({})")
    with pytest.raises(UsageError, match="required: NAME"):
        cell_magic(shell, "", "1")
    with pytest.raises(SyntaxError):
        cell_magic(shell, "try", "agent.run('hello'")
    assert len(agent.session.branches()) == count


def test_an_error_of_a_branch_cell_notes_what_to_do(shell, world):
    """In a diverged world `--sync world` would help; after a mail the world cannot return."""
    cell_magic(shell, "try --from 'before the table'", "agent.run('add sofa')")
    with pytest.raises(WorldDiverged) as failed:
        cell_magic(shell, "try --from 'before the table'", "agent.run('add sofa')")
    assert "--sync world" in failed.value.__notes__[0]
    with pytest.raises(ZeroDivisionError) as failed:
        cell_magic(shell, "out --from 'before the table' --sync world --yes", "agent.run('send hello')\n1 / 0")
    assert "still on branch out" in failed.value.__notes__[0]
    assert "cannot be undone" in failed.value.__notes__[0]


def test_sync_world_moves_the_world_for_the_cell_and_back(shell, shown, world):
    code = "agent.run('add sofa')\nworld_then = list(world.items)"
    shell.user_ns["world"] = world
    cell_magic(shell, "try --from 'before the table' --sync world --yes", code)
    assert shell.user_ns["world_then"] == ["chair", "sofa"]
    assert world.items == ["chair", "table"]
    shell.user_ns["agent"].run("add lamp")


@pytest.mark.parametrize("sync", ["world", "note", "ignore"])
def test_a_failing_cell_with_sync_restores_the_branch_and_the_world(shell, world, sync):
    session = shell.user_ns["agent"].session
    with pytest.raises(ZeroDivisionError):
        cell_magic(shell, f"try --from 'before the table' --sync {sync} --yes", "agent.run('note hurry')\n1 / 0")
    assert session.branch().name == "main"
    assert world.items == ["chair", "table"]
    shell.user_ns["agent"].run("add lamp")


def test_what_others_do_during_a_cell_is_asked_about_before_the_way_back(shell, shown, repo, world, monkeypatch):
    other = repo.wrap(tool_node_graph(obedient(), world.tools()), "my session", effects=world.effects())
    shell.user_ns["other"] = lambda: other.at().run("charge 100")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\nn\n"))
    with pytest.raises(UsageError, match="the answer is not yes"):
        cell_magic(shell, "try --from 'before the table' --sync world", "agent.run('add sofa')\nother()")
    assert (world.charges, repo.session().branch().name) == ([100], "try")
    assert "charge(amount=100)" in str(shown[-1])
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    shell.user_ns["agent"] = shell.user_ns["agent"].at()
    cell_magic(shell, "again --from 'before the table' --sync world", "agent.run('add sofa')\nother()")
    assert (world.charges, repo.session().branch().name) == ([100], "try")
    assert "reversed  charge(amount=100)" in str(shown[-2])


# -- which session, and the question


def texts(shown) -> list[str]:
    return [repr(value) for value in shown]


def test_every_output_names_the_session_and_the_branch(shell, shown):
    for line in ("log", "tree", "branches", "tool-track", "search table", "diff main#2 HEAD", "stats", "tag"):
        shown.clear()
        magic(shell, line)
        assert texts(shown) == ["session 'my session', branch main, variable agent"]
    magic(shell, "rollback 'before the table' --name retry --yes")
    assert texts(shown)[-1] == "agent is on branch retry of session my session"
    shown.clear()
    cell_magic(shell, "try", "agent.branch.name")
    assert texts(shown)[0] == "session 'my session', branch retry, variable agent"


CHANGES = ("undo", "redo", "rollback main#1", "switch main", "checkpoint create x", "tag main#1 x", "tag --delete x")


def test_with_several_agents_a_change_needs_the_name_of_the_session(shell, shown, repo, world):
    other = repo.wrap(tool_node_graph(obedient(), world.tools()), "other", effects=world.effects())
    other.run("add lamp")
    shell.user_ns["other"] = other
    for line in CHANGES:
        assert "There are several sessions, so name the one that you mean" in usage_error(shell, line)
    with pytest.raises(UsageError, match="several sessions"):
        cell_magic(shell, "try", "1")
    assert cell_magic(shell, "try --agent agent", "agent.branch.name") == "try"
    assert world.items == ["chair", "table", "lamp"]
    magic(shell, "log")
    assert "session other, branch main, variable other" in texts(shown)
    magic(shell, "undo 'my session' --yes")
    assert world.items == ["chair", "lamp"]
    assert shell.user_ns["agent"].branch.name == "main-2"
    assert shell.user_ns["other"] is other
    magic(shell, "undo other --yes")
    assert world.items == ["chair"]


def test_with_several_sessions_and_no_agent_a_change_needs_the_name(shell, repo):
    repo.session("newest", create=True)
    del shell.user_ns["agent"]
    for line in CHANGES:
        assert "Sessions: newest, 'my session'." in usage_error(shell, line)
    magic(shell, "tag 'my session' HEAD good")
    assert [tag.name for tag in magic(shell, "tag 'my session'")] == ["good"]
    assert magic(shell, "rollback 'my session' 'before the table' --yes").branch == "main-2"


def test_a_database_in_memory_is_reached(ipython, world):
    repo = agentgit.open(":memory:")
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "memory", effects=world.effects())
    agent.run("add chair")
    restart(ipython, repo=repo, agent=agent)
    assert magic(ipython, "undo --yes").status == "done"
    assert world.items == []
    ipython.user_ns["agent"].run("add table")
    assert ipython.user_ns["agent"].history()[0]["content"] == "add table"


ASKING = ("rollback 'before the table'", "undo", "switch try --sync world", "undo 'my session'")


def test_a_change_of_the_world_shows_its_plan_and_asks(shell, shown, world, monkeypatch, capsys):
    shell.user_ns["agent"].fork("before the table", name="try")
    for line in ASKING:
        for answer in ("n", "", "nope"):
            monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
            assert "Nothing was done, because the answer is not yes." in usage_error(shell, line)
        assert "add(item='table')" in str(shown[-1])
    assert world.items == ["chair", "table"]
    assert len(shell.user_ns["agent"].session.branches()) == 2
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert magic(shell, "undo").status == "done"
    assert world.items == ["chair"]
    assert "Undo in session 'my session', branch main? [y/N] " in capsys.readouterr().out


def test_without_somebody_to_ask_nothing_changes_and_the_flag_is_named(shell, world):
    for line in ASKING[:2]:
        assert "nobody can answer here" in usage_error(shell, line)
        assert usage_error(shell, line).endswith("Add --yes.")
    with pytest.raises(Exception, match="Add --yes"):
        cell_magic(shell, "try --from 'before the table' --sync world", "1")
    assert world.items == ["chair", "table"]
    assert len(shell.user_ns["agent"].session.branches()) == 1


def test_a_plan_that_changes_while_the_question_is_open_is_not_carried_out(shell, world, monkeypatch):
    agent = shell.user_ns["agent"]

    class SlowPerson(io.StringIO):
        def readline(self, *_):
            agent.run("add lamp")
            return "y\n"

    monkeypatch.setattr("sys.stdin", SlowPerson())
    assert "PlanChanged: Nothing was done: the confirmed plan" in usage_error(shell, "rollback 'before the table'")
    assert world.items == ["chair", "table", "lamp"]


def complete(shell, text):
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        found = shell.Completer.completions(text, len(text))
        return [text[: one.start] + one.text for one in found]


OFFERED = {
    "%agentgit roll": ["%agentgit rollback"],
    "%agentgit checkpoint c": ["%agentgit checkpoint create"],
    "%agentgit plan --no-f": ["%agentgit plan --no-files"],
    "%agentgit rollback main#": [f"%agentgit rollback main#{n}" for n in (5, 4, 3, 2, 1)],
    "%agentgit rollback 'bef": ["%agentgit rollback 'before the table'"],
    "%agentgit rollback bef": ["%agentgit rollback 'before the table'"],
    "%agentgit log my": ["%agentgit log 'my session'"],
    "%%branch try --from go": ["%%branch try --from good"],
}


def test_completion_offers_commands_options_and_names(shell):
    shell.user_ns["agent"].session.tag("HEAD", "good", branch=shell.user_ns["agent"].branch_id)
    assert {text: complete(shell, text) for text in OFFERED} == OFFERED


def test_a_live_tree_is_refused_outside_a_notebook(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s")
    with pytest.raises(InvalidInput, match="notebook"), live(agent):
        agent.run("add chair")
    assert world.items == []


# -- a real kernel


@pytest.fixture
def kernel(tmp_path):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(300, cwd=str(tmp_path), kernel_name="python3")
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(kernel, code):
    """Run a cell in the kernel, and return the reply and the shown messages."""
    messages = []
    reply = kernel.execute_interactive(code, allow_stdin=False, output_hook=messages.append, timeout=120)
    return reply["content"], [(message["msg_type"], message["content"]) for message in messages]


START = """\
import agentgit
from agentgit.demo import EFFECTS, build, open_shop
agent = agentgit.open("a.db").wrap(build(open_shop("shop.db")), session="s", effects=EFFECTS)
"""


@pytest.mark.long
@pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")
def test_the_extension_works_in_a_real_jupyter_kernel(kernel):
    """The tree grows while a cell streams, errors are one line, and the question appears in the client's input box."""
    assert run(kernel, "%load_ext agentgit")[0]["status"] == "ok"
    assert run(kernel, START)[0]["status"] == "ok"
    reply, shown = run(kernel, "%%agentgit live\nfor _ in agent.stream({'messages': [('user', 'two lamps')]}): pass")
    assert reply["status"] == "ok"
    trees = [content for kind, content in shown if kind == "update_display_data" or content.get("transient")]
    assert len({content["transient"]["display_id"] for content in trees}) == 1
    assert "0 checkpoints" in trees[0]["data"]["text/plain"]
    assert "2 checkpoints" in trees[-1]["data"]["text/plain"]
    assert "data:image/svg+xml;base64," in trees[-1]["data"]["text/html"]
    reply, shown = run(kernel, "%agentgit rollback nowhere --yes")
    assert (reply["status"], reply["ename"]) == ("error", "UsageError")
    assert [kind for kind, _ in shown if kind == "error"] == []
    assert "".join(content["text"] for kind, content in shown if kind == "stream").count("\n") <= 2
    _, shown = run(kernel, "%agentgit branches")
    assert "* main" in next(content for kind, content in shown if kind == "execute_result")["data"]["text/plain"]
    kernel.complete("%agentgit rol")
    reply = {"msg_type": ""}
    while reply["msg_type"] != "complete_reply":
        reply = kernel.get_shell_msg(timeout=60)
    assert reply["content"]["matches"] == ["rollback"]
    run(kernel, 'agent.run("order two chairs")')
    reply, shown = run(kernel, "%agentgit undo")
    assert reply["ename"] == "UsageError"
    assert "Add --yes." in "".join(content["text"] for kind, content in shown if kind == "stream")
    asked = []

    def answer(message):
        asked.append(message["content"]["prompt"])
        kernel.input("y")

    reply = kernel.execute_interactive("%agentgit undo", allow_stdin=True, stdin_hook=answer, timeout=120)
    assert reply["content"]["status"] == "ok"
    assert asked == ["Undo in session s, branch main? [y/N] "]
    assert "main-2" in str(run(kernel, "agent.branch.name")[1])


def test_the_log_magic_has_the_filters_of_the_command_line(shell, repo):
    repo.session("my session").tag("main#2", "good")
    repo.session("my session").fork("main#2", name="other")

    def listed(line):
        return [point.metadata["reference"] for point in magic(shell, line)]

    assert len(listed("log --since 1h")) == len(listed("log")) == 5
    assert listed("log --until 1h") == listed("log --until 1h -n 2") == []
    assert listed("log --name 'before the table'") == ["main#3"]
    assert listed("log --tag good") == ["main#2"]
    assert "other#1" in listed("log --all-branches")
    assert "'soon' is not a time" in usage_error(shell, "log --since soon")
