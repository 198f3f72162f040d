"""Concurrent work between two steps of a verb is seen or waits; nothing is lost, duplicated or half done."""

import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path

import backend
import faults
import points
import processes
import pytest
from foreign_threads import said, shop, sqlite_origin
from scripted import World, obedient, tool_node_graph

import agentgit
from agentgit import Conflict, NotAllowed, NotFound, SchemaMismatch, Workspace
from agentgit.checkpoints.retention import Retention

PATIENCE = 0.5
"""The seconds that a step waits for concurrent work; blocked work continues after that."""

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


class Other:
    """Concurrent work, which runs once in its own thread.

    Args:
        work: The function to run.
        patience: The seconds to wait for its end before the caller continues; long for work that nothing blocks.
    """

    def __init__(self, work, patience=PATIENCE):
        self.work, self.patience, self.run = work, patience, None

    def comes(self):
        """Start the work once, and wait until it ends or the patience is over, which means that it is blocked."""
        if self.run is None:
            self.run = ThreadPoolExecutor(1).submit(self.work)
            wait([self.run], self.patience)

    def ends(self):
        """Wait for the end of the work, and return what it raised."""
        assert self.run is not None, "nobody let them in"
        return self.run.exception(60)


@pytest.fixture
def before():
    """Return a function that starts concurrent work when this thread reaches a point."""
    with ExitStack() as till_the_end:

        def put(point, other):
            till_the_end.enter_context(faults.before(point, other.comes, in_this_thread=True))
            return other

        yield put


def wrap(repo, session="s", **how):
    world = World()
    return repo.wrap(tool_node_graph(obedient(), world.tools()), session, effects=world.effects(), **how)


def test_an_import_and_a_concurrent_turn_conflict(repo, tmp_path, before):
    origin = sqlite_origin(tmp_path)
    origin.talk(shop(World()), "a", "order a chair")
    repo.import_langgraph(origin.url, ["a"])
    origin.talk(shop(World()), "a", "hello")
    agent = repo.wrap(shop(World())(None), "a")
    other = before(points.LAND_IMPORTED_BRANCH, Other(lambda: agent.invoke(said("hello again"))))
    report = repo.import_langgraph(origin.url, ["a"], on_error="continue")
    refused = [type(one.error) for one in report.failed] + [type(error) for error in [other.ends()] if error]
    assert refused == [Conflict]
    told = [one["content"] for one in repo.session("a").branch().conversation_history if one["role"] == "user"]
    assert told in (["order a chair", "hello"], ["order a chair", "hello again"])
    assert repo.maintenance.fsck(3).findings == ()


@on_postgresql
def test_a_switch_to_a_branch_that_becomes_partial_is_refused(repo, before):
    agent = wrap(repo)
    agent.run("add chair")
    left = agent.fork()

    def breaks_off():
        backend.change(repo, "internal_session", left.branch.id, status="partial")

    other = before(points.LOCK_SESSION, Other(breaks_off, patience=60))
    with pytest.raises(Conflict, match="its rollback was not finished"):
        repo.session("s").switch(left.branch.name, sync="note")
    assert other.ends() is None
    assert [one.status for one in repo.session("s").branches()] == ["open", "partial"]


@on_postgresql
def test_the_last_two_admins_cannot_both_erase_themselves(repo, before):
    ann, bob = (repo.as_user(repo.users.add(name, is_admin=True)) for name in ("ann", "bob"))
    backend.change(repo, "user", repo.user.id, is_admin=False)
    other = before(points.ERASE_LAST_ADMIN, Other(lambda: bob.users.delete("bob", force=True)))
    ann.users.delete("ann", force=True)
    assert type(other.ends()) is Conflict
    assert [user.name for user in bob.users.list() if user.is_admin] == ["bob"]


def test_an_erased_user_cannot_write_through_an_open_handle(repo):
    ada, bob = (repo.users.add(name) for name in ("ada", "bob"))
    repo.as_user(bob).session("bobs", create=True)
    link = repo.as_user(bob).session("bobs").sharing.create_link()
    with agentgit.open(backend.url(repo), user="ada") as handle:
        repo.users.delete(ada, force=True)
        for make in (
            lambda: handle.session("s", create=True),
            lambda: handle.keys.create("a key"),
            lambda: handle.accept(link.token),
        ):
            with pytest.raises(NotAllowed, match="was deleted"):
                make()
    assert repo.maintenance.fsck(3).findings == ()


