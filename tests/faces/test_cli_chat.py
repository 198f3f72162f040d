"""`agentgit chat`: conversations through a pipe and at a terminal."""

import codecs
import importlib
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import processes
import pytest
from chats import COMMANDS, AskedQuestion, ModelToolCall, chatting, continue_turn, send_message
from command_line import Ran, run
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from merge_graphs import state_graph, told
from scripted import GRAPHS, World, call, calls, obedient, scripted, tool_node_graph

import agentgit
from agentgit import (
    Ambiguous,
    InvalidInput,
    NotFound,
    RollbackBlocked,
    RollbackIncomplete,
    WorkspaceChanged,
    WorldDiverged,
)

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
HOSTILE = "\x1b[31mred\x1b]0;title\x07\u202e"

CLERK = """
import pathlib, time
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState, StateGraph
from scripted import World, call, obedient, scripted, tool_node_graph

WORLD = World()
GRAPH = tool_node_graph(obedient(), WORLD.tools())
EFFECTS = WORLD.effects()
NOTHING = 7

def make():
    return GRAPH

def asking():
    replies = call("add_if_approved", item="a"), call("add_if_approved", item="b"), "fine"
    return tool_node_graph(scripted(*replies), WORLD.tools())

class Noted(MessagesState):
    note: str

def noting():
    def write(state):
        return {"messages": [AIMessage("noted")], "note": state["messages"][-1].content}
    return StateGraph(Noted).add_node("write", write).set_entry_point("write").compile()

def slow():
    def wait(state):
        if state["messages"][-1].content == "slow":
            pathlib.Path("waits").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.05)
        return {"messages": [AIMessage("quick")]}
    return StateGraph(MessagesState).add_node("wait", wait).set_entry_point("wait").compile()
"""


class Folder:
    """A folder with a module of graphs, their world in this process, and a database of agentgit.

    Args:
        path: The path of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "clerk.py").write_text(CLERK)
        sys.modules.pop("clerk", None)
        self.clerk = importlib.import_module("clerk")
        self.world: World = self.clerk.WORLD

    def chat(self, *lines: str, graph: str = "clerk:GRAPH", words: tuple[str, ...] = ("--yes",)) -> Ran:
        """Pipe lines to a chat in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.path)
            patch.setenv("COLUMNS", "100")
            said = "".join(f"{line}\n" for line in lines)
            return run("chat", graph, "--effects", "clerk:EFFECTS", *words, stdin=said)

    def environment(self) -> dict[str, str]:
        """Return the environment of a separate process."""
        paths = os.pathsep.join(processes.PATHS)
        return {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": paths, "XDG_STATE_HOME": str(self.path)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Create a folder whose module this process can import."""
    monkeypatch.syspath_prepend(tmp_path)
    return Folder(tmp_path)


def plainly(text: str) -> str:
    """Replace the times and ids, which differ from run to run."""
    return re.sub(r"\b\d{15,16}\b", "<id>", re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "<time>", text))


STORY = """hello
add chair
/checkpoint create "before the table" --description "all is in the cart"
add table
/tree
/diff
/plan "before the table"
/checkpoint restore "before the table"
add sofa
/undo
/redo
/undo 2
/redo
/checkpoint undo
/checkpoint create again
/checkpoint list
/fork --name another
/switch another
add stool
/switch main
look
/switch main --sync world
look
/branches
/log 2
/tree
//not a command
/exit
never said"""


@pytest.mark.long
def test_a_chat_runs_through_a_pipe(folder):
    """Each line is one turn or one command, and the output is exactly the recorded conversation."""
    done = folder.chat(*STORY.splitlines(), words=("shop", "--yes"))
    assert plainly(done.out) == (GOLDEN / "chat.txt").read_text(encoding="utf-8")
    assert done.err.startswith("error: The world has changed since branch main last ran")
    assert done.err.endswith(" /switch main --sync ignore goes on anyway.\n")
    assert "/switch main --sync world brings the world to it." in done.err
    assert done.err.count("\n") == 1
    assert done.code == WorldDiverged.exit_code
    assert folder.world.items == ["chair", "table"]


