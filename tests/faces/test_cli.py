"""The standard output, the standard error and the exit codes of the command line."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import backend
import pytest
from command_line import golden, plainly, run
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import interrupt
from scripted import World, call, calls, node_graph, tool_node_graph

from agentgit import InvalidInput, NotFound, RollbackBlocked
from agentgit import open as open_repository
from agentgit.demo import ScriptedModel

HOSTILE = "\x1b[31mred[bold]x[/bold]\r\n\u202e日本"


@pytest.fixture
def agentgit(monkeypatch, tmp_path):
    """Return a function that runs commands in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("AGENTGIT_DATABASE_URL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return run


def rule(messages: list[BaseMessage]) -> AIMessage:
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"It is ordered ({len(messages)} messages).")
    return calls(call("add", f"call-{len(messages)}", item=str(last.content).split()[-1]))


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Path:
    """Create a database with two sessions, a rollback to a named checkpoint and a hostile message."""
    path = tmp_path_factory.mktemp("story") / "agentgit.db"
    with open_repository(path) as repo:
        other = World()
        repo.wrap(tool_node_graph(ScriptedModel(rule=rule), other.tools()), "me@example.com").run("a lamp")
        world = World()
        graph = tool_node_graph(ScriptedModel(rule=rule), world.tools())
        agent = repo.wrap(graph, "support-42", effects=world.effects())
        agent.run("order a chair")
        agent.checkpoint("before payment", description="all is in the cart", data={"ticket": 9})
        agent.run("and a table")
        retry = agent.rollback("before payment", name="retry")
        retry.run(f"rather {HOSTILE} a sofa")
    return path


@pytest.fixture
def at(agentgit, story):
    return lambda *words: agentgit("--db", str(story), *words)


@pytest.fixture
def copied(story, tmp_path):
    return Path(shutil.copy(story, tmp_path / "copy.db"))


@pytest.fixture
def on_copy(agentgit, copied):
    return lambda *words: agentgit("--db", str(copied), *words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sessions", ["sessions"]),
        ("tree", ["tree"]),
        ("tree-all", ["tree", "support-42", "--all", "--times"]),
        ("log", ["log", "support-42"]),
        ("log-main", ["log", "support-42@main"]),
        ("branches", ["branches", "support-42"]),
        ("status", ["status", "support-42@main"]),
        ("show", ["show", "support-42"]),
        ("show-named", ["show", "support-42", "before payment"]),
        ("diff", ["diff", "support-42", "main", "HEAD"]),
        ("tree-json", ["tree", "--json"]),
        ("log-json", ["log", "support-42", "-n", "2", "--json"]),
        ("show-json", ["show", "support-42", "main#3", "--json"]),
        ("compare", ["diff", "support-42", "main", "retry", "--since-fork"]),
        ("diff-other", ["diff", "support-42", "main#1", "main", "--other", "me@example.com"]),
        ("diff-json", ["diff", "support-42", "before payment", "main#5", "--json"]),
        ("branches-json", ["branches", "support-42", "--json"]),
        ("sessions-json", ["sessions", "--json"]),
        ("log-named", ["log", "support-42", "--named", "--all-branches"]),
        ("log-page", ["log", "support-42", "-n", "2", "--after", "retry#2"]),
        ("log-name", ["log", "support-42", "--name", "before payment"]),
        ("search", ["search", "support-42", "chair"]),
        ("search-all", ["search", "support-42", "table", "--all-branches", "-n", "2"]),
        ("search-hostile", ["search", "support-42", "31mred 日本"]),
        ("search-json", ["search", "me@example.com", "lamp", "--json", "-n", "1"]),
    ],
)
def test_commands_match_their_recorded_output(at, name, words):
    out, err, code = at(*words)
    assert (err, code) == ("", 0)
    assert plainly(out) == golden(f"cli-{name}.txt")
    if "--json" in words:
        json.loads(out)


def test_a_session_name_may_contain_an_at_sign(at):
    """`log me@example.com` reads the session of that name, not the branch example.com."""
    assert [e["branch"] for e in json.loads(at("log", "me@example.com", "--json").out)] == ["main"] * 2
    assert at("log", "me@example.com@main").out == at("log", "me@example.com").out


