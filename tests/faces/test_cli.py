"""The standard output, the standard error and the exit codes of the command line."""

import json
import os
import re
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
from command_line import run
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from scripted import World, call, calls, tool_node_graph

from agentgit import NotFound
from agentgit import open as open_repository
from agentgit.demo import ScriptedModel

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = "\x1b[31mred[bold]x[/bold]\r\n\u202e日本"


@pytest.fixture
def agentgit(monkeypatch, tmp_path):
    """Change to an empty folder, and return a function that runs commands in this process."""
    monkeypatch.chdir(tmp_path)
    for name in ("AGENTGIT_DATABASE_URL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return run


def rule(messages: list[BaseMessage]) -> AIMessage:
    """Call the tool with the user's item, then confirm the order."""
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
    """Return a function that runs commands on the database of the story."""
    return lambda *words: agentgit("--db", str(story), *words)


def plainly(text: str) -> str:
    """Replace the ids, hashes and times, which differ from run to run."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "<hash>", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "<key>", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?(Z|\+00:00)?)?", "<time>", text)
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>", text)
    text = re.sub(r"\bai-[0-9a-f]{8}\b", "<message>", text)
    return re.sub(r"\b\d{13,16}\b", "<id>", text)


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


# -- reading sessions


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
    ],
)
def test_commands_match_their_recorded_output(at, name, words):
    """Each command over a real rollback writes exactly its recorded output, no error, and succeeds."""
    out, err, code = at(*words)
    assert (err, code) == ("", 0)
    assert plainly(out) == golden(f"cli-{name}.txt")
    if "--json" in words:
        json.loads(out)


def test_log_follows_a_branch_to_the_root(at):
    """The log of a branch that a rollback made starts with that branch and continues with its parent."""
    references = [entry["reference"] for entry in json.loads(at("log", "--json").out)]
    assert references[0].startswith("retry#")
    assert references[-1] == "main#1"
    assert json.loads(at("log", "@main", "--json").out)[0]["branch"] == "main"


def test_log_limit_keeps_the_newest_checkpoints(at):
    """`-n 2` shows the two newest checkpoints, `-n 99` shows all."""
    everything = at("log").out.splitlines()
    assert at("log", "-n", "2").out.splitlines() == everything[:2]
    assert at("log", "--limit", "99").out.splitlines() == everything


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
    """Text from a session acts neither as a terminal escape nor as markup, with colours or without."""
    for colours in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", colours)
        for command in ("tree", "log", "show", "diff main HEAD", "sessions", "branches"):
            out = at(*command.split()).out
            assert "\x1b[31mred" not in out
            assert "\u202e" not in out
            assert "\r" not in out
        assert r"\x1b[31mred[bold]x[/bold]" in re.sub(r"\x1b\[[0-9;]*m", "", at("log").out)


@pytest.mark.long
def test_json_output_is_ascii(at):
    """JSON output is ASCII and has no control characters except line ends."""
    for command in ("tree", "log", "show", "diff main HEAD", "sessions", "branches"):
        out = at(*command.split(), "--json").out
        assert out.isascii()
        assert out.replace("\n", "").isprintable()


# -- failures


@pytest.mark.parametrize("command", ["sessions", "branches", "tree", "log", "show", "diff a b", "db check"])
def test_a_missing_database_is_reported_and_not_created(agentgit, tmp_path, command):
    """Bad input: the error names both ways to continue, the exit code is that of NotFound, and no file is created."""
    out, err, code = agentgit(*command.split())
    assert (out, code) == ("", NotFound.exit_code)
    assert err.startswith("error: There is no database agentgit.db.")
    assert "Create it, or name another." in err
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_sessions_is_reported(agentgit):
    """In a new database `sessions` says that there are none and what to do, and other commands exit with NotFound."""
    agentgit("db", "upgrade")
    assert agentgit("sessions") == (
        "no sessions yet; start one with `agentgit demo` or `agentgit chat MODULE:GRAPH`\n", "", 0,
    )  # fmt: skip
    assert agentgit("sessions", "--json").out == "[]\n"
    assert agentgit("log").code == NotFound.exit_code
    assert agentgit("show", "x").code == NotFound.exit_code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tree", "suport-42"], "support-42"),
        (["log", "support-42@retri"], "retry"),
        (["log", "nobody@main"], "no session"),
        (["show", "before paymnt"], "before payment"),
        (["show", "main#99"], "main#99"),
        (["show", "support-42", "nothing"], "nothing"),
        (["diff", "support-42", "main", "retyr"], "retry"),
        (["branches", "\x1b[31m"], r"\x1b[31m"),
    ],
)
def test_a_wrong_name_fails_with_one_line(at, words, said):
    """Bad input: a wrong name prints one line on standard error, no traceback, and exits with the code of NotFound."""
    out, err, code = at(*words)
    assert (out, code) == ("", NotFound.exit_code)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert said in err


@pytest.mark.parametrize("words", [["frob"], ["log", "-n", "0"], ["diff", *"abcd"], ["tree", "--no"]])
def test_a_wrong_command_is_a_usage_error(at, words):
    """Bad input: the parser reports a wrong command or option and exits with 2."""
    out, err, code = at(*words)
    assert (out, code) == ("", 2)
    assert "Error: " in err


def test_bad_databases_are_refused(agentgit, tmp_path):
    """Bad input: a file that is not a database, an unsupported URL and foreign tables each have their exit code."""
    (tmp_path / "notes.txt").write_text("not a database " * 200)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE invoice (id INTEGER)")
    connection.close()
    assert agentgit("tree", "--db", "notes.txt").code == 11
    assert agentgit("db", "check", "--db", "notes.txt").code == 11
    assert agentgit("tree", "--db", "other.db").code == 11
    assert agentgit("tree", "--db", "mysql://host/x").code == 2
    assert agentgit("db", "upgrade", "--db", "no/such/folder/x.db").code == 13


# -- the schema


def test_the_schema_is_created_and_checked(agentgit, tmp_path):
    """`db upgrade` creates the schema, and `db check` reports it, and refuses an empty database and changed tables."""
    sqlite3.connect(tmp_path / "new.db").close()
    unfit = agentgit("db", "check", "--db", "new.db")
    assert unfit.code == 11
    assert "agentgit db upgrade --db sqlite:///new.db" in unfit.err
    needed = backend.NEWEST_SCHEMA
    for command in ("upgrade", "check"):
        found = agentgit("db", command, "--db", "new.db")
        assert found == (f"sqlite:///new.db  schema {needed}, needed {needed}\n", "", 0)
    known = json.loads(agentgit("db", "--db", "new.db", "check", "--json").out)
    assert known == {"database": "sqlite:///new.db", "schema": needed, "needed": needed}
    with sqlite3.connect(tmp_path / "new.db") as connection:
        connection.execute("ALTER TABLE tag ADD COLUMN color TEXT")
    connection.close()
    changed = agentgit("db", "check", "--db", "new.db")
    assert (changed.code, "remove_column tag color" in changed.err) == (11, True)


# -- the demo


@pytest.mark.long
def test_the_demo_creates_sessions_that_other_commands_show(agentgit, tmp_path):
    """`agentgit demo` creates a database that the other commands show, and a second run adds a second session."""
    first = agentgit("demo")
    assert (first.err, first.code) == ("", 0)
    assert first.out
    assert (tmp_path / "agentgit.db").exists()
    assert (tmp_path / "shop.db").exists()
    again = json.loads(agentgit("demo", "--json").out)
    assert (again["database"], again["shop"]) == ("agentgit.db", "shop.db")
    assert again["said"]
    assert sorted(s["session_name"] for s in json.loads(agentgit("sessions", "--json").out)) == ["demo", "demo-2"]
    assert "HEAD ->" in agentgit("tree").out


# -- the process


def python(*words: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process, without the environment variables of agentgit and of colours."""
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "agentgit", *words]
    known: dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTGIT", "NO_COLOR", "FORCE"))}
    return subprocess.run(command, capture_output=True, text=True, env=known | environment, timeout=300, check=False)  # noqa: S603  # our own program


