"""The session that a command acts on, if there are several."""

import json
import re

import pytest
from command_line import run
from shelves import GRAPH, SHELF, shelf_in

import agentgit
from agentgit import InvalidInput

TRUST = ("--trust", "shelf")

CHANGES = [
    "plan SESSION main#1",
    "rollback SESSION main#1 --yes --trust shelf",
    "undo SESSION --yes --trust shelf",
    "undo SESSION@main --yes --trust shelf",
    "redo SESSION --yes --trust shelf",
    "rewind-files SESSION main#1 --yes",
    "switch SESSION other",
    "switch SESSION other --sync world --yes --trust shelf",
    "fork SESSION",
    "fork SESSION main#1",
    "rename SESSION renamed",
    "checkpoint create SESSION named",
    "checkpoint delete SESSION main#1 --yes",
    "checkpoint delete SESSION --auto --keep 0",
    "checkpoint delete SESSION --all --yes",
    "annotate SESSION main#1 --name new",
    "tag SESSION main#1 a-tag",
    "tag SESSION --delete kept",
    "recover SESSION",
    "retention SESSION --max 3",
    "retention SESSION --on --now",
    "merge shelf:GRAPH SESSION other",
    "merge shelf:GRAPH SESSION other --only",
    "explore shelf:GRAPH SESSION --choice hi",
    "chat shelf:GRAPH SESSION",
]
"""The commands that change a session, with the place of its name."""

WITHOUT_WORK = ("redo", "rewind-files", "checkpoint delete SESSION main#1", "explore", "recover")
"""The beginnings of those that have nothing to do in the sessions of the tests."""

NAMED = {"rerun", "share", "delete", "resume", "resolve"}
"""The commands that cannot be given without a session, or the id of an operation or a call."""

READING = {
    "sessions", "status", "tree", "log", "show", "tool-track", "branches", "diff", "search", "events", "stats",
    "export", "mcp", "serve",
}  # fmt: skip
"""The commands that change no session."""

WHOLE = {
    "demo", "import", "accept", "users", "keys", "workspace", "gc", "fsck", "audit", "db",
}  # fmt: skip
"""The commands that are not about one session."""


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("AGENTGIT_TRUST", raising=False)
    with shelf_in(tmp_path, SHELF + GRAPH) as module:
        yield module


@pytest.fixture
def two(shelf):
    """Create the sessions `mine`, and `theirs`, which moved last; each has two branches and a tag."""
    with agentgit.open("agentgit.db") as repo:
        for name in ("mine", "theirs"):
            agent = repo.wrap(shelf.graph(f"{name} chair", f"{name} table"), name)
            agent.run("one")
            agent.run("two")
            agent.session.fork(name="other")
            agent.session.tag("main#2", "kept")
    return shelf


def dump(name: str) -> str:
    with agentgit.open("agentgit.db") as repo:
        session = repo.session(name)
        operations = [operation.id for operation in session.operations()]
        facts = [operations, [tag.name for tag in session.tags()], session.branch().name, str(session.retention.get())]
        return run("tree", name, "--json").out + json.dumps(facts)


def words(command: str, session: str) -> list[str]:
    return command.replace("SESSION", session).split()


@pytest.mark.long
@pytest.mark.parametrize("command", CHANGES)
def test_a_change_without_a_session_is_refused_if_there_are_several(two, command):
    before = [dump("mine"), dump("theirs")]
    run("tree", "mine")
    out, err, code = run(*words(command, ""), stdin="hello\n")
    assert (out, code) == ("", InvalidInput.exit_code)
    assert "There are several sessions, so name the one that you mean: agentgit " in err
    assert ("MODULE:GRAPH SESSION" in err) == ("shelf:GRAPH" in command)
    assert "Sessions: theirs, mine." in err
    assert err.count("\n") == 1
    assert [dump("mine"), dump("theirs")] == before
    assert two.items() == ["mine chair", "mine table", "theirs chair", "theirs table"]


@pytest.mark.long
@pytest.mark.parametrize("command", CHANGES)
def test_a_change_of_a_named_session_leaves_the_other_alone(two, command):
    before = dump("theirs")
    out, err, code = run(*words(command, "mine"), stdin="")
    if not command.startswith(WITHOUT_WORK):
        assert (err, code) == ("", 0)
    if code == 0 and not command.startswith("chat"):
        assert "mine" in out
    assert dump("theirs") == before
    assert [item for item in two.items() if item.startswith("theirs")] == ["theirs chair", "theirs table"]


def test_every_command_is_in_one_of_these_lists():
    """Whoever adds a command decides if it changes a session, and so needs its name."""
    shown = run("--help").out
    commands = shown.partition("Get started:")[2]
    listed = {line.split()[0] for line in commands.splitlines() if line.startswith("  ")}
    changing = {command.split()[0] for command in CHANGES}
    assert listed == changing | NAMED | READING | WHOLE
    assert not changing & (NAMED | READING | WHOLE)


def test_with_one_session_the_name_may_be_left_out(shelf):
    """Its reports still name it."""
    with agentgit.open("agentgit.db") as repo:
        agent = repo.wrap(shelf.graph("chair", "table"), "only")
        agent.run("one")
        agent.run("two")
    out, err, code = run("undo", "--yes", *TRUST)
    assert (err, code) == ("", 0)
    assert out.startswith("Rollback done: session only, branch main-2, ")
    assert shelf.items() == ["chair"]