def test_show_takes_a_reference_or_a_session(at):
    """One argument is a reference in the most recent session, or else a session; two arguments are a session and a
    reference.
    """
    assert json.loads(at("show", "main#1", "--json").out)["metadata"]["reference"] == "main#1"
    lamp = json.loads(at("show", "me@example.com", "--json").out)
    assert lamp["conversation_history"][0]["content"] == "a lamp"
    assert json.loads(at("show", "me@example.com", "HEAD", "--json").out) == lamp


def test_the_database_can_be_named_in_three_ways(agentgit, story, monkeypatch):
    """The database is named before the command, after it (which wins) or in the environment, as a path or as a URL."""
    expected = agentgit("--db", str(story), "tree").out
    assert agentgit("--db", "nowhere.db", "tree", "--db", str(story)).out == expected
    assert agentgit("tree", "--db", f"sqlite:///{story}").out == expected
    monkeypatch.setenv("AGENTGIT_DATABASE_URL", str(story))
    assert agentgit("tree").out == expected


@pytest.mark.long
def test_hostile_text_is_escaped_in_the_output(at, monkeypatch):
    """Text from a session acts neither as a terminal escape nor as markup; JSON is ASCII without control characters."""
    commands = [command.split() for command in ("tree", "log", "show", "diff main HEAD", "sessions", "branches")]
    for colours in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", colours)
        for command in commands:
            out = at(*command).out
            assert not [text for text in ("\x1b[31mred", "\u202e", "\r") if text in out]
        assert r"\x1b[31mred[bold]x[/bold]" in re.sub(r"\x1b\[[0-9;]*m", "", at("log").out)
    for command in commands:
        out = at(*command, "--json").out
        assert out.isascii()
        assert out.replace("\n", "").isprintable()


# -- failures


@pytest.mark.parametrize("command", ["sessions", "branches", "tree", "log", "show", "diff a b", "db check"])
def test_a_missing_database_is_reported_and_not_created(agentgit, tmp_path, command):
    out, err, code = agentgit(*command.split())
    assert (out, code) == ("", NotFound.exit_code)
    assert err.startswith("error: There is no database agentgit.db.")
    assert "agentgit db upgrade creates one." in err
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_sessions_is_reported(agentgit):
    agentgit("db", "upgrade")
    assert agentgit("sessions") == (
        "no sessions yet; agentgit chat MODULE:GRAPH NAME creates one\n", "", 0,
    )  # fmt: skip
    assert agentgit("sessions", "--json").out == "[]\n"
    assert agentgit("log").code == NotFound.exit_code
    assert agentgit("show", "x").code == NotFound.exit_code


WRONG = [
    (["tree", "suport-42"], NotFound, "support-42"),
    (["log", "support-42@retri"], NotFound, "retry"),
    (["log", "nobody@main"], NotFound, "no session"),
    (["log", "--after", "nowhere"], NotFound, "nowhere"),
    (["log", "--tag", "nowhere"], NotFound, "nowhere"),
    (["log", "--author", "nobody"], NotFound, "nobody"),
    (["show", "before paymnt"], NotFound, "before payment"),
    (["show", "main#99"], NotFound, "main#99"),
    (["diff", "support-42", "main", "retyr"], NotFound, "retry"),
    (["branches", "\x1b[31m"], NotFound, r"\x1b[31m"),
    (["search", "nowhere", "x"], NotFound, "nowhere"),
    (["tag", "support-43"], NotFound, "support-42"),
    (["tag", "support-42", "-d", "nothing"], NotFound, "nothing"),
    (["tag", "retry#1"], InvalidInput, "retry#1 is a checkpoint. Name its new tag too: agentgit tag 'retry#1' NAME"),
    (["tag", "support-42", "HEAD", "a#b"], InvalidInput, "a#b"),
    (["tag", *"abcd"], InvalidInput, "quotes"),
    (["tag", "-d", "nothing"], InvalidInput, "several sessions"),
    (["log", "--since", "yesterday"], InvalidInput, "yesterday"),
    (["log", "-n", "0"], InvalidInput, "--limit"),
    (["log", "--no-such-option"], InvalidInput, "--no-such-option"),
    (["search", ""], InvalidInput, "no word to search for"),
    (["search", "x", "--after", "x"], InvalidInput, "not a cursor"),
    (["search", *"abc"], InvalidInput, "quotes"),
    (["diff", *"abcd"], InvalidInput, "d"),
    (["rollback"], InvalidInput, "Missing argument"),
    (["frob"], InvalidInput, "frob"),
    (["rollback", "support-42", "main#1", "--yes"], RollbackBlocked, "Nothing was done."),
]


