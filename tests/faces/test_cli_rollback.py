"""Rollbacks, switches and undos from the command line, with only the record and trusted modules."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import faults
import points
import processes
import pytest
from banking import says
from command_line import Ran, golden, plainly, run
from scripted import call, tool_node_graph
from shelves import shelf_in

import agentgit
from agentgit import InvalidInput, NotFound, RollbackBlocked, RollbackIncomplete


class Folder:
    """A folder with a module of tools, their world in a file, and a database of agentgit."""

    def __init__(self, path: Path, shelf: ModuleType) -> None:
        self.path = path
        self.shelf = shelf

    @property
    def items(self) -> list[str]:
        return self.shelf.items()

    def play(self, *wanted) -> None:
        replies = [reply for one in wanted for reply in (one, "ok")]
        with agentgit.open(self.path / "agentgit.db") as repo:
            tools = [self.shelf.put, self.shelf.shout, self.shelf.drop]
            agent = repo.wrap(tool_node_graph(says(*replies), tools), "s")
            for one in wanted:
                agent.run(str(one["args"]))

    def run(self, *words: str, trust: str = "shelf") -> Ran:
        """Run a command in this process with a trusted module and an empty standard input."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.path)
            patch.setenv("COLUMNS", "100")
            patch.setenv("AGENTGIT_TRUST", trust)
            return run(*words)

    def process(self, *words: str, say: str = "") -> str:
        """Run a command in a separate process, and return the command, its output and its exit code as text."""
        done = processes.agentgit(*words, cwd=self.path, say=say, COLUMNS="100", NO_COLOR="1")
        return f"$ {' '.join(words)}\n{done.stdout}{done.stderr}[{done.returncode}]\n"


@pytest.fixture
def folder(tmp_path):
    with shelf_in(tmp_path) as shelf:
        yield Folder(tmp_path, shelf)


def test_a_rollback_runs_from_the_command_line(folder):
    """Processes that trust the module plan, ask and reverse, and another one restores the world."""
    folder.play(call("put", item="a book"), call("put", item="a vase"), call("put", item="a lamp"))
    said = [
        folder.process("plan", "main#2"),
        folder.process("plan", "main#2", "--trust", "shelf"),
        folder.process("rollback", "main#2", "--name", "retry", "--trust", "shelf", say="n\n"),
        folder.process("rollback", "s@main", "main#2", "--name", "retry", "--trust", "shelf", say="y\n"),
        folder.process("tool-track", "s@main"),
        folder.process("status", "s", "--operations"),
        folder.process("switch", "main", "--sync", "world", "--yes"),
        folder.process("switch", "main", "--sync", "world", "--trust", "shelf", say="y\n"),
        folder.process("switch", "retry"),
    ]
    assert plainly("".join(said)) == golden("cli-world.txt")
    assert folder.items == ["a book", "a vase", "a lamp"]


def test_a_call_that_ran_again_is_listed_with_its_new_run(folder):
    folder.play(call("put", item="a book"), call("put", item="a vase"))
    (_, first) = json.loads(folder.run("tool-track", "--json").out)
    folder.run("undo", "--yes")
    assert "reversed  put(item='a vase')" in folder.run("tool-track", "s@main").out
    folder.run("redo", "--yes")
    (_, newest) = json.loads(folder.run("tool-track", "--json").out)
    assert (newest["status"], newest["replay_of"], newest["position"]) == ("done", first["id"], 1)
    for command in ("tool-track", "show"):
        line = [line for line in folder.run(command).out.splitlines() if "put(item='a vase')" in line][-1]
        assert "done" in line
        assert line.endswith(", ran again")
    assert "reversed" not in folder.run("diff", "main#1", "HEAD").out


@pytest.mark.long
def test_a_blocked_rollback_shows_its_plan_and_does_nothing(folder):
    folder.play(call("put", item="a book"), call("shout", text="hello"))
    blocked = folder.run("rollback", "main#1")
    assert blocked.code == RollbackBlocked.exit_code
    assert "block    shout(text='hello')" in blocked.out
    assert "nearest" not in blocked.err  # only HEAD is behind the call
    assert blocked.err.count("\n") == 1
    assert folder.items == ["a book"]
    plan = json.loads(folder.run("rollback", "main#1", "--yes", "--json").out)
    assert plan["is_admissible"] is False
    forced = json.loads(folder.run("rollback", "main#1", "--force", "--yes", "--json").out)
    assert (len(forced["reversed"]), len(forced["kept"]), folder.items) == (1, 1, [])