def test_the_help_lists_every_command(folder):
    """/help lists each command with its arguments and says how to send a line that begins with a slash."""
    out = folder.chat("/help").out
    assert out == (GOLDEN / "chat-help.txt").read_text(encoding="utf-8")
    assert all(f"/{name}" in out for name in COMMANDS)


def test_a_later_chat_continues_the_session_and_can_go_back(folder):
    """A later chat continues the most recent session, and its commands reach the earlier checkpoints."""
    folder.chat("add chair", "/checkpoint create cart", "add table")
    assert folder.chat("/checkpoint restore cart", "/log 1").out.count("main-2#1") == 1
    assert folder.world.items == ["chair"]
    folder.chat("add lamp", words=("--yes", "@main-2"))
    assert folder.world.items == ["chair", "lamp"]
    with agentgit.open(folder.path / "agentgit.db") as repo:
        assert [session.session_name for session in repo.sessions()] == ["chat"]


def test_a_piped_chat_reverses_nothing_without_yes(folder):
    """In a pipe without --yes a command that would change the world shows its plan and does nothing."""
    asked = folder.chat("add chair", "/undo", "hello", "/undo", words=())
    assert "reverse  add(item='chair')" in asked.out
    assert asked.err.startswith("error: There is no terminal to ask for confirmation. Add --yes")
    assert asked.err.count("\n") == 1
    assert asked.code == InvalidInput.exit_code
    assert folder.world.items == ["chair"]
    assert folder.chat("/undo --yes", words=()).code == 0
    assert folder.world.items == []


def test_a_failed_turn_is_reported_and_the_chat_continues(folder):
    """The error is one line, the unfinished turn can be continued or undone, and the exit code reports it."""
    done = folder.chat("add chair; fail now", "/continue", "/undo", "/continue", "hello")
    assert folder.world.items == []
    first, hint, second, again, nothing = done.err.splitlines()
    assert first == second == "error: RuntimeError: now"
    assert hint == again == "The turn is not finished: /continue resumes it, /undo rolls it back."
    assert nothing == "error: No turn was interrupted here."
    assert done.out.endswith("hm\n")
    assert done.code == 1


ASKER = """
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import interrupt

def ask(state):
    raise RuntimeError(interrupt("sure?"))

GRAPH = StateGraph(MessagesState).add_node(ask).set_entry_point("ask").compile()
"""


def test_after_an_answer_and_a_failure_the_chat_asks_no_more(folder, monkeypatch):
    """The answer is kept: the turn can be continued with it, and the next text is a new message."""
    monkeypatch.chdir(folder.path)
    (folder.path / "asker.py").write_text(ASKER)
    done = folder.chat("hello", "storm", "/continue", "again", graph="asker:GRAPH")
    hint = "The turn is not finished: /continue resumes it, /undo rolls it back."
    assert done.err.splitlines() == ["error: RuntimeError: storm", hint] * 2
    assert done.out.count("sure?") == 2


@pytest.mark.long
def test_a_blocked_rollback_can_be_forced_in_the_chat(folder):
    """A rollback past a sent mail shows what blocks it and what to write, and runs with --force."""
    blocked = folder.chat("hello", "add chair", "send mail", "/undo 2", "/checkpoint undo", "/rewind-files main#1")
    assert "block    send(text='mail')" in blocked.out
    assert "--force keeps what cannot be reversed." in blocked.err
    assert "There is no named checkpoint on this branch." in blocked.err
    assert "agentgit chat MODULE:GRAPH --workspace DIR keeps its files" in blocked.err
    assert blocked.code == RollbackBlocked.exit_code
    forced = folder.chat("/rollback main#1 --force")
    assert forced.out.endswith("1 reversed, 1 kept.\n")
    assert folder.world.items == []


SCRIBE = """
import pathlib
from file_tools import Desk
DESK = Desk(pathlib.Path("work").absolute())
GRAPH, EFFECTS = DESK.graph(), {"add": DESK.world.effects()["add"]}
"""


@pytest.fixture
def scribe(folder, monkeypatch):
    """Return a function that chats with an agent that writes files in a workspace."""
    monkeypatch.chdir(folder.path)
    monkeypatch.setenv("AGENTGIT_HOME", str(folder.path / "home"))
    (folder.path / "scribe.py").write_text(SCRIBE)
    sys.modules.pop("scribe", None)

    def chat(*lines: str, words: tuple[str, ...] = ()) -> Ran:
        return folder.chat(*lines, graph="scribe:GRAPH", words=("--effects", "scribe:EFFECTS", *words))

    return chat