@pytest.mark.parametrize(("words", "error", "said"), WRONG, ids=[" ".join(words) for words, _, _ in WRONG])
def test_a_wrong_command_fails_with_one_line_and_as_json_with_one_object(at, words, error, said):
    plain, as_json = at(*words), at(*words, "--json")
    assert (plain.code, as_json.code) == (error.exit_code, error.exit_code)
    assert (plain.out, as_json.out) == ("", "") or error is RollbackBlocked  # its plan is shown
    assert said in plain.err
    assert "\x1b" not in plain.err
    told = json.loads(as_json.err.splitlines()[-1])
    assert (told["error"], told["exit_code"]) == (error.__name__, error.exit_code)
    if "Usage: " not in plain.err:
        [line] = plain.err.removeprefix("session support-42, which was updated last\n").splitlines()
        assert line == f"error: {told['message']}"


def test_bad_databases_are_refused(agentgit, tmp_path):
    (tmp_path / "notes.txt").write_text("not a database " * 200)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE invoice (id INTEGER)")
    connection.close()
    assert agentgit("tree", "--db", "notes.txt").code == 11
    assert agentgit("db", "check", "--db", "notes.txt").code == 11
    assert agentgit("tree", "--db", "other.db").code == 11
    assert agentgit("tree", "--db", "mysql://host/x").code == 2
    assert agentgit("db", "upgrade", "--db", "no/such/folder/x.db").code == 13


def test_the_schema_is_created_and_checked(agentgit, tmp_path):
    sqlite3.connect(tmp_path / "new.db").close()
    unfit = agentgit("db", "check", "--db", "new.db")
    assert unfit.code == 11
    assert "agentgit db upgrade --db sqlite:///new.db" in unfit.err
    needed = backend.NEWEST_SCHEMA
    for command in ("upgrade", "check"):
        found = agentgit("db", command, "--db", "new.db")
        assert found == (f"sqlite:///new.db  schema {needed}, needed {needed}\n", "", 0)
    known = json.loads(agentgit("db", "check", "--db", "new.db", "--json").out)
    assert known == {"database": "sqlite:///new.db", "schema": needed, "needed": needed}
    with sqlite3.connect(tmp_path / "new.db") as connection:
        connection.execute("ALTER TABLE tag ADD COLUMN color TEXT")
    connection.close()
    changed = agentgit("db", "check", "--db", "new.db")
    assert (changed.code, "remove_column tag color" in changed.err) == (11, True)


@pytest.mark.long
def test_the_demo_tells_its_story_as_json(agentgit):
    told = json.loads(agentgit("demo", "--json").out)
    assert (told["database"], told["shop"]) == ("agentgit.db", "shop.db")
    assert told["said"]


# -- the process


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m agentgit` without the environment variables of agentgit and of colours."""
    command = [sys.executable, "-m", "agentgit", *words]
    known: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTGIT", "NO_COLOR", "FORCE"))}
    return subprocess.run(command, capture_output=True, text=True, env=known | environment, timeout=300, check=False)  # noqa: S603  # our own program


def test_python_m_agentgit_runs_the_command_line():
    import agentgit as package

    assert python("--version").stdout == f"agentgit {package.__version__}\n"
    shown = python("--help").stdout
    assert all(command in shown for command in ["demo", "sessions", "branches", "tree", "log", "show", "diff", "db"])


@pytest.mark.long
def test_a_pipe_gets_ascii_if_it_is_ascii_and_may_close(story):
    """`agentgit show --json | head -1` writes no traceback."""
    found = python("tree", "--db", str(story), PYTHONIOENCODING="ascii")
    assert (found.stderr, found.returncode) == ("", 0)
    assert found.stdout.isascii()
    assert "|-o retry#" in found.stdout or "`-o retry#" in found.stdout
    command = f"{sys.executable} -m agentgit show support-42 --json --db {story} | head -1"
    found = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=300, check=False)  # noqa: S603  # our own program
    assert (found.stdout, found.stderr) == ("{\n", "")


# -- search, filters, tags and completion