def test_python_m_agentgit_runs_the_command_line():
    """`python -m agentgit` prints its version and shows its help with the commands."""
    import agentgit as package

    assert python("--version").stdout == f"agentgit {package.__version__}\n"
    shown = python("--help").stdout
    assert all(command in shown for command in ["demo", "sessions", "branches", "tree", "log", "show", "diff", "db"])


def test_the_command_line_without_typer_names_the_pip_command():
    """Bad input: without typer one line says how to install it, and there is no traceback."""
    found = python(code="import sys; sys.modules['typer'] = None; sys.argv = ['agentgit']; import agentgit.__main__")
    assert found.returncode == 1
    assert found.stderr == 'error: The command line needs typer and rich. Run: pip install "agentgit[cli]"\n'


@pytest.mark.long
def test_the_tree_is_ascii_in_an_ascii_pipe(story):
    """A process whose standard output accepts only ASCII still draws the tree."""
    found = python("tree", "--db", str(story), PYTHONIOENCODING="ascii")
    assert (found.stderr, found.returncode) == ("", 0)
    assert found.stdout.isascii()
    assert "|-o retry#" in found.stdout or "`-o retry#" in found.stdout


@pytest.mark.long
def test_a_closed_pipe_causes_no_traceback(story):
    """`agentgit show --json | head -1` writes no traceback when the pipe closes."""
    command = f"{sys.executable} -m agentgit show support-42 --json --db {story} | head -1"
    found = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=300, check=False)  # noqa: S603  # our own program
    assert (found.stdout, found.stderr) == ("{\n", "")