def test_gc_continues_when_a_session_is_erased_during_it(repo, before):
    for name in ("one", "two"):
        wrap(repo, name).run("add chair")
        wrap(repo, name).checkpoint("more")
        repo.session(name).retention.set(Retention(max_checkpoints=1))
    other = before(points.THIN_OUT, Other(lambda: repo.session("one").delete(force=True), patience=60))
    done = repo.maintenance.gc()
    assert other.ends() is None
    assert [session.session_name for session in repo.sessions()] == ["two"]
    assert repo.maintenance.fsck(3).findings == ()
    assert done.disk_after > 0


@pytest.mark.parametrize("step", [points.RECOVER_DEAD_TURN, points.WRITE_OUTCOME], ids=lambda step: step.name)
def test_a_dead_turn_is_recovered_once(repo, before, step):
    agent = wrap(repo)
    agent.run("add chair")
    lost = backend.leave_running(repo, agent.branch, item="table", tool_call_id="lost", idempotency_key="lost")
    other = before(step, Other(lambda: repo.session("s").recover()))
    assert repo.resolve(lost, "did_not_happen").status == "failed"
    assert other.ends() is None
    kinds = [event.kind for event in repo.events.newest(session="s")]
    assert (kinds.count("turn.abandoned"), kinds.count("call.unknown")) == (1, 1)


READS = {"branches": points.READ_BRANCHES, "lineage": points.READ_LINEAGE}
"""The points at which readers of a session read its branches and its lineage."""

READERS = {
    "branch": lambda repo: repo.session("s").branch(),
    "log": lambda repo: list(repo.session("s").log()),
    "tree": lambda repo: repo.session("s").tree(),
    "track": lambda repo: repo.session("s").tool_track(branch="main-2"),
    "checkpoint": lambda repo: repo.session("s").get_checkpoint("HEAD"),
    "stats": lambda repo: repo.session("s").stats(),
    "compare": lambda repo: repo.session("s").diff("main#1", "HEAD"),
}


@on_postgresql
@pytest.mark.parametrize("step", READS)
@pytest.mark.parametrize("reader", READERS)
def test_reading_a_session_during_its_erasure_returns_data_or_not_found(repo, before, reader, step):
    agent = wrap(repo)
    agent.run("add chair")
    agent.rollback("main#1").run("add table")
    other = before(READS[step], Other(lambda: repo.session("s").delete(force=True), patience=60))
    with suppress(NotFound):
        READERS[reader](repo)
    assert other.run is None or other.ends() is None  # some readers do not come to this point


@on_postgresql
@pytest.mark.parametrize(
    ("step", "verb"),
    [
        (points.COMPARE_WITH_TEMPLATE, lambda repo: repo.session("s", create=True, template="template@HEAD")),
        (points.SET_CURRENT_BRANCH, lambda repo: repo.session("s").switch("main")),
    ],
    ids=["opening it with its template", "switching"],
)
def test_a_verb_during_the_erasure_of_its_session_raises_not_found(repo, before, step, verb):
    for name in ("template", "s"):
        repo.session(name, create=True).checkpoint("first")
    other = before(step, Other(lambda: repo.session("s").delete(force=True), patience=60))
    with pytest.raises(NotFound, match="deleted"):
        verb(repo)
    assert other.ends() is None
    assert [event.kind for event in repo.events.audit()] == ["session.erased"]


@on_postgresql
def test_removing_a_member_ends_a_link_accepted_at_the_same_time(repo, before):
    ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
    session = ada.session("s", create=True)
    session.sharing.share("bob")
    link = session.sharing.create_link()
    other = before(points.END_SHARED_LINKS, Other(lambda: bob.accept(link.token), patience=60))
    session.sharing.unshare("bob")
    assert other.ends() is None
    assert session.sharing.members() == []
    with pytest.raises(NotFound):
        bob.accept(link.token)