@pytest.mark.long
def test_a_stopped_rollback_is_resolved_and_resumed(folder):
    """The report is written before the failure, a manual repair is recorded, and the rest is done once."""
    folder.play(call("put", item="a book"), call("put", item="stuck"), call("put", item="a lamp"))
    stopped = folder.run("rollback", "main#1", "--yes", "--json")
    assert stopped.code == RollbackIncomplete.exit_code
    report = json.loads(stopped.out)
    operation, failed = str(report["operation_id"]), str(report["failed"][0]["invocation"]["id"])
    assert f"agentgit resume {operation} finishes it" in stopped.err
    assert re.search(
        rf"^{operation} .* partial  1 reversed, 1 failed, 1 remai", folder.run("status", "--operations").out
    )
    assert f"1  {failed}  reversible  reverse_failed  put(item='stuck')" in folder.run("tool-track", "s@main").out
    assert folder.items == ["a book", "stuck"]
    assert f"stopped  rollback {operation}; agentgit resume {operation}" in folder.run("status").out
    (folder.path / "shelf.json").write_text('["a book"]')
    assert folder.run("resolve", failed, "happened").code == 0
    done = folder.run("resume", operation)
    assert (done.code, folder.items) == (0, [])
    assert "3 reversed." in done.out
    assert json.loads(folder.run("resume", operation, "--json").out)["status"] == "done"


def test_an_interrupted_call_is_resolved_with_its_result(folder):
    with pytest.raises(KeyboardInterrupt):
        folder.play(call("drop", item="a safe"))
    assert "block" in folder.run("plan", "main#1").out
    (lost,) = json.loads(folder.run("tool-track", "--json").out)
    assert lost["status"] == "unknown"
    wrong = folder.run("resolve", str(lost["id"]), "happened", "--result", "{")
    assert (wrong.code, wrong.out) == (InvalidInput.exit_code, "")
    assert folder.run("resolve", str(lost["id"]), "perhaps").code == InvalidInput.exit_code
    told = folder.run("resolve", str(lost["id"]), "happened", "--result", '{"item": "a safe"}', "--json")
    assert json.loads(told.out)["result"] == {"item": "a safe"}
    assert folder.run("rollback", "main#1", "--yes").code == 0
    assert folder.items == []


@pytest.mark.long
def test_rollback_options_keep_the_branch_or_the_world(folder):
    """--no-conversation makes no branch, --tools keep leaves the world, and one --request-id returns one branch."""
    folder.play(call("put", item="a book"))
    kept = json.loads(folder.run("rollback", "main#1", "--tools", "keep", "--yes", "--json", "--request-id", "r").out)
    asked = ("rollback", "@main", "main#1", "--yes", "--json", "--request-id", "r")
    assert (json.loads(folder.run(*asked, "--tools", "keep").out), folder.items) == (kept, ["a book"])
    assert folder.run(*asked).code == InvalidInput.exit_code
    folder.run("switch", "main", "--sync", "ignore")
    world = json.loads(folder.run("rollback", "main#1", "--no-conversation", "--yes", "--json").out)
    assert (world["kind"], world["branch"], folder.items) == ("world_only", "main", [])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["rollback", "main#1", "--json"], 2, "--yes"),
        (["rollback", "main#1", "--yes", "--tools", "x"], 2, "require_clean"),
        (["rollback", "main#99", "--yes"], NotFound.exit_code, "main#99"),
        (["rollback", "s@nothing", "main#1", "--yes"], NotFound.exit_code, "nothing"),
        (["rollback", "a", "b", "c"], 2, "quotes"),
        (["plan", "main#1", "--trust", "no.such"], NotFound.exit_code, "no.such"),
        (["switch", "nothing"], NotFound.exit_code, "nothing"),
        (["switch", "main", "--sync", "x"], 2, "'world', 'note' or 'ignore'"),
        (["plan", "main#1", "--trust", "shelf:take"], InvalidInput.exit_code, "take"),
        (["resume", "1"], NotFound.exit_code, "no operation"),
        (["resolve", "1", "happened"], NotFound.exit_code, "no tool invocation"),
    ],
)
def test_wrong_arguments_fail_with_their_codes(folder, words, code, said):
    folder.play(call("put", item="a book"))
    wrong = folder.run(*words)
    assert (wrong.code, wrong.out) == (code, "")
    assert said in wrong.err
    assert wrong.err.count("\n") == 1
    assert folder.items == ["a book"]