@pytest.mark.long
def test_undo_redo_and_rewind_restore_files_in_the_chat(folder, scribe):
    """/undo, /redo and /rewind-files restore files only with --yes, and leave files in conflict with --force."""
    chat, note = scribe, folder.path / "work" / "a.txt"
    chat("write a.txt one", "write a.txt two", words=("--workspace", "work"))
    asked = chat("/rewind-files HEAD~1")  # in a later chat, which names no workspace
    assert re.search(r"write +a\.txt", asked.out)
    assert (asked.code, note.read_text()) == (InvalidInput.exit_code, "two")
    note.write_text("by hand")
    for order in ("/rewind-files HEAD~1", "/undo"):
        refused = chat(f"{order} --yes")
        assert (refused.code, note.read_text()) == (WorkspaceChanged.exit_code, "by hand")
        assert "--force leaves these files as they are" in refused.err
        assert "--overwrite-files restores them" in refused.err
    assert chat("/undo --yes --force").code == 0
    assert note.read_text() == "by hand"
    assert chat("/redo --yes").code == 0
    assert note.read_text() == "by hand"
    assert "1 file overwritten" in chat("/rewind-files HEAD~1 --yes --overwrite-files").out
    assert note.read_text() == "one"


@pytest.mark.long
def test_an_incomplete_rollback_is_resumed_in_the_chat(folder):
    """An undo function that raises leaves an operation, and /resume completes it and moves the chat to its
    branch.
    """
    folder.world.broken.add("chair")
    stopped = folder.chat("add chair", "/undo")
    assert stopped.code == RollbackIncomplete.exit_code
    assert "failed  add(item='chair')" in stopped.out
    operation = re.search(r"/resume (\d+) finishes it", stopped.err)
    folder.world.broken.clear()
    assert operation is not None
    done = folder.chat(f"/resume {operation[1]}", "/branches")
    assert folder.world.items == []
    assert "* main-2" in done.out


def test_an_interrupted_reversal_is_resolved_in_the_chat():
    """After an interrupted reversal the chat continues, /tool-track shows the id and /resolve records the
    outcome.
    """
    world, dying = World(), [True]

    def undo(args, result):
        if dying:
            dying.clear()
            raise KeyboardInterrupt
        world.remove(args, result)

    with agentgit.open(":memory:") as repo:
        effects = world.effects(add=agentgit.reversible(undo))
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=effects)
        out, err = io.StringIO(), io.StringIO()
        with chatting(repo, agent, yes=True) as chat, redirect_stdout(out), redirect_stderr(err):
            for line in ("add chair", "/undo", "/undo", "hello", "/tool-track"):
                chat.handle_line(line)
            found = re.search(r"\d{15,16}(?=  reversible  reverse_unknown)", out.getvalue())
            assert found is not None
            chat.handle_line(f"/resolve {found[0]} perhaps")
            chat.handle_line(f"/resolve {found[0]} did-not-happen")
            chat.handle_line("/undo")
    assert world.items == []
    half_way, broken, blocked, diverged, perhaps = err.getvalue().splitlines()
    assert half_way == "Interrupted, perhaps half way. /status --operations lists them."
    assert broken == "Interrupted."
    assert "it is unknown whether an earlier rollback reversed it" in blocked
    assert diverged.startswith("error: The world has changed")
    assert perhaps.startswith("error: outcome must be 'happened' or 'did_not_happen'")


def test_a_question_of_the_graph_is_answered_by_the_next_line(folder):
    """A question of the graph is shown and the next line answers it, one question after the other."""
    done = folder.chat("go", "yes", "no", graph="clerk:asking")
    assert done.out.splitlines() == [
        "→ add_if_approved(item='a')",
        '? {"add": "a"}',
        "→ add_if_approved(item='b')",
        '? {"add": "b"}',
        "fine",
    ]
    assert folder.world.items == ["a"]