def test_a_search_that_finds_nothing_on_its_branch_names_the_option_for_all(at):
    assert "--all-branches" in at("search", "support-42", "zebra").out
    assert plainly(at("search", "support-42", "zebra", "--all-branches").out) == "nothing found\n"


@pytest.mark.long
def test_log_filters_counts_and_pages_checkpoints(at):
    def log(*words):
        return json.loads(at("log", *words, "--json").out)

    def every(*words):
        return log("--all-branches", *words)

    whole = every()
    middle = whole[3]["created_at"]
    assert at("log", "--all-branches", "--count").out == f"{len(whole)}\n"
    assert log("--count", "--auto") == {"count": 5}
    assert (every("--since", middle), every("--until", middle)) == (whole[:4], whole[3:])
    assert (every("--since", "2h"), every("--until", "2h")) == (whole, [])
    assert "or like 5m, 2h or 3d, counted back from now" in at("log", "--since", "1s").err
    assert [one["reference"] for one in every("--without-calls")] == ["main#1"]
    assert every("--with-calls") == [one for one in whole if one["reference"] != "main#1"]
    assert log("--author", "local") == log()
    assert every("-n", "3", "--after", str(whole[2]["id"])) == whole[3:6]
    assert at("log", "--until", "2000-01-01").out == "no matching checkpoints\n"
    assert log("support-42@main", "--after", "HEAD") == log("support-42@main")[1:]
    retry = log("support-42@retry")
    assert retry[-1]["branch"] == "main"
    assert log("support-42@retry", "--branch-only") == [one for one in retry if one["branch"] == "retry"]
    assert at("log", "--branch-only", "--all-branches").code == 2


@pytest.mark.long
def test_tags_are_managed_on_the_command_line(on_copy):
    assert re.fullmatch(r"no tags yet; agentgit --db \S+ tag REF NAME adds one\n", on_copy("tag").out)
    assert "v1" in on_copy("tag", "support-42", "main#2", "v1", "--description", "works").out
    assert on_copy("tag", "support-42", "HEAD", "v2").code == 0
    assert [one["name"] for one in json.loads(on_copy("tag", "support-42", "--json").out)] == ["v2", "v1"]
    assert "(tag: v1)" in on_copy("log", "--tag", "v1").out
    assert on_copy("show", "v1", "--json").code == 0
    assert on_copy("plan", "support-42", "v1").code == 0
    assert on_copy("tag", "support-42", "main#3", "v1").code == 6
    deleted = on_copy("tag", "support-42", "--delete", "v1")
    assert deleted.out == "main#2 of session support-42 no longer has that tag\n"
    assert json.loads(on_copy("tag", "support-42", "-d", "v2", "--json").out)["name"] == "v2"
    assert on_copy("tag").out.startswith("no tags yet")


def test_a_checkpoint_is_renamed_and_annotated(on_copy):
    """`annotate` changes the name, the description and the data of a checkpoint, and an empty value removes it."""
    renamed = on_copy("annotate", "support-42", "before payment", "--name", "paid", "--data", '{"ticket": 10}')
    assert renamed.out.startswith("session support-42, branch main\nmain#3 ")
    changed = json.loads(on_copy("show", "support-42", "paid", "--json").out)["metadata"]
    assert (changed["data"], changed["description"]) == ({"ticket": 10}, "all is in the cart")
    assert on_copy("show", "support-42", "before payment").code == NotFound.exit_code
    words = ("--name", "", "--description", "", "--data", "null", "--json")
    cleared = json.loads(on_copy("annotate", "support-42", "paid", *words).out)
    assert (cleared["reference"], cleared["name"], cleared["description"]) == ("main#3", None, None)
    assert on_copy("annotate", "support-42", "main#3").code == 2
    assert "--data is not valid JSON" in on_copy("annotate", "support-42", "main#3", "--data", "{").err


