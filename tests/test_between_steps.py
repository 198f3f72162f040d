"""What others do between two steps of a verb: it is seen, or it waits; nothing is lost, doubled or half done."""

import threading
from datetime import UTC, datetime

import pytest
from origins import said, shop, sqlite_origin
from scripted import World, obedient, tool_node_graph
from sqlalchemy import update

from agentgit.agents import arriving
from agentgit.agents.landing import Landing
from agentgit.errors import Conflict
from agentgit.sessions.session import PARTIAL
from agentgit.store import staging
from agentgit.store.journal import Intent, Journal
from agentgit.store.sessions import BRANCH, Sessions
from agentgit.store.store import Store

PATIENCE = 0.5
"""How long, in seconds, the other one has to get in between; who is kept out waits longer than that."""

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


class Other:
    """Somebody else, who works in a thread of their own when they are let in, once.

    Args:
        work: what they do.
        patience: how long they have to get it done at once; one that is not kept out has long.
    """

    def __init__(self, work, patience=PATIENCE):
        self.patience = patience
        self._work, self._thread, self.raised, self.given = work, None, None, None

    def comes(self):
        """Begin, and wait until it is done, or until it is plain that somebody keeps them out."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._do)
            self._thread.start()
            self._thread.join(self.patience)

    def _do(self):
        try:
            self.given = self._work()
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
            self.raised = error

    def ends(self):
        """Wait until it is done; give what was raised."""
        assert self._thread is not None, "nobody let them in"
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.raised


@pytest.fixture
def before(monkeypatch):
    """Lets somebody in before a function runs, in this thread only."""

    def put(owner, name, other):
        plain, here = getattr(owner, name), threading.get_ident()

        def late(*args, **kwargs):
            if threading.get_ident() == here:
                other.comes()
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, late)
        return other

    return put


def wrap(repo, session="s", **how):
    world = World()
    return repo.wrap(tool_node_graph(obedient(), world.tools()), session, effects=world.effects(), **how)


def test_a_turn_between_the_look_and_the_last_step_of_an_import_is_not_left_behind(repo, tmp_path, before):
    """What an import adds to a session comes behind no turn that it has not seen: one of the two is refused."""
    origin = sqlite_origin(tmp_path)
    origin.talk(shop(World()), "a", "order a chair")
    repo.import_langgraph(origin.url, ["a"])
    origin.talk(shop(World()), "a", "hello")
    agent = repo.wrap(shop(World())(None), "a")
    other = before(Landing, "_branch", Other(lambda: agent.invoke(said("hello again"))))
    report = repo.import_langgraph(origin.url, ["a"], on_error="continue")
    refused = [type(one.error) for one in report.failed] + [type(error) for error in [other.ends()] if error]
    assert refused == [Conflict]
    told = [one["content"] for one in repo.branch("a").conversation_history if one["role"] == "user"]
    assert told in (["order a chair", "hello"], ["order a chair", "hello again"])
    assert repo.fsck(3).findings == ()


@pytest.mark.parametrize("when", ["before it is written on", "before it is published"])
def test_a_merge_whose_copy_a_collection_took_away_changes_nothing(repo, monkeypatch, before, when):
    """What comes to a branch is written on a copy of it; where that was collected, nothing is published."""
    agent = wrap(repo)
    agent.run("add chair")
    other = agent.fork()
    other.run("something else")
    history, plain = agent.history(), staging.move_new

    def emptied(connection, tenant, source, target):
        repo.store.graphs.delete_thread(connection, source)
        return plain(connection, tenant, source, target)

    if when == "before it is written on":
        before(arriving, "PregelNode", Other(lambda: repo.gc(imports=True), patience=60))
    else:  # on a server a collection may come until the first row is moved
        monkeypatch.setattr(staging, "move_new", emptied)
    with pytest.raises(Conflict, match="Nothing was changed"):
        agent.merge(other.branch.name)
    assert agent.history() == history
    assert repo.fsck(3).findings == ()


@on_postgresql
def test_a_switch_leads_to_no_branch_that_became_half_done_meanwhile(repo, before):
    """A branch whose rollback broke off while somebody waited to switch to it is not switched to."""
    agent = wrap(repo)
    agent.run("add chair")
    left = agent.fork()

    def breaks_off():
        broken = update(BRANCH).where(BRANCH.c.id == left.branch.id).values(status=PARTIAL)
        repo.store.database.write(lambda c: c.execute(broken))

    other = before(Sessions, "lock", Other(breaks_off))
    with pytest.raises(Conflict, match="its rollback was not finished"):
        repo.switch(left.branch.name, "s", sync="note")
    assert other.ends() is None
    assert [one.status for one in repo.branches("s")] == ["open", PARTIAL]


@pytest.mark.parametrize(("owner", "step"), [(Store, "recover"), (Journal, "end")])
def test_d4_a_dead_turn_is_taken_back_once(repo, before, owner, step):
    """D4: of two who find the same dead turn at once one takes it back, and tells of it; none gets a Conflict."""
    agent = wrap(repo)
    agent.run("add chair")
    with repo.store.at_work() as dead:
        repo.store.database.write(lambda c: repo.store.sessions.acquire(c, agent.branch.id, dead))
        intent = Intent(
            session_id=agent.session.id, branch_id=agent.branch.id, batch=9, batch_index=0, tool_name="add",
            tool_call_id="lost", effect="reversible", undo=None, args={"item": "table"}, idempotency_key="lost",
            owner=dead, started_at=datetime.now(UTC),
        )  # fmt: skip
        lost = repo.store.database.write(lambda c: repo.store.journal.intend(c, intent))
    other = before(owner, step, Other(lambda: repo.recover("s")))
    assert repo.resolve(lost, "did_not_happen").status == "failed"
    assert other.ends() is None
    kinds = [event.kind for event in repo.events("s")]
    assert (kinds.count("turn.abandoned"), kinds.count("call.unknown")) == (1, 1)
