"""Hostile users: misleading names, out-of-range numbers and overreaching credentials gain nothing."""

from functools import partial
from itertools import product

import backend
import pytest
from scripted import World, obedient, tool_node_graph
from test_fsck import damage

from agentgit.errors import AgentGitError, InvalidInput, NotAllowed, NotFound
from agentgit.store.database import Database

HUGE = 2**70


@pytest.fixture
def people(repo):
    made = {name: repo.as_user(repo.users.add(name)) for name in ("ada", "bob", "cy")}
    made["ada"].session("s", create=True)
    return made


def test_a_qualified_name_finds_only_that_users_session(repo, people):
    """`eve/plan` is eve's session plan, never a session that another user named so, even if it is shared."""
    _, bob, cy = people.values()
    cy.session("eve/plan", create=True)  # before the user eve exists
    eve = repo.as_user(repo.users.add("eve"))
    eve.session("plan", create=True)
    cy.session("eve/plan").sharing.share("bob")
    for find in (bob.session, lambda name: bob.session(name, create=True)):
        with pytest.raises(NotFound):
            find("eve/plan")
    assert bob.session("cy/eve/plan").info.owner_name == "cy"
    eve.session("plan").sharing.share("bob")
    assert bob.session("eve/plan").info.owner_name == "eve"


def test_an_invalid_numeric_id_is_not_found(repo, people):
    ada = people["ada"]
    asked = [
        ada.session,
        ada.operation,
        ada.resume,
        ada.revoke_link,
        ada.keys.revoke,
        repo.as_user,
        repo.users.find,
        lambda n: ada.session("s").sharing.share(n),
        lambda n: ada.session("s").get_checkpoint(n),
        lambda n: ada.session("s").branch(n),
        lambda n: ada.resolve(n, "happened"),
        lambda n: ada.session("s").sharing.unshare(n),
        lambda n: ada.session(n).export("x.jsonl"),
        lambda n: ada.session("t", create=True, template=n),
    ]
    for ask, number in product(asked, (HUGE, -HUGE, 2**63, -1)):
        with pytest.raises(NotFound):
            ask(number)


def test_an_invalid_limit_is_refused(repo, people):
    ada = people["ada"]
    asked = (ada.sessions, lambda n: ada.events.newest(session="s", limit=n), lambda n: repo.events.audit(limit=n))
    for ask, wrong in product(asked, (HUGE, 0, -1, "all", True, 1.5)):
        with pytest.raises(InvalidInput):
            ask(wrong)
    afters = ("x", 5, True, "1.2", f"0.{HUGE}{HUGE}.1")
    for ask in (*(partial(ada.events.list, after=one) for one in afters), lambda: ada.sessions(name=5)):
        with pytest.raises(InvalidInput):
            ask()


# -- credentials


def test_authenticating_with_a_valid_key_only_reads(repo, people):
    """The first use of a key is recorded; a use within the next minute writes nothing."""
    made = repo.keys.create("k", user="bob")
    repo.authenticate(made.secret)
    assert repo.keys.list("bob")[0].last_used_at is not None
    with backend.statements(repo) as said:
        repo.authenticate(made.secret)
    assert {statement.split()[0].upper() for statement, _ in said} <= {"SELECT", "BEGIN", "COMMIT", "ROLLBACK"}
    assert len(said) < 8


def test_as_user_handles_end_with_the_key_of_the_admin(repo, people):
    """Handles opened by `as_user`, also through another handle, end when the admin's key is revoked."""
    repo.users.add("olga", is_admin=True)
    made = repo.keys.create("k", "admin", user="olga")
    acting = repo.authenticate(made.secret).as_user("olga").as_user("ada")
    assert acting.session("s").info.is_own
    repo.keys.revoke(made.key)
    with pytest.raises(NotAllowed, match="has expired or was revoked"):
        acting.sessions()


def test_members_of_a_link_that_is_gone_or_of_another_session_are_found(repo, people):
    ada = people["ada"]
    link = ada.session("s").sharing.create_link()
    people["bob"].accept(link.token)
    assert repo.maintenance.fsck(1).findings == ()
    other = ada.session("other", create=True)
    damage(repo, f"UPDATE session_link SET external_session_id = {other.id}")  # noqa: S608  # a number of our own
    assert [one.what for one in repo.maintenance.fsck(1).findings] == ["its link is for another session"]
    damage(repo, "DELETE FROM session_link")
    assert ["is missing" in one.what for one in repo.maintenance.fsck(1).findings] == [True]


def test_open_handles_of_an_erased_session_raise_not_found(repo):
    world = World()

    def wrap():
        return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())

    agent, other = wrap(), wrap()
    agent.run("add chair")
    point, session = agent.checkpoint("one"), repo.session("s")
    late, call = repo.session("s").checkpoints()[0], agent.tool_track()[0]
    repo.session("s").delete(force=True)
    asked = [
        lambda: agent.run("hm"),
        lambda: other.run("hm"),
        lambda: agent.checkpoint("two"),
        agent.undo,
        agent.fork,
        lambda: agent.rollback("one"),
        lambda: agent.switch("main"),
        lambda: agent.session.tag("one", "t", branch=agent.branch_id),
        agent.tree,
        lambda: agent.explore(1, ["hm"]),
        lambda: agent.update_state(None, {"messages": [("user", "hm")]}),
        lambda: agent.head,
        lambda: late.conversation_history,
        lambda: repo.resolve(call, "happened"),
        lambda: repo.session("t", create=True, template=point),
        lambda: list(repo.events.list(session=session)),
        lambda: session.retention.clear(),
        lambda: session.sharing.share(repo.user),
        lambda: session.delete(force=True),
        lambda: agent.merge("main"),
    ]
    for ask in asked:
        with pytest.raises(NotFound):
            ask()
    assert (len(world.items), repo.sessions(), repo.maintenance.fsck(1).findings) == (1, [], ())
    assert repo.session("s", create=True).id != session.id


def test_a_refusal_in_an_erased_session_is_not_written_to_the_trail(repo, people, monkeypatch, caplog):
    ada, bob, _ = people.values()
    ada.session("s").sharing.share("bob")
    tell = Database._record_refusal

    def late(database, refused):
        monkeypatch.undo()
        ada.session("s").delete(force=True)
        tell(database, refused)

    monkeypatch.setattr(Database, "_record_refusal", late)
    with pytest.raises(NotAllowed):
        bob.session("ada/s").switch("main")
    assert "could not be written to the audit trail" in caplog.text


HOSTILE = ["\0", "\ud800", "x" * 100_000, "\u202es", "a/b", "ada/", "/s", "@", "#1", "' OR 1=1 --", "%", "\n"]


@pytest.mark.long
def test_hostile_names_are_refused_or_stored_unchanged(repo, people):
    ada, bob = people["ada"], people["bob"]
    asked = (
        bob.session,
        repo.as_user,
        repo.users.find,
        lambda n: ada.session("s").sharing.share(n),
        bob.accept,
        repo.authenticate,
        repo.users.sign_in,
    )
    for text in HOSTILE:
        for ask in asked:
            with pytest.raises(AgentGitError):
                ask(text)
        try:
            assert ada.session(text, create=True).name == text
            ada.session(text).sharing.share("bob")
            assert bob.session(f"ada/{text}").name == text
        except InvalidInput:
            assert len(text) > 200 or not text.strip()
