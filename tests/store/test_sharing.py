"""Sessions are shared by name and by link: roles, expiry, names, forks, pages, events and the owner's cost."""

from datetime import UTC, datetime, timedelta

import backend
import pytest
from scripted import World, obedient, tool_node_graph

import agentgit
from agentgit.auth.credentials import LINK_PREFIX, parse_token
from agentgit.errors import Ambiguous, InvalidInput, NotFound
from agentgit.store.sql.tables import SESSION_LINK, SESSION_MEMBER


@pytest.fixture
def people(repo):
    made = {name: repo.as_user(repo.users.add(name)) for name in ("ada", "bob", "cy")}
    wrap(made["ada"], "s").run("add chair")
    return made


def wrap(repo, session, **how):
    world = World()
    return repo.wrap(tool_node_graph(obedient(), world.tools()), session, effects=world.effects(), **how)


def past():
    return datetime.now(UTC) - timedelta(seconds=1)


def test_a_session_name_means_an_own_session_before_a_shared_one(people):
    """A plain name means an own session first, then a shared one, and is ambiguous among several shared ones."""
    ada, bob, cy = people.values()
    ada.session("s").sharing.share("cy", "editor")
    assert (cy.session("s").reference, cy.session().info.role) == ("ada/s", "editor")
    assert cy.session("ada/s").info.owner_name == "ada"
    bob.session(bob.session("s", create=True)).sharing.share("cy")
    with pytest.raises(Ambiguous) as caught:
        cy.session("s")
    assert [one.split()[0] for one in caught.value.candidates] == ["bob/s", "ada/s"]
    assert cy.session("s", create=True).info.is_own
    assert cy.session("s").reference == "s"
    assert cy.session("ada/s", create=True).info.owner_name == "ada"
    with pytest.raises(NotFound):
        cy.session("ada/other", create=True)
    assert cy.session("nobody/other", create=True).info.is_own


def test_an_expired_role_is_refused_even_for_an_open_agent(repo, people):
    ada, bob, _ = people.values()
    member = ada.session("s").sharing.share("bob", "editor", expires_in=timedelta(hours=1))
    assert member.expires_at > datetime.now(UTC)
    agent = wrap(bob, "ada/s")
    agent.run("add sofa")
    assert [call.args for call in ada.session("s").tool_track()] == [{"item": "chair"}, {"item": "sofa"}]
    backend.write(repo, lambda c: c.execute(SESSION_MEMBER.update().values(expires_at=past())))
    with pytest.raises(NotFound):
        agent.run("add lamp")
    assert (bob.sessions(), ada.session("s").sharing.members(), len(ada.session("s").tool_track())) == ([], [], 2)


def test_a_session_started_from_a_shared_one_belongs_to_who_started_it(people):
    ada, bob, _ = people.values()
    with pytest.raises(NotFound):
        wrap(bob, "mine", template="ada/s@main#2")
    ada.session("s").sharing.share("bob", "viewer")
    agent = wrap(bob, "mine", template="ada/s@main#2")
    agent.run("add sofa")
    assert bob.session("mine").info.is_own
    assert len(ada.session("s").tool_track()) == 1
    ada.session("s").sharing.unshare("bob")
    assert len(agent.history()) == 8
    assert agent.rollback("main#1").report is not None


def test_a_share_link_admits_users_until_it_is_revoked(repo, people):
    """Revoking a link removes whom it admitted, and no event has its token."""
    ada, bob, cy = people.values()
    link = ada.session("s").sharing.create_link("editor")
    for one in (bob, cy):
        assert one.accept(link.token).info.role == "editor"
    assert ada.accept(link.token).info.role == "owner"
    assert [one.link_id for one in ada.session("s").sharing.members()] == [link.id] * 2
    ada.session("s").sharing.share("cy", "viewer")
    assert cy.session("ada/s").info.role == "editor"
    assert ada.revoke_link(link).revoked_at is not None
    assert (bob.sessions(), cy.session("ada/s").info.role) == ([], "viewer")
    for token in (link.token, link.token[:-1] + "!", "", "agitlink_zz", None, "\0"):
        with pytest.raises(NotFound, match="is not valid"):
            bob.accept(token)
    told = [one for one in ada.events.newest(session="s") if one.kind.startswith(("link", "session.shared"))]
    assert [one.kind for one in told] == ["link.made", "link.used", "link.used", "session.shared", "link.revoked"]
    assert parse_token(LINK_PREFIX, link.token)[1] not in str([one.to_dict() for one in told])