@pytest.mark.long
def test_a_read_only_command_does_not_import_langgraph(story):
    """A read-only command starts fast because it never imports LangGraph."""
    words = ["agentgit", "tree", "--db", str(story)]
    code = (
        f"import sys; sys.argv = {words!r}\n"
        "try:\n    import agentgit.__main__\nexcept SystemExit: pass\n"
        "sys.exit('langgraph' in sys.modules)"
    )
    found = python(code=code)
    assert (found.stderr, found.returncode) == ("", 0)


# -- search, filters, tags and completion


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("log-named", ["log", "support-42", "--named", "--all-branches"]),
        ("log-page", ["log", "support-42", "-n", "2", "--after", "retry#2"]),
        ("log-name", ["log", "support-42", "--name", "before payment"]),
        ("search", ["search", "support-42", "chair"]),
        ("search-all", ["search", "support-42", "table", "--all-branches", "-n", "2"]),
        ("search-hostile", ["search", "support-42", "31mred 日本"]),
        ("search-json", ["search", "me@example.com", "lamp", "--json", "-n", "1"]),
    ],
)
def test_search_and_filters_match_their_recorded_output(at, name, words):
    """Filters, pages and search write exactly their recorded output, no error, and succeed."""
    out, err, code = at(*words)
    assert (err, code) == ("", 0)
    assert plainly(out) == golden(f"cli-{name}.txt")


def test_a_search_that_finds_nothing_on_its_branch_names_the_option_for_all(at):
    """A search of one branch that finds nothing names --all-branches; one of all branches has nothing to add."""
    assert "--all-branches" in at("search", "support-42", "zebra").out
    assert plainly(at("search", "support-42", "zebra", "--all-branches").out) == "nothing found\n"


@pytest.mark.long
def test_log_filters_counts_and_pages_checkpoints(at):
    """`log` filters by time, author and branch, and its pages together are the whole log."""
    whole = json.loads(at("log", "--all-branches", "--json").out)
    assert at("log", "--all-branches", "--count").out == f"{len(whole)}\n"
    assert json.loads(at("log", "--count", "--auto", "--json").out) == {"count": 5}
    middle = whole[3]["created_at"]
    assert json.loads(at("log", "--all-branches", "--since", middle, "--json").out) == whole[:4]
    assert json.loads(at("log", "--all-branches", "--until", middle, "--json").out) == whole[3:]
    assert json.loads(at("log", "--all-branches", "--since", "2999-01-01", "--json").out) == []
    assert json.loads(at("log", "--all-branches", "--since", "2h", "--json").out) == whole
    assert "or like 5m, 2h or 3d, counted back from now" in at("log", "--since", "1s").err
    assert json.loads(at("log", "--all-branches", "--until", "2h", "--json").out) == []
    with_calls, without = [
        json.loads(at("log", "--all-branches", f"--{words}", "--json").out) for words in ("with-calls", "without-calls")
    ]
    assert [one["reference"] for one in without] == ["main#1"]
    assert with_calls == [one for one in whole if one["reference"] != "main#1"]
    assert json.loads(at("log", "--author", "local", "--json").out) == json.loads(at("log", "--json").out)
    pages, after = [], []
    while True:
        page = json.loads(at("log", "--all-branches", "--json", "-n", "3", *after).out)
        pages += page
        if len(page) < 3:
            break
        after = ["--after", str(page[-1]["id"])]
    assert pages == whole
    assert at("log", "--until", "2000-01-01").out == "no matching checkpoints\n"
    refs = [one["reference"] for one in json.loads(at("log", "support-42@main", "--json").out)]
    assert refs[0].startswith("main#")
    assert [
        one["reference"] for one in json.loads(at("log", "support-42@main", "--after", "HEAD", "--json").out)
    ] == refs[1:]
    own = json.loads(at("log", "support-42@retry", "--branch-only", "--json").out)
    assert own == [one for one in json.loads(at("log", "support-42@retry", "--json").out) if one["branch"] == "retry"]
    assert at("log", "--branch-only", "--all-branches").code == 2