@pytest.mark.long
def test_two_concurrent_grants_to_a_role_both_succeed(empty_server):
    backend.upgrade(empty_server)
    role = f"agentgit_{uuid.uuid4().hex}"
    backend.run_sql(empty_server, f"CREATE ROLE {role}")
    other = Other(lambda: backend.grant(empty_server, role))
    try:
        with faults.after(points.GRANT_RIGHTS, other.comes, in_this_thread=True):
            assert backend.grant(empty_server, role) == len(backend.tables()) + 1
        assert other.ends() is None
    finally:
        backend.run_sql(empty_server, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.usefixtures("second")
def test_an_upgrade_is_refused_after_a_concurrent_newer_upgrade(empty, before):
    backend.upgrade(empty, "0001f")
    newer = Other(lambda: backend.run_sql(empty, "UPDATE agentgit_version SET version_num = '9999'"), patience=60)
    before(points.EVERY_WRITE, newer)
    with pytest.raises(SchemaMismatch, match="newer than this library"):
        backend.upgrade(empty)
    assert newer.ends() is None


@pytest.mark.long
@on_postgresql
@pytest.mark.parametrize("step", [points.BEGIN_FROM_TEMPLATE, points.WRITE_EVENT], ids=lambda step: step.name)
def test_the_name_of_a_template_erased_during_its_use_is_not_stored(repo, before, step):
    repo.session("zebrafish", create=True)
    repo.session("zebrafish").checkpoint("first")
    other = before(step, Other(lambda: repo.session("zebrafish").delete(force=True)))
    with suppress(NotFound):
        repo.session("s", create=True, template="zebrafish@HEAD")
    assert other.ends() is None
    assert "zebrafish" not in backend.as_stored(repo)
    assert repo.maintenance.fsck(3).findings == ()


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("one")
    with Workspace(tmp_path / "files", tmp_path / "store") as workspace:
        yield workspace


def test_a_refused_erasure_keeps_the_snapshots_of_the_session(repo, workspace):
    agent = wrap(repo, workspace=workspace)
    agent.run("hello")
    with backend.at_work(repo) as alive:
        begins = faults.after(points.RELEASE_ALL_SNAPSHOTS, lambda: backend.take(repo, agent.branch, alive))
        with begins, pytest.raises(Conflict, match="Nothing was erased"):
            repo.session("s").delete(force=True)
    assert [one.pinned for one in workspace.list()] == [True]


def test_a_snapshot_taken_again_during_its_release_is_kept(repo, workspace, before):
    agent, file = wrap(repo, workspace=workspace), Path(workspace.workspace_dir) / "a.txt"
    for content in ("one", "two"):
        file.write_text(content)
        agent.run("hello")
    workspace.restore(workspace.list()[-1].id)
    other = before(points.RELEASE_SNAPSHOTS, Other(lambda: agent.checkpoint("as at first"), patience=60))
    repo.session("s").cleanup_auto_checkpoints(keep=0)
    assert other.ends() is None
    assert workspace.list()[-1].pinned
    assert repo.session().get_checkpoint("as at first").metadata["workspace_snapshot"] is not None


def test_a_snapshot_reused_by_another_session_during_erasure_is_kept(repo, workspace, before):
    wrap(repo, "one", workspace=workspace).run("hello")
    agent = wrap(repo, "two", workspace=workspace)
    other = before(points.RELEASE_SNAPSHOTS, Other(lambda: agent.run("hello"), patience=60))
    repo.session("one").delete(force=True)
    assert other.ends() is None
    assert [one.pinned for one in workspace.list()] == [True]


IN_A_CHILD = """
import os, sys, threading, warnings
import agentgit, backend

repo = agentgit.open("agentgit.db")
heard = repo.events.on("*", print)
lock = backend.lock(repo, sys.argv[1])
held, done = threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        done.wait()

threading.Thread(target=hold).start()
held.wait()
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
child = os.fork()
if child == 0:
    threading.Timer(20, lambda: os._exit(1)).start()
    repo.session("s", create=True)
    backend.remember_no_values(repo)
    os._exit(0)
done.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("lock", ["ids", "values", "sessions"])
def test_a_forked_child_works_whichever_lock_its_parent_held(tmp_path, lock):
    assert processes.run(IN_A_CHILD, lock, cwd=tmp_path).returncode == 0