def test_a_link_and_the_roles_it_granted_expire_after_a_week(people):
    ada, bob, _ = people.values()
    link = ada.session("s").sharing.create_link("editor")
    assert abs(link.expires_at - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=5)
    bob.accept(link.token)
    assert [one.expires_at for one in ada.session("s").sharing.members()] == [link.expires_at]


def test_a_removed_member_cannot_rejoin_by_the_same_link_and_one_who_left_can(repo, people):
    """Removing a member ends the link they joined by, and changes no rights of others; leaving ends no link."""
    ada, bob, cy = people.values()
    sharing = ada.session("s").sharing
    first, second = sharing.create_link(), sharing.create_link()
    bob.accept(first.token)
    cy.accept(second.token)
    bob.session("ada/s").sharing.unshare("bob")
    assert (bob.sessions(), cy.session("ada/s").info.role) == ([], "viewer")
    assert bob.accept(first.token).info.role == "viewer"
    sharing.unshare("bob")
    with pytest.raises(NotFound):
        bob.accept(first.token)
    assert cy.session("ada/s").info.role == "viewer"
    backend.write(repo, lambda c: c.execute(SESSION_LINK.update().values(expires_at=past())))
    with pytest.raises(NotFound):
        bob.accept(second.token)
    sharing.unshare("cy")
    assert cy.sessions() == []
    with pytest.raises(NotFound):
        sharing.unshare("cy")


def test_bad_sharing_arguments_are_refused(people):
    ada, _, _ = people.values()
    for bad in (
        lambda: ada.session("s").sharing.share("bob", "king"),
        lambda: ada.session("s").sharing.share("ada"),
        lambda: ada.session("s").sharing.share("bob", expires_in=timedelta(0)),
        lambda: ada.session("s").sharing.share("bob", expires_in=7),
        lambda: ada.session("s").sharing.create_link("owner"),
        lambda: ada.session("s").sharing.create_link(expires_in=timedelta.max),
        lambda: ada.sessions(0),
        lambda: ada.sessions(after="x"),
        lambda: ada.sessions(after="9" * 18 + "-1"),
    ):
        with pytest.raises(InvalidInput):
            bad()
    for nobody in ("nobody", 2**60, -1, None, "\0"):
        with pytest.raises(NotFound):
            ada.session("s").sharing.share(nobody)
    with pytest.raises(InvalidInput):
        agentgit.open(":memory:", user="a/b")


def test_pages_list_every_own_and_shared_session_once(people):
    """Pages list each own and shared session once, the last changed first, and can be limited to a name."""
    ada, bob, _ = people.values()
    for n in range(5):
        bob.session(f"Own-{n}_%", create=True)
        ada.session(ada.session(f"hers-{n}", create=True)).sharing.share("bob")
    every = [one.reference for one in bob.sessions()]
    assert len(every) == 10
    given, after = [], None
    while page := bob.sessions(3, after):
        given += [one.reference for one in page]
        after = page[-1].cursor
    assert given == every
    assert [one.reference for one in bob.sessions(name="OWN", limit=2)] == ["Own-4_%", "Own-3_%"]
    assert len(bob.sessions(name="_%")) == 5
    assert len(bob.sessions(shared=False)) == 5


def test_a_page_of_own_sessions_is_read_from_an_index(repo, people):
    with backend.statements(repo) as said:
        people["ada"].sessions(2, shared=False)
    [(statement, parameters)] = [one for one in said if "external_session" in one[0] and "LIMIT" in one[0]]
    explain = "EXPLAIN QUERY PLAN" if backend.is_sqlite(repo) else "EXPLAIN"
    with backend.reading(repo) as transaction:
        if not backend.is_sqlite(repo):
            for name in ("seqscan", "sort"):  # with few rows, they are cheaper than any index
                transaction.connection.exec_driver_sql(f"SET LOCAL enable_{name} = off")
        plan = str(transaction.connection.exec_driver_sql(f"{explain} {statement}", parameters).all())
    assert "ix_external_session_user_id_updated_at_id" in plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


def test_members_receive_events_only_while_a_session_is_shared(people):
    ada, bob, cy = people.values()
    ada.session("s").sharing.share("bob")
    told = []
    with bob.events.on("tag.*", told.append):
        ada.session("s").tag("main#1", "one")
        ada.session("s").sharing.unshare("bob")
        ada.session("s").tag("main#1", "two")
    assert [one.detail["name"] for one in told] == ["one"]
    assert list(bob.events.newest()) == []
    ada.session("s").sharing.share("bob")
    assert "tag.created" in {one.kind for one in bob.events.newest()}
    assert list(cy.events.newest()) == []