def test_recover_says_what_is_unfinished_on_the_branch_and_on_another_one(on_copy, copied):
    idle = on_copy("recover", "support-42@main")
    assert idle.err == (
        "Nothing to recover: no turn and no rollback is unfinished in session support-42, branch main.\n"
    )
    assert (idle.code, idle.out.splitlines()[0]) == (0, "session support-42")
    with closing(sqlite3.connect(copied)) as database, database:
        database.execute("UPDATE operation SET status = 'running'")
    other = on_copy("recover", "support-42@main")
    assert re.search(r"rollback (\d+) of another branch is unfinished; agentgit .*resume \1 finishes it\n", other.err)
    assert other.code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_show_completion_prints_the_script_of_the_shell(agentgit, monkeypatch, shell):
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    shown = agentgit("--show-completion")
    assert (shown.err, shown.code) == ("", 0)
    assert f"_AGENTGIT_COMPLETE=complete_{shell}" in shown.out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("agentgit log ", ["support-42", "me@example.com"]),
        ("agentgit log x", []),
        ("agentgit log me@", ["me@example.com"]),
        ("agentgit log support-42@r", ["support-42@retry"]),
        ("agentgit log nobody@", []),
        ("agentgit --db nothing.db tree d", []),
        ("agentgit log --db nothing.db ", []),
        ("agentgit plan me", ["me@example.com"]),
        ("agentgit rollback support-42 b", ["before", "payment"]),
        ("agentgit rollback r", []),
        ("agentgit rollback support-42 r", ["retry"]),
        ("agentgit show support-42 main#1", ["main#1"]),
        ("agentgit diff support-42 main retry#", ["retry#1", "retry#2", "retry#3"]),
        ("agentgit checkpoint delete nobody m", []),
        ("agentgit sea", ["search"]),
        ("agentgit log --bra", ["--branch-only"]),
        ("agentgit log --no-such", []),
    ],
)
def test_shell_completion_offers_commands_options_sessions_branches_and_places(
    agentgit, story, monkeypatch, words, offered
):
    monkeypatch.setenv("AGENTGIT_DATABASE_URL", str(story))
    assert completed(agentgit, monkeypatch, words).split() == offered


def completed(agentgit, monkeypatch, line: str) -> str:
    """Complete the last word of a line as bash does; return what is offered. Nothing else is ever written."""
    with monkeypatch.context() as patch:
        patch.setenv("_AGENTGIT_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        answer = agentgit()
    assert answer.err == ""
    return answer.out


def test_shell_completion_offers_only_what_the_user_may_see(agentgit, monkeypatch):
    """Completion offers a user's own sessions and those shared with them; a disabled user
    gets none, and neither does one whose share has ended.
    """
    with open_repository("agentgit.db") as repo:
        repo.session("of-the-owner", create=True)
        shared = repo.session("shared", create=True)
        for name in ("ada", "bob", "eve"):
            repo.users.add(name)
            shared.sharing.share(name, expires_in=timedelta(microseconds=1) if name == "bob" else None)
        repo.as_user("ada").session("own", create=True)
        repo.users.disable("eve")

    def offered(line: str) -> list[str]:
        return completed(agentgit, monkeypatch, line).split()

    assert offered("agentgit tree ") == ["shared", "of-the-owner"]
    assert offered("agentgit --user ada tree ") == ["own", "local/shared"]
    assert offered("agentgit --user ada tree local/shared@") == ["local/shared@main"]
    assert offered("agentgit --user bob tree ") == offered("agentgit --user eve tree ") == []
    assert offered("agentgit --user nobody tree ") == []


def test_shell_completion_offers_nothing_where_it_cannot_read(agentgit, monkeypatch, tmp_path):
    (tmp_path / "text.db").write_text("no database")
    sqlite3.connect(tmp_path / "other.db").close()
    files = sorted(tmp_path.iterdir())
    server = ("postgresql://me:secret@127.0.0.1:1/no", "host=127.0.0.1")
    for location in ("none.db", "text.db", "other.db", str(tmp_path), ":memory:", *server, "sqlite://", "%00"):
        monkeypatch.setenv("AGENTGIT_DATABASE_URL", location)
        assert completed(agentgit, monkeypatch, "agentgit rollback ").split() == []
    assert sorted(tmp_path.iterdir()) == files


def test_status_tree_log_and_branches_show_what_a_session_waits_for(agentgit, tmp_path):
    def ask(state):
        return {"messages": [("ai", str(interrupt("Send it?")))]}

    with open_repository(tmp_path / "agentgit.db") as repo:
        repo.wrap(node_graph(ask), "asking").invoke({"messages": [("user", "send")]})
    for words in (["status"], ["tree"], ["log"], ["log", "--limit", "1"], ["branches"]):
        assert "waits for an answer: Send it?" in agentgit(*words).out
    for words in (["log", "--named"], ["log", "--all-branches"]):
        assert "waits" not in agentgit(*words).out