def test_hostile_text_writes_no_escapes(folder):
    """Names, messages, arguments and errors cannot control, reorder or overwrite anything in a terminal."""
    done = folder.chat(
        f"add {HOSTILE}x", f"fail {HOSTILE}", "/undo", f"/checkpoint create {HOSTILE} {HOSTILE}", f"/{HOSTILE}",
        f"/fork --name {HOSTILE}", "/checkpoint list", "/tree", "/diff main#1", f"/rollback {HOSTILE}no",
    )  # fmt: skip
    for text in (done.out, done.err):
        assert "x1b[31mred" in text
        assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("graph", "words", "code", "said"),
    [
        ("nowhere:GRAPH", (), NotFound.exit_code, "nowhere:GRAPH cannot be imported"),
        ("clerk:nothing", (), NotFound.exit_code, "clerk:nothing"),
        ("clerk:NOTHING", (), InvalidInput.exit_code, "int is not a LangGraph graph"),
        ("clerk:GRAPH", ("--effects", "clerk"), InvalidInput.exit_code, "clerk:NAME"),
        ("clerk:GRAPH", ("--effects", "clerk:NOTHING"), InvalidInput.exit_code, "must be a mapping"),
        ("clerk:GRAPH", ("@nothing",), NotFound.exit_code, "no session yet"),
        ("scripted", (), NotFound.exit_code, "has no compiled graph"),
    ],
)
def test_invalid_chat_arguments_fail_with_one_line(folder, graph, words, code, said):
    """Bad input: an invalid graph, effects or branch fails with its exit code before the first turn."""
    wrong = folder.chat("hello", graph=graph, words=words)
    assert (wrong.out, wrong.code) == ("", code)
    assert said in wrong.err
    assert wrong.err.count("\n") == 1


def test_the_only_graph_of_a_module_needs_no_name(folder):
    """A module with one graph needs no name, a function is called for its graph, and two graphs are ambiguous."""
    assert folder.chat("hello", graph="clerk").out == "hm\n"
    assert folder.chat("hello", graph="clerk:make").out == "hm\n"
    folder.clerk.OTHER = tool_node_graph(obedient(), World().tools())
    assert folder.chat("hello", graph="clerk").code == Ambiguous.exit_code


# -- the pieces of a turn


async def heard(pieces):
    """Return the pieces of a turn as a list."""
    return [piece async for piece in pieces]


@pytest.mark.parametrize("kind", GRAPHS)
async def test_a_turn_of_every_kind_of_graph_yields_its_texts_and_calls(kind):
    """With any kind of graph a turn yields its texts and calls once each, also in the second turn."""
    world = World()
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(GRAPHS[kind](obedient(), world.tools()), "s", effects=world.effects())
        await heard(send_message(agent, "hello"))
        said, *called, done = await heard(send_message(agent, "add chair; charge 5"))
        assert (said.text, done.text) == ("hm", "done")
        assert called == [ModelToolCall("add", {"item": "chair"}), ModelToolCall("charge", {"amount": 5})]


class Streaming(GenericFakeChatModel):
    """A model that streams word by word."""

    def bind_tools(self, tools, **options):
        return self


async def test_a_streamed_answer_is_yielded_piece_by_piece():
    """The pieces of a streamed answer are yielded one by one, belong to one message and make up the whole."""
    model = Streaming(messages=iter([AIMessage("let me see")]))
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(tool_node_graph(model, World().tools()), "s")
        pieces = await heard(send_message(agent, "go"))
        assert [piece.text for piece in pieces] == ["let", " ", "me", " ", "see"]
        assert len({piece.message for piece in pieces}) == 1


@pytest.mark.long
async def test_a_json_answer_reaches_the_graph_as_json():
    """An answer that is a JSON object or list reaches the graph as such, any other answer as text."""
    asked = calls(call("add_if_approved", item="a"))
    for answer, added in (("yes", ["a"]), ('{"not": "yes"}', []), ("{not json", []), ('["yes"]', [])):
        world = World()
        with agentgit.open(":memory:") as repo:
            agent = repo.wrap(tool_node_graph(scripted(asked, "fine"), world.tools()), "s")
            assert (await heard(send_message(agent, "go")))[-1] == AskedQuestion({"add": "a"})
            with pytest.raises(InvalidInput, match="waiting for an answer"):
                await heard(continue_turn(agent))
            await heard(send_message(agent, answer))
            assert world.items == added