def test_a_lonely_word_that_is_a_session_is_recognised(two):
    for command, noun, what in (
        ("plan", "REF", "checkpoint"),
        ("rollback", "REF", "checkpoint"),
        ("switch", "BRANCH", "branch"),
        ("rewind-files", "RESTORE_POINT", "message or checkpoint"),
    ):
        out, err, code = run(command, "mine")
        assert (out, code) == ("", InvalidInput.exit_code)
        assert err == f"error: mine is a session. Name the {what} too: agentgit {command} mine {noun}\n"
    assert run("delete", "theirs", "--yes", "--force").code == 0
    assert "mine is a session" in run("plan", "mine").err
    assert "mine@main is a session" in run("plan", "mine@main").err
    assert run("tag", "main#1", "mine").code == 0
    assert run("plan", "mine", *TRUST).out.startswith("Rollback of session mine, branch main, to main#1: ")


@pytest.mark.long
def test_the_question_names_the_session_and_the_branch(two):
    for words, question in (
        (("rollback", "mine", "main#1"), "Roll back session mine, branch main?"),
        (("undo", "mine"), "Undo in session mine, branch main?"),
        (("switch", "mine", "other", "--sync", "world"), "Switch to session mine, branch other?"),
    ):
        out, err, code = run(*words, *TRUST, stdin="no\n")
        assert code == 1
        assert question in err
        assert "session mine" in out.splitlines()[0]
    out, err, _ = run("checkpoint", "delete", "--all", "mine@other", stdin="no\n")
    assert "Delete all checkpoints of session mine, branch other that nothing needs?" in err
    assert "Permanently delete session mine?" in run("delete", "mine", stdin="no\n").err
    assert len(two.items()) == 4


@pytest.mark.long
def test_a_command_that_reads_says_which_session_it_took(two):
    for command in ("log", "tool-track", "branches", "stats", "diff main#1 HEAD", "show", "search chair"):
        out, err, code = run(*command.split())
        assert (code, err) == (0, "session theirs, which was updated last\n")
        assert out
        named = command.split()[0], "mine", *command.split()[1:]
        assert run(*named).err == ""
    for command in ("tree", "status"):
        out, err, code = run(command)
        assert (code, err) == (0, "")
        assert "theirs" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a b, branch main, to main#1", "'a b, branch main, to main#1'"),
        ("\x1b[2J\u202emine", r"'\x1b[2J\u202emine'"),
        ("me@main", "me@main"),
        ("@main", "@main"),
    ],
)
def test_hostile_names_stay_names(shelf, name, shown):
    with agentgit.open("agentgit.db") as repo:
        for session in (name, "other"):
            agent = repo.wrap(shelf.graph("chair"), session)
            agent.run("one")
    plan = run("plan", name, "main#1", *TRUST)
    assert (plan.err, plan.code) == ("", 0)
    assert plan.out.startswith(f"Rollback of session {shown}, branch main, to main#1: ")
    assert f"Roll back session {shown}, branch main?" in run("rollback", name, "main#1", *TRUST, stdin="n\n").err
    refused = run("undo", "--yes")
    assert f"Sessions: other, {shown}." in refused.err
    assert "\x1b" not in refused.err + plan.out


@pytest.mark.long
def test_a_shared_session_counts_and_is_named_with_its_owner(shelf):
    with agentgit.open("agentgit.db") as repo:
        ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
        for user in (ada, bob):
            user.wrap(shelf.graph("chair"), "s").run("one")
        ada.session("s").sharing.share("bob", "editor")
    for_bob = ("--user", "bob")
    assert "Sessions: s, ada/s." in run(*for_bob, "undo", "--yes").err
    plan = run(*for_bob, "plan", "ada/s", "main#1", *TRUST)
    assert plan.out.startswith("Rollback of session ada/s, branch main, to main#1: ")
    assert run(*for_bob, "tree", "ada/s").out.startswith("ada/s: ")


@pytest.mark.long
def test_json_names_the_session_and_the_branch(two):
    plan = json.loads(run("plan", "mine", "main#1", "--json").out)
    assert (plan["session_name"], plan["branch"]) == ("mine", "main")
    for words in (
        ("undo", "mine", "--yes", *TRUST),
        ("checkpoint", "create", "mine", "x"),
        ("tag", "mine", "main#1", "y"),
        ("fork", "mine"),
        ("switch", "mine", "other"),
        ("checkpoint", "delete", "--auto", "mine"),
        ("retention", "mine"),
    ):
        assert json.loads(run(*words, "--json").out)["session_name"] == "mine", words


@pytest.mark.parametrize("option", [(), ("--since-fork",)], ids=["diff", "since the fork"])
def test_a_session_in_the_place_of_a_checkpoint_is_recognised(two, option):
    expected = "error: mine is a session. Name it first, and then two checkpoints: agentgit diff mine A B\n"
    for words in (["mine", "main"], ["main", "mine"]):
        out, err, code = run("diff", *option, *words)
        assert (out, code) == ("", InvalidInput.exit_code)
        assert err.endswith(expected)
    assert run("diff", *option, "mine", "main#1", "main#2").code == 0
    assert run("tag", "theirs", "main#1", "mine").code == 0
    assert run("diff", *option, "mine", "main#2").code == 0


def test_a_diff_without_checkpoints_shows_the_last_turn(two):
    shown = run("diff", "mine@main").out
    assert re.match(r"main#\d+ -> main#\d+\n", shown)
    assert shown.count("+ user: ") == 1
    assert run("diff", "main#1").out.startswith("main#1 -> ")
