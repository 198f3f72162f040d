"""References, sessions, users and databases of a repository, and the errors for invalid ones."""

import os
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faults
import points
import processes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import World, call, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Ambiguous, Checkpoint, InvalidInput, NotFound, SchemaMismatch, Unavailable
from agentgit.checkpoints import references


def chat(repo, session="s", **options):
    return repo.wrap(tool_node_graph(scripted(*(f"answer {n}" for n in range(20))), []), session, **options)


@pytest.fixture
def agent(repo):
    agent = chat(repo)
    agent.run("one")
    agent.checkpoint("before payment")
    agent.run("two")
    return agent


# -- references


def test_every_form_of_reference_finds_its_checkpoint(repo, agent):
    """A Checkpoint, its id, its name, branch, branch#n, branch~n, HEAD and HEAD~n all find a checkpoint."""
    points = agent.checkpoints()
    assert [p.metadata["reference"] for p in points] == [f"main#{n}" for n in range(1, 6)]
    for ref, place in [
        (points[1], 1),
        (points[1].id, 1),
        (str(points[1].id), 1),
        ("before payment", 2),
        ("main", 4),
        ("HEAD", 4),
        ("main#2", 1),
        ("main~1", 3),
        ("HEAD~1", 3),
        ("HEAD~", 3),
        ("HEAD~0", 4),
        ("main~4", 0),
    ]:
        assert repo.session("s").get_checkpoint(ref).id == points[place].id, ref


def test_head_references_count_across_the_branch_point(repo, agent):
    retry = agent.rollback("before payment")
    retry.run("other")
    path = [p.metadata["reference"] for p in retry.checkpoints()]
    assert path == ["main#1", "main#2", "main-2#1", "main-2#2", "main-2#3"]
    assert repo.session("s").get_checkpoint("HEAD~2").metadata["reference"] == "main-2#1"
    assert repo.session("s").get_checkpoint("HEAD~3").metadata["reference"] == "main#2"
    assert agent.plan_rollback("HEAD").target == "main#5"
    assert agent.plan_rollback("main-2#2").target == "main-2#2"


def test_a_repeated_name_means_the_newest_on_the_path(repo, agent):
    newer = agent.checkpoint("before payment")
    assert repo.session("s").get_checkpoint("before payment").id == newer.id
    first = agent.fork("main#1", name="first")
    with pytest.raises(Ambiguous) as caught:
        first.plan_rollback("before payment")
    assert caught.value.candidates == ("main#3", "main#6")
    agent.checkpoint("only there")
    assert first.plan_rollback("only there").target == "only there (main#7)"


def test_a_repeated_name_finds_the_branch_point_after_a_rollback(repo, agent):
    newer = agent.checkpoint("before payment")
    agent.run("three")
    retry = agent.rollback("before payment")
    assert repo.session("s").get_checkpoint("before payment", branch=retry.branch).id == newer.id
    assert repo.session("s").get_checkpoint("before payment", branch=retry.fork().branch).id == newer.id


def test_names_that_look_like_references_are_found_as_names(repo, agent):
    for name in ("v1#2", "a~b", "7", "ünï çode 😀"):
        made = agent.checkpoint(name)
        assert repo.session("s").get_checkpoint(name).id == made.id


def test_unknown_and_foreign_references_raise_different_errors(repo, agent):
    """Bad input: an unknown, foreign or invalid reference raises a typed error with a hint and changes nothing."""
    other = chat(repo, "other")
    foreign = other.checkpoint("theirs")
    for ref, error, why in [
        ("before paymnt", NotFound, "before payment"),
        ("mian#1", NotFound, "main"),
        ("main#99", NotFound, "has 5 checkpoints"),
        ("HEAD~99", NotFound, "5 checkpoints on the path"),
        (12345, NotFound, "12345"),
        ("12345", NotFound, "12345"),
        (foreign, InvalidInput, "belongs to session other"),
        (foreign.id, InvalidInput, "belongs to session other"),
        ("theirs", NotFound, "no checkpoint"),
        ("", InvalidInput, "empty"),
        (Checkpoint(), NotFound, "not stored"),
        (3.5, InvalidInput, "does not name a checkpoint"),
    ]:
        for verb in (agent.plan_rollback, agent.rollback, agent.fork):
            with pytest.raises(error, match=why):
                verb(ref)
    assert len(agent.session.branches()) == 1