@pytest.mark.long
def test_tags_are_managed_on_the_command_line(agentgit, story, tmp_path):
    """A tag is added, listed, used as a reference, shown in the log and deleted."""
    (tmp_path / "copy.db").write_bytes(story.read_bytes())
    db = ("--db", str(tmp_path / "copy.db"))
    assert agentgit("tag", *db).out == "no tags yet; add one with: agentgit tag REF NAME\n"
    assert "v1" in agentgit("tag", "support-42", "main#2", "v1", "--description", "works", *db).out
    assert agentgit("tag", "support-42", "HEAD", "v2", *db).code == 0
    assert [one["name"] for one in json.loads(agentgit("tag", "support-42", "--json", *db).out)] == ["v2", "v1"]
    assert "(tag: v1)" in agentgit("log", "--tag", "v1", *db).out
    assert agentgit("show", "v1", "--json", *db).code == 0
    assert agentgit("plan", "support-42", "v1", *db).code == 0
    assert agentgit("tag", "support-42", "main#3", "v1", *db).code == 6
    assert agentgit("tag", "support-42", "--delete", "v1", *db).out == (
        "main#2 of session support-42 no longer has that tag\n"
    )
    assert json.loads(agentgit("tag", "support-42", "-d", "v2", "--json", *db).out)["name"] == "v2"
    assert agentgit("tag", *db).out.startswith("no tags yet")


def test_a_checkpoint_is_renamed_and_annotated(agentgit, story, tmp_path):
    """`annotate` changes the name, the description and the data of a checkpoint, and an empty value removes it."""
    (tmp_path / "copy.db").write_bytes(story.read_bytes())
    db = ("--db", str(tmp_path / "copy.db"))
    renamed = agentgit("annotate", "support-42", "before payment", "--name", "paid", "--data", '{"ticket": 10}', *db)
    assert renamed.out.startswith("session support-42, branch main\nmain#3 ")
    changed = json.loads(agentgit("show", "support-42", "paid", "--json", *db).out)
    assert changed["metadata"]["data"] == {"ticket": 10}
    assert changed["metadata"]["description"] == "all is in the cart"
    assert agentgit("show", "support-42", "before payment", *db).code == NotFound.exit_code
    words = ("--name", "", "--description", "", "--data", "null", "--json")
    cleared = json.loads(agentgit("annotate", "support-42", "paid", *words, *db).out)
    assert (cleared["reference"], cleared["name"], cleared["description"]) == ("main#3", None, None)
    assert agentgit("annotate", "support-42", "main#3", *db).code == 2
    assert "--data is not valid JSON" in agentgit("annotate", "support-42", "main#3", "--data", "{", *db).err


def test_a_tag_without_a_name_says_what_is_missing(agentgit, story, monkeypatch):
    """`agentgit tag REF` asks for the name of the tag, and does not take the checkpoint for a session."""
    monkeypatch.setenv("AGENTGIT_DATABASE_URL", str(story))
    said = agentgit("tag", "retry#1")
    assert (said.out, said.code) == ("", 2)
    assert "retry#1 is a checkpoint. Name its new tag too: agentgit tag 'retry#1' NAME" in said.err
    assert "support-42" in agentgit("tag", "support-43").err  # a similar session


def test_recover_says_that_there_is_nothing_to_recover(agentgit, story, tmp_path):
    """`recover` on a branch on which nothing runs says so, and shows the branch."""
    (tmp_path / "copy.db").write_bytes(story.read_bytes())
    said = agentgit("recover", "support-42@main", "--db", str(tmp_path / "copy.db"))
    assert said.err == (
        "Nothing to recover: no turn and no rollback is unfinished in session support-42, branch main.\n"
    )
    assert (said.code, said.out.splitlines()[0]) == (0, "session support-42")