def test_a_rollback_by_the_model_is_reported_in_the_chat():
    """When a tool rolls the agent back, the chat shows the report and continues on the new branch."""
    world = World()
    with agentgit.open(":memory:") as repo:
        replies = [
            calls(call("add", item="chair")), "ok", calls(call("rollback_to_checkpoint", checkpoint="main#1")), "back",
            calls(call("rollback_to_checkpoint", checkpoint="main#1")), "not back",
        ]  # fmt: skip
        plain = tool_node_graph(scripted(), world.tools())
        tools = [*world.tools(), *repo.wrap(plain, "s", effects=world.effects()).checkpoint_tools()]
        agent = repo.wrap(tool_node_graph(scripted(*replies), tools), "s", effects=world.effects())
        with chatting(repo, agent) as chat, redirect_stdout(io.StringIO()) as out:
            chat.handle_line("add chair")
            chat.handle_line("go back")
        assert world.items == []
        assert "Rollback done: session s, branch main-2" in out.getvalue()
        assert chat.agent.branch.name == "main-2"


def test_a_chat_follows_its_commands_while_its_session_is_on_another_branch():
    world = World()
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
        agent.run("add chair")
        side = agent.fork(name="side")
        side.run("add table")
        other = repo.wrap(agent.graph, "other", effects=world.effects())
        with chatting(repo, side, yes=True) as chat, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):

            def branch_after(line: str) -> str:
                chat.handle_line(line)
                return chat.agent.branch.name

            assert branch_after("/undo") == "side-2"
            assert agent.session.branch().name == "main"
            assert branch_after("/redo") == "side"
            agent.session.switch("main", "ignore")  # in another process
            assert branch_after("/rollback side#2 --json") == "side-3"
            assert branch_after("add lamp") == "side-3"
            assert branch_after("/rewind 1") == "side-4"
            assert branch_after("/undo s@main") == "main-2"  # the session moves there
            side.session.switch("side-2")
            for line in ("/switch nowhere", "/switch other main", "/rollback s@side side#2", "/fork", "/log"):
                assert branch_after(line) == "main-2"
            assert other.session.branch().name == "main"
        assert world.items == []