@given(st.text(max_size=30))
def test_any_text_parses_as_a_reference_or_raises_invalid_input(text):
    try:
        reference = references.parse(text)
    except InvalidInput:
        assert text == ""
        return
    assert reference.text == text
    assert text.startswith(reference.base)
    assert reference.back >= 0


@given(st.text(max_size=30))
def test_every_allowed_branch_name_can_be_referenced(text):
    try:
        name = references.require_name(text, "branch")
    except InvalidInput:
        return
    numbered, earlier = references.parse(f"{name}#1"), references.parse(f"{name}~2")
    assert (numbered.base, numbered.number) == (earlier.base, earlier.back - 1) == (name, 1)


# -- sessions, branches, values


def test_sessions_are_listed_by_last_activity(repo):
    """The session that was used last is listed first and is the default session."""
    assert repo.sessions() == []
    with pytest.raises(NotFound, match=r"There is no session.*wrap"):
        repo.session()
    one, two = chat(repo, "one"), chat(repo, "two")
    one.run("a")
    two.run("a")
    one.run("b")
    assert [s.session_name for s in repo.sessions()] == ["one", "two"]
    assert repo.session().name == "one"
    assert repo.session(str(two.session.id)).name == "two"
    with pytest.raises(NotFound, match="one"):
        repo.session("ono")


def test_session_and_branch_values_have_the_documented_fields(repo, agent):
    retry = agent.rollback("before payment", name="retry")
    session, branch = repo.session("s"), repo.session("s").branch()
    assert (session.name, session.info.is_active, session.info.branch_count) == ("s", True, 2)
    assert session.info.user_id == repo.user.id
    assert session.info.current_internal_session_id == branch.id == retry.branch.id
    assert (branch.name, branch.is_current, branch.status) == ("retry", True, "open")
    assert (branch.checkpoint_count, branch.tool_invocation_count) == (1, 0)
    assert branch.conversation_history == retry.history()
    assert branch.langgraph_session_id != agent.branch.langgraph_session_id
    assert [m["role"] for m in branch.conversation_history] == ["user", "assistant"]


def test_checkpoint_data_may_be_any_json(repo):
    agent = chat(repo)
    data = {"list": [1, None, "x\0\ud800"], "nested": {"a": 1.5}}
    agent.checkpoint("x", data=data)
    assert repo.session().get_checkpoint("x").metadata["data"] == data


def test_a_checkpoint_is_deleted_unless_it_is_needed(repo, agent):
    """Heads, branch points and targets of rollbacks cannot be deleted; others can, and the conversation stays."""
    agent.fork("main#2")
    for needed in ("main#2", "HEAD"):
        with pytest.raises(agentgit.Conflict, match=r"cannot be deleted: (branch|it is the head)"):
            repo.session("s").delete_checkpoint(needed)
    gone = repo.session("s").delete_checkpoint("before payment")
    assert gone.conversation_history
    assert "before payment" not in [p.checkpoint_name for p in agent.checkpoints()]
    assert repo.session("s").cleanup_auto_checkpoints(keep=1) == 2
    assert [p.metadata["reference"] for p in agent.checkpoints()] == ["main#2", "main#5"]
    assert len(agent.history()) == 4
    with pytest.raises(InvalidInput, match="0 or more"):
        repo.session("s").cleanup_auto_checkpoints(keep=-1)
    target = agent.checkpoint("target")
    agent.run("three")
    agent.rollback(target, conversation=False)
    with pytest.raises(agentgit.Conflict, match="cannot be deleted: it is the target of a rollback"):
        repo.session("s").delete_checkpoint(target)
    agent.rollback(target)
    with pytest.raises(agentgit.Conflict, match=r"cannot be deleted: branch \S+ starts from it"):
        repo.session("s").delete_checkpoint(target)


# -- databases


def test_open_uses_the_environment_variable_or_the_default_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGIT_DATABASE_URL", raising=False)
    agentgit.open().close()
    assert (tmp_path / "agentgit.db").exists()
    monkeypatch.setenv("AGENTGIT_DATABASE_URL", f"sqlite:///{tmp_path}/other.db")
    agentgit.open().close()
    assert (tmp_path / "other.db").exists()
    with pytest.raises(NotFound, match="creates one"):
        agentgit.open(tmp_path / "none.db", create=False)
    assert not (tmp_path / "none.db").exists()


def test_a_server_without_tables_names_the_upgrade_command(postgres_url):
    with pytest.raises(SchemaMismatch, match="agentgit db upgrade"):
        agentgit.open(postgres_url.set(database="postgres"))