@pytest.mark.parametrize("path", ["shelf", "shelf:put", "more:GRAPH", "more:make", "more:TOOLS", "more", "plain"])
def test_trust_finds_every_tool_of_a_module_for_every_handle(folder, path):
    """A decorated function is a tool, too."""
    (folder.path / "more.py").write_text(
        "import shelf\nfrom langgraph.graph import MessagesState, StateGraph\nfrom langgraph.prebuilt import ToolNode\n"
        "TOOLS = [shelf.put]\n"
        "def make():\n    graph = StateGraph(MessagesState).add_node('tools', ToolNode(TOOLS))\n"
        "    return graph.set_entry_point('tools').compile()\n"
        "GRAPH = make()\n"
    )
    (folder.path / "plain.py").write_text(
        "import shelf as other\nfrom agentgit import reversible\n\n@reversible(other.take)\n"
        'def put(item: str) -> dict:\n    """Put it."""\n    return other.put.func(item)\n'
    )
    for name in ("more", "plain"):
        sys.modules.pop(name, None)
    folder.play(call("put", item="a book"))
    with agentgit.open(folder.path / "agentgit.db") as repo:
        assert repo.session("s").plan_rollback("main#1").blockers
        repo.trust(path)
        repo.session("s").rollback("main#1")
        assert folder.items == []
        repo.as_user(repo.user).session("s").switch("main", sync="world")
    assert folder.items == ["a book"]


@pytest.mark.long
def test_undo_and_checkpoints_need_no_graph_on_the_command_line(folder):
    folder.play(call("put", item="cup"), call("put", item="jug"))
    assert json.loads(folder.run("checkpoint", "create", "two", "--json").out)["reference"] == "main#5"
    assert folder.run("undo").code == 1
    assert folder.run("undo", "--json").code == InvalidInput.exit_code
    assert folder.items == ["cup", "jug"]
    assert json.loads(folder.run("undo", "--json", "--yes").out)["branch"] == "main-2"
    assert folder.items == ["cup"]
    assert folder.run("redo", "--yes", "--trust", "shelf").code == 0
    assert folder.items == ["cup", "jug"]
    assert json.loads(folder.run("fork", "two", "--name", "side", "--json").out)["name"] == "side"
    assert folder.run("checkpoint", "delete", "two").code == 1
    cleaned = json.loads(folder.run("checkpoint", "delete", "--auto", "--keep", "1", "--json").out)
    assert cleaned == {"session_name": "s", "branch": "main", "deleted": 2}
    assert json.loads(folder.run("rename", "@side", "aside", "--json").out)["name"] == "aside"
    (session,) = json.loads(folder.run("sessions", "--json").out)
    renamed = folder.run("rename", session["session_name"], "second")
    assert renamed.out == f"session {session['session_name']} is now called second\n"
    assert json.loads(folder.run("status", "second", "--json").out)["session"]["id"] == session["id"]
    erased = folder.run("delete", "second", "--yes", "--force")
    assert (erased.code, "second" in erased.out) == (0, True)


@pytest.mark.long
def test_replay_by_execution_needs_trusted_tools(folder):
    """What is there is reversed before the path runs again."""
    folder.play(call("put", item="cup"), call("put", item="jug"))
    again = ("rollback", "main#3", "--replay", "execute", "--yes")
    assert folder.run(*again, trust="").code == RollbackBlocked.exit_code
    assert folder.run(*again, "--tools", "keep").code == InvalidInput.exit_code
    assert folder.items == ["cup", "jug"]
    report = json.loads(folder.run(*again, "--trust", "shelf", "--json", trust="").out)
    assert [item["invocation"]["args"]["item"] for item in report["reversed"]] == ["jug", "cup"]
    assert [item["invocation"]["args"]["item"] for item in report["redone"]] == ["cup"]
    assert folder.items == ["cup"]


def test_ctrl_c_in_a_rollback_says_where_it_may_have_stopped(folder):
    folder.play(call("put", item="cup"))
    with faults.fails(points.BEGIN_OPERATION, KeyboardInterrupt()):
        done = folder.run("undo", "--yes")
    assert "Interrupted, perhaps half way. agentgit status --operations lists them." in done.err