def test_a_chat_goes_on_after_its_own_merge(tmp_path, monkeypatch):
    (tmp_path / "clerk.py").write_text("from merge_graphs import state_graph\n\nGRAPH = state_graph()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "clerk", raising=False)
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(state_graph(), "s")
        told(agent, "start", note="a")
        retry = agent.fork(name="retry")
        told(retry, "theirs", note="b")
        err = io.StringIO()
        with chatting(repo, agent, yes=True) as chat, redirect_stdout(io.StringIO()), redirect_stderr(err):
            chat.handle_line("/merge clerk:GRAPH retry")
            assert chat.agent.state["note"] == "b"
            told(chat.agent, "after", note="c")
        assert err.getvalue() == ""


# -- a terminal


class Terminal:
    """A chat in a separate process, at a pseudo-terminal.

    Args:
        folder: The folder of the chat.
        graph: The graph, as `module:NAME`.
        kind: The kind of the terminal.
    """

    def __init__(self, folder: Folder, graph: str, kind: str = "xterm") -> None:
        self.ours, theirs = pty.openpty()
        # The process that runs the tests may ignore SIGINT, which its children would inherit.
        listens = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        chat = f"{listens}; from agentgit.cli import main; main()"
        command = [sys.executable, "-c", chat, "chat", graph, "--effects", "clerk:EFFECTS"]
        self.process = subprocess.Popen(  # noqa: S603  # our own command
            command, cwd=folder.path, env=folder.environment() | {"TERM": kind, "PROMPT_TOOLKIT_NO_CPR": "1"},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in the middle of a character

    def until(self, text: str, again: Callable[[], None] = lambda: None) -> None:
        """Wait for a text after the previous one, and call `again` after every four seconds without output."""
        deadline = time.monotonic() + 180
        while text not in self.shown:
            ready, _, _ = select.select([self.ours], [], [], 4)
            if ready:
                self.shown += self._decoder.decode(os.read(self.ours, 10_000))
            else:
                assert time.monotonic() < deadline, f"{text!r} was never shown; there is {self.shown!r}"
                again()
        self.shown = self.shown.partition(text)[2]

    def type(self, text: str) -> None:
        """Type a text at the terminal."""
        os.write(self.ours, text.encode())

    def interrupt(self, text: str) -> None:
        """Send Ctrl-C at the prompt until a text is shown; Python may miss a signal before it waits for keys."""
        self.process.send_signal(signal.SIGINT)
        self.until(text, lambda: self.process.send_signal(signal.SIGINT))

    def end(self) -> int:
        """Press Ctrl-D, and return the exit code."""
        self.type("\x04")
        code = self.process.wait(180)
        os.close(self.ours)
        return code

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + 180
    while not is_so():
        assert time.monotonic() < deadline, "it was never so"
        time.sleep(0.05)


@pytest.mark.long
def test_a_terminal_chat_prompts_asks_completes_and_keeps_history(folder):
    """A terminal prompt has the branch, an undo asks, Tab completes, and lines are stored with mode 0600."""
    with Terminal(folder, "clerk:GRAPH") as there:
        there.until("session chat, branch main. /help lists the commands")
        there.until("main>")
        there.type("add chair\n")
        there.until("main>")
        there.type("/undo\n")
        there.until("reverse  add(item='chair')")
        there.until("? [y/N] ")
        there.type("n\n")
        there.until("Nothing was done")
        there.type("/undo\n")
        there.until("? [y/N] ")
        there.type("y\n")
        there.until("1 reversed.")
        there.until("main-2>")
        there.type("/nothing\n")
        there.until("error: No such command")
        there.until("main-2>")
        there.type("/tre\t\n")  # Tab completes the command
        there.until("HEAD -> main-2")
        there.until("main-2>")
        assert there.end() == 0
        history = folder.path / "agentgit" / "chat_history"
        lines = [line[1:] for line in history.read_text().splitlines() if line.startswith("+")]
        assert lines == ["add chair", "/undo", "/nothing", "/tree"]
        assert history.stat().st_mode & 0o777 == 0o600
        assert history.parent.stat().st_mode & 0o777 == 0o700


def test_rewind_goes_back_before_a_message(folder):
    """/rewind rolls back to before one of the user's messages, by its number from the newest."""
    out, err, code = folder.chat(
        "add chair", "add table", "/rewind 1 --yes", "/log 1", "/rewind 9", "/rewind", words=()
    )
    assert "Rollback done: session chat, branch main-2, 1 tool call replayed from the record." in out
    assert "before: add table" in out
    assert "reversed  add(item='table')" in out
    assert "There is no message '9' of yours on this branch." in err
    assert out.splitlines()[-1].split() == ["1", "add", "chair"]  # only what is left on the branch
    assert "There is no terminal to choose a message at." in err
    assert code == NotFound.exit_code


@pytest.mark.long
def test_rewind_picks_a_message_with_the_arrow_keys_and_refills_the_prompt(folder):
    """At a terminal /rewind lets one pick a message with the arrow keys or cancel with Escape or Ctrl-C; it shows
    the plan, asks, and the prompt begins with the message.
    """
    with Terminal(folder, "clerk:GRAPH") as there:
        there.until("main>")
        for line in ("add chair", "add table", "add sofa"):
            there.type(f"{line}\n")
            there.until("done")
            there.until("main>")
        for cancel in ("\x1b", "\x03"):
            there.type("/rewind\n")
            there.until("3. add chair")
            there.type(cancel)
            there.until("Nothing was done.")
            there.until("main>")
        there.type("/rewind\n")
        there.until("Roll back to before which message?")
        there.until("3. add chair")
        there.type("\x1b[B\r")  # down to the second newest
        there.until("reverse  add(item='sofa')")
        there.until("reverse  add(item='table')")
        there.until("Roll back session chat, branch main? [y/N] ")
        there.type("y\n")
        there.until("2 reversed.")
        there.until("main-2> add table")  # the prompt is refilled
        there.type("top\n")
        there.until("done")
        there.until("main-2>")
        there.type("/log 1\n")
        there.until("main-2#")
        there.until("main-2>")
        assert there.end() == 0
    with agentgit.open(folder.path / "agentgit.db") as repo:
        agent_messages = [
            m["content"] for m in repo.session("chat").branch().conversation_history if m["role"] == "user"
        ]
    assert agent_messages == ["add chair", "add tabletop"]


@pytest.mark.long
def test_ctrl_c_interrupts_the_turn_but_not_the_chat(folder):
    """Ctrl-C drops a line or ends a turn whose node waits; the chat continues, and the turn can be undone."""
    with Terminal(folder, "clerk:slow") as there:
        there.until("main>")
        there.type("half a li")
        there.until("half a li")
        there.interrupt("main>")
        there.type("slow\n")
        there.until("slow")
        until(folder.path.joinpath("waits").exists)  # otherwise the signal may interrupt the line
        there.process.send_signal(signal.SIGINT)  # once: a second signal would interrupt the response to the first
        there.until("Interrupted.")
        there.until("/undo rolls it back.")
        there.until("main>")
        there.type("/undo\n")
        there.until("main-2>")
        there.type("fast\n")
        there.until("quick")
        there.until("main-2>")
        (folder.path / "go").touch()  # only now may the interrupted node end
        assert there.end() == 0


@pytest.mark.long
def test_a_piped_chat_accepts_bytes_that_are_not_utf8(folder):
    """Bad input: a byte that is not UTF-8 and a last line without an end stop nothing, and no prompt is written."""
    done = subprocess.run(  # our own command
        [sys.executable, "-m", "agentgit", "chat", "clerk:GRAPH"],
        cwd=folder.path, env=folder.environment(), input=b"\xff\r\n\n  \nhello", capture_output=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == (b"hm\nhm\n", b"", 0)


def test_a_chat_starts_from_a_template(folder):
    """--template starts the new session from a checkpoint of another one."""
    folder.chat("add chair", words=("one", "--yes"))
    out, _, code = folder.chat("/log", "/tool-track", words=("two", "--template", "one@main#2"))
    assert code == 0
    assert "from one@main#2" in out
    assert "no tool calls yet" in out


def test_tab_completes_commands_and_references(folder):
    """Tab offers commands, their options and the references of the session, with quotes around spaces."""
    with agentgit.open(folder.path / "agentgit.db") as repo:
        agent = repo.wrap(folder.clerk.GRAPH, "s", effects=folder.clerk.EFFECTS)
        agent.run("add chair")
        agent.checkpoint("before payment")
        with chatting(repo, agent) as talk:
            assert talk.complete("", "/tre") == ["/tree"]
            assert talk.complete("", "hello") == talk.complete("say ", "/tr") == []
            assert talk.complete("/checkpoint ", "") == ["create", "list", "restore", "undo"]
            assert talk.complete("/switch main ", "--s") == ["--sync"]
            assert talk.complete("/rollback ", "m") == ["main", "main#3", "main#2", "main#1"]
            assert talk.complete("/checkpoint restore ", "bef") == ["'before payment'"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/rollbak x", "No such command 'rollbak'. Did you mean 'rollback'?"),
        ("/undo 0 --yes", "Invalid value for '--steps'"),
        ("/rollback", "Missing argument"),
        ("/rollback before the payment", "put quotes around a name"),
        ("/rollback 'before", "Close each quote that you open."),
        ("/tree --nothing", "No such option: --nothing"),
        ("/serve", "Run it in a terminal: agentgit serve"),
        ("/--no-pager serve", "Run it in a terminal: agentgit serve"),
    ],
)
def test_a_wrong_slash_command_fails_with_one_line(folder, line, said):
    """Bad input: an unknown command suggests a similar one, a wrong use says what is missing, and the chat goes on."""
    done = folder.chat("hello", line, "hello")
    assert done.out.endswith("hm\nhm\n")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_every_command_acts_on_the_session_of_the_chat(folder):
    """A command that the help does not list acts on the session and the branch of the chat."""
    folder.chat("add sofa", words=("other", "--yes"))
    out, err, code = folder.chat(
        "add chair", "/tag HEAD good", "/fork --name retry", "/switch retry", "/tool-track", "/search chair", "/status",
        words=("mine", "--yes"),
    )  # fmt: skip
    assert (err, code) == ("", 0)
    assert "add(item='chair')" in out
    assert "branch   retry" in out
    assert "sofa" not in out
    with agentgit.open(folder.path / "agentgit.db") as repo:
        assert [tag.name for tag in repo.session("mine").tags()] == ["good"]