def test_an_unreachable_server_is_unavailable():
    with pytest.raises(Unavailable) as caught:
        agentgit.open("postgresql+psycopg://me:secret@127.0.0.1:1/x?connect_timeout=1")
    assert "secret" not in str(caught.value)


READ_ONLY = """
import os, pwd, sys
from pathlib import Path
import agentgit
from agentgit import Unavailable
from test_repository import chat

folder = Path(sys.argv[1])
path = folder / "x.db"
with agentgit.open(path) as repo:
    chat(repo).run("hi")
    repo.session("s").checkpoints()
path.chmod(0o400)
if os.geteuid() == 0:  # root may write everything; all modules are imported by now
    nobody = pwd.getpwnam("nobody").pw_uid
    for one in (folder, path):
        os.chown(one, nobody, -1)
    os.setgroups([])
    os.setgid(nobody)
    os.setuid(nobody)
with agentgit.open(path) as repo:
    print(len(repo.session("s").checkpoints()))
    try:
        chat(repo).run("again")
    except Unavailable as error:
        print(error)
    print(len(repo.session("s").branch().conversation_history))
for left in folder.glob("x.db-*"):
    left.unlink()
folder.chmod(0o500)
try:
    agentgit.open(path)
except Unavailable as error:
    print(error)
folder.chmod(0o700)
"""


def test_a_read_only_file_can_be_read_and_a_run_names_the_missing_permission(tmp_path):
    folder, above = tmp_path / "folder", Path(tempfile.gettempdir())
    folder.mkdir()
    for one in (tmp_path, *tmp_path.parents):
        if one.is_relative_to(above) and one.stat().st_uid == os.getuid():
            one.chmod(one.stat().st_mode | 0o011)
    done = processes.run(READ_ONLY, folder)
    first, refusal, then, no_folder = done.stdout.splitlines() or pytest.fail(done.stderr)
    assert (first, then, no_folder) == ("2", "2", refusal)
    assert refusal.endswith("x.db cannot be written. Give this user write permission for the file and its folder.")


def test_a_uri_of_sqlite_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="by its path"):
        agentgit.open(f"sqlite:///file:{tmp_path / 'x.db'}?mode=ro&uri=true")


def test_a_locked_file_is_unavailable_after_a_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("agentgit.store.sql.sqlite.BUSY_SECONDS", 0.05)
    path = tmp_path / "x.db"
    with agentgit.open(path) as repo:
        agent = chat(repo)
        agent.run("hi")
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            agent.run("again")
        holder.close()
        assert agent.run("again") == "answer 1"


def test_an_in_memory_database_supports_turns_and_rollbacks(tmp_path):
    world = World()
    with agentgit.open(":memory:") as repo:
        replies = (call("add", item="a"), "ok", call("add", item="b"), "ok")
        agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
        agent.run("one")
        agent.run("two")
        agent.rollback("main#2")
        assert world.items == ["a"]


def test_concurrent_threads_on_many_sessions_lose_no_turns(database):
    names = [f"s{n}" for n in range(6)]

    def work(name):
        agent = chat(repo, name)
        for n in range(3):
            agent.run(str(n))

    for place in (database.url, ":memory:"):
        with agentgit.open(place) as repo, ThreadPoolExecutor(len(names)) as pool:
            assert list(pool.map(work, names)) == [None] * len(names)
            assert {len(repo.session(name).branch().conversation_history) for name in names} == {6}
            assert repo.maintenance.fsck(level=3).is_sound


def test_concurrent_agents_on_one_branch_never_mix_their_turns(repo):
    def runs(agent):
        try:
            return agent.run("me") is not None
        except agentgit.Conflict:
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(runs, [chat(repo) for _ in range(6)])) == 1
    assert len(repo.session("s").branch().conversation_history) == 2


def test_the_path_of_a_branch_is_read_without_its_siblings(repo):
    world, line = World(), ["main"]
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    for number in range(4):
        agent.fork(name=f"aside-{number}")
        agent = agent.fork(name=f"on-{number}")
        agent.run("look")
        line.append(f"on-{number}")
    branch = agent._branch
    with faults.fails(points.READ_BRANCHES, AssertionError), branch.store.database.reading() as transaction:
        parts = branch.store.sessions.lineage(transaction, branch.row(transaction))
    assert [part.branch.name for part in parts] == line
    counts = [(part.track_part.before, part.track_part.count) for part in parts]
    assert counts == [(0, 1), (1, 1), (2, 1), (3, 1), (4, None)]