def test_recover_names_what_is_unfinished_on_another_branch(agentgit, story, tmp_path):
    """`recover` on a branch on which nothing runs names the unfinished operation of another branch."""
    (tmp_path / "copy.db").write_bytes(story.read_bytes())
    with closing(sqlite3.connect(tmp_path / "copy.db")) as database, database:
        database.execute("UPDATE operation SET status = 'running'")
    said = agentgit("recover", "support-42@main", "--db", str(tmp_path / "copy.db"))
    assert re.search(r"To finish rollback (\d+) of another branch: agentgit resume \1\n", said.err)
    assert said.code == 0


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        (["show", "support-42", "nowhere"], "NotFound", 3),
        (["log", "--since", "yesterday"], "InvalidInput", 2),
        (["log", "--no-such-option"], "InvalidInput", 2),
        (["rollback"], "InvalidInput", 2),
        (["no-such-command"], "InvalidInput", 2),
        (["tag", "support-42", "HEAD", "a#b"], "InvalidInput", 2),
        (["rollback", "support-42", "main#1", "--yes"], "RollbackBlocked", 7),
        (["tree", "--db", "none.db"], "NotFound", 3),
    ],
)
def test_an_error_is_an_object_with_json(at, words, name, code):
    """With --json an error is one line of JSON on standard error, with the exit code that it has without."""
    plain, said = at(*words), at(*words, "--json")
    assert (plain.code, said.code) == (code, code)
    error = json.loads(said.err.splitlines()[-1])
    assert (error["error"], error["exit_code"]) == (name, code)
    if plain.err.startswith("error: "):
        assert f"error: {error['message']}\n" == plain.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["log", "--since", "yesterday"], 2), (["log", "--since", ""], 2), (["log", "--after", "nowhere"], 3),
        (["log", "--tag", "nowhere"], 3), (["log", "--author", "nobody"], 3), (["log", "-n", "0"], 2),
        (["search", ""], 2), (["search", "x", "--after", "x"], 2), (["search", "a", "b", "c"], 2),
        (["search", "nowhere", "x"], 3), (["tag", "HEAD", "a#b"], 2), (["tag", "a", "b", "c", "d"], 2),
        (["tag", "-d", "nothing"], 2), (["tag", "support-42", "-d", "nothing"], 3), (["tag", "nowhere"], 3),
    ],
)  # fmt: skip
def test_invalid_arguments_fail_with_their_exit_codes(at, words, code):
    """Bad input: each failure writes an error, has its exit code, and writes nothing to standard output."""
    answer = at(*words)
    assert (answer.out, answer.code) == ("", code)
    assert answer.err


def test_shell_completion_offers_commands(agentgit, monkeypatch):
    """Shell completion offers the command that begins with the typed letters."""
    monkeypatch.setenv("_AGENTGIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "agentgit sea")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert agentgit().out.split() == ["search"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("agentgit log --bra", ["--branch", "--branch-only"]),
        ("agentgit log --no-such", []),
        ("agentgit tree --js", ["--json"]),
    ],
)
def test_shell_completion_offers_options(agentgit, monkeypatch, words, offered):
    """Shell completion offers the options of the command that begin with the typed letters."""
    monkeypatch.setenv("_AGENTGIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", "2")
    assert agentgit().out.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_show_completion_prints_the_script_of_the_shell(agentgit, monkeypatch, shell):
    """`agentgit --show-completion` prints the script for the shell it runs in, which asks agentgit what to
    offer.
    """
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
    ],
)
def test_shell_completion_offers_sessions_branches_and_places(agentgit, story, monkeypatch, words, offered):
    """Completion offers sessions, branches and references of the named session, or nothing if none can be read."""
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
    """Completion offers a user's own sessions and those shared with them, of their tenant only; a disabled user
    gets none, and neither does one whose share has ended.
    """
    with open_repository("agentgit.db") as repo, open_repository("agentgit.db", tenant="acme") as acme:
        acme.session("secret", create=True)
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
    assert offered("agentgit --user nobody tree ") == offered("agentgit --tenant none tree ") == []
    assert offered("agentgit --tenant acme tree ") == ["secret"]


def test_shell_completion_offers_nothing_where_it_cannot_read(agentgit, monkeypatch, tmp_path):
    """Completion writes no error and creates no file where there is no file of agentgit, or only a server."""
    (tmp_path / "text.db").write_text("no database")
    sqlite3.connect(tmp_path / "other.db").close()
    files = sorted(tmp_path.iterdir())
    server = ("postgresql://me:secret@127.0.0.1:1/no", "host=127.0.0.1")
    for location in ("none.db", "text.db", "other.db", str(tmp_path), ":memory:", *server, "sqlite://", "%00"):
        monkeypatch.setenv("AGENTGIT_DATABASE_URL", location)
        assert completed(agentgit, monkeypatch, "agentgit rollback ").split() == []
    assert sorted(tmp_path.iterdir()) == files
