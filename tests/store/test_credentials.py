"""Credentials: API keys and sign-in links, their limits, and their immediate revocation."""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import backend
import pytest
from sqlalchemy import select

from agentgit.auth.credentials import KEY_PREFIX, LINK_PREFIX, format_token, parse_token
from agentgit.errors import Conflict, InvalidInput, NotAllowed, NotFound
from agentgit.store import database
from agentgit.store.sql.tables import API_KEY, METADATA, SESSION_LINK


def expect_refused(ask, *credentials):
    """Expect the one sentence for every cause, so that a refusal reveals nothing."""
    for one in credentials:
        with pytest.raises(NotAllowed) as caught:
            ask(one)
        assert str(caught.value) == "This key is not valid, or no longer. Check it, or ask an admin for a sign-in link."


@pytest.fixture
def ada(repo):
    user = repo.users.add("ada")
    repo.as_user(user).session("s", create=True)
    return user


# -- sign-in links


def test_a_sign_in_link_gives_a_browser_a_key_once(repo, ada):
    link = repo.users.create_link("ada")
    lifetime = link.key.expires_at - link.key.created_at
    assert (link.key.name, link.key.scopes, round(lifetime / timedelta(hours=1))) == ("sign-in link", frozenset(), 24)
    browser = repo.users.sign_in(link.secret)
    assert (browser.key.name, browser.key.scopes) == ("browser", {"read", "write", "admin"})
    assert round((browser.key.expires_at - browser.key.created_at) / timedelta(days=1)) == 30
    handle = repo.authenticate(browser.secret)
    assert handle.session("s").info.is_own
    assert handle.keys.create("ci", "read").key.user_id == ada.id
    expect_refused(repo.users.sign_in, link.secret)
    kinds = [event.kind for event in repo.events.audit(kinds="key.*")]
    assert kinds == ["key.created", "key.revoked", "key.created", "key.created"]


def test_of_many_browsers_only_one_can_use_a_link(repo, ada):
    link = repo.users.create_link("ada").secret

    def use(_):
        try:
            return repo.users.sign_in(link).key.id
        except NotAllowed:
            return None

    with ThreadPoolExecutor(8) as pool:
        assert len([key for key in pool.map(use, range(8)) if key is not None]) == 1
    assert [key.name for key in repo.keys.list("ada")] == ["sign-in link", "browser"]


def test_a_sign_in_link_is_no_key_and_a_key_is_no_link(repo, ada):
    """A link grants no access by itself, a key is not exchanged, and neither attempt uses the link up."""
    link, key = repo.users.create_link("ada").secret, repo.keys.create("ci", "admin", user="ada").secret
    expect_refused(repo.authenticate, link)
    expect_refused(repo.users.sign_in, key)
    assert repo.users.sign_in(link).key.user_id == ada.id


@pytest.mark.parametrize("end", ["expired", "revoked", "disabled", "deleted", "namesake"])
def test_a_sign_in_link_dies_with_its_time_and_its_user(repo, ada, end):
    link = repo.users.create_link("ada")
    match end:
        case "expired":
            past = datetime.now(UTC) - timedelta(seconds=1)
            backend.write(repo, lambda c: c.execute(API_KEY.update().values(expires_at=past)))
        case "revoked":
            repo.keys.revoke(link.key)
        case "disabled":
            repo.users.disable("ada")
        case _:
            repo.users.delete("ada")
    if end == "namesake":  # a new user of the same name is a new user
        repo.users.add("ada")
    expect_refused(repo.users.sign_in, link.secret)


def test_disabling_a_user_ends_open_handles_at_once(repo, ada):
    secret = repo.keys.create("ci", "admin", user="ada").secret
    handles = repo.authenticate(secret), repo.as_user("ada")
    events = handles[0].events.list(session="s")
    repo.users.disable("ada")
    for use in (*(handle.sessions for handle in handles), lambda: next(events)):
        with pytest.raises(NotAllowed, match="has expired or was revoked"):
            use()
    for again in (lambda: repo.authenticate(secret), lambda: repo.as_user("ada")):
        with pytest.raises(NotAllowed):
            again()
    assert repo.users.enable("ada").disabled_at is None
    assert repo.authenticate(secret).session("s").info.is_own


# -- keys


@pytest.mark.parametrize("name", ["local", "id"])
def test_a_name_from_a_token_is_neither_an_id_nor_the_local_user(repo, name):
    """A program may pass the subject of a token to `as_user`; whoever chose that name is nobody else by it."""
    ada = repo.users.add("ada")
    with pytest.raises(NotFound, match="may act for"):
        repo.as_user(str(ada.id) if name == "id" else name)
    assert repo.as_user(ada.id).user.name == "ada"


def test_a_key_is_read_only_and_expires_by_default(repo, ada):
    made = repo.keys.create("ci", user="ada").key
    assert made.scopes == {"read"}
    assert abs(made.expires_at - made.created_at - timedelta(days=90)) < timedelta(minutes=1)
    wider = repo.keys.create("for ever", "write", None, user="ada")
    assert (wider.key.scopes, wider.key.expires_at) == ({"read", "write"}, None)
    assert repo.authenticate(wider.secret).session("t", create=True).name == "t"


def test_a_revoked_key_ends_open_handles_at_once(repo, ada):
    made = repo.keys.create("ci", user="ada", expires_in=timedelta(days=1))
    handle = repo.authenticate(made.secret)
    assert parse_token(KEY_PREFIX, made.secret)[0] == made.key.id
    assert repo.keys.revoke(made.key).revoked_at is not None
    with pytest.raises(NotAllowed, match="has expired or was revoked"):
        handle.sessions()
    expect_refused(repo.authenticate, made.secret)
    assert [one.kind for one in repo.events.audit(kinds=["key.*"])] == ["key.created", "key.revoked"]


def everything(repo):
    with backend.reading(repo) as transaction:
        return repr([sorted(map(repr, transaction.execute(select(table)))) for table in METADATA.sorted_tables])


def test_only_hashes_of_secrets_are_stored_and_no_secret_is_shown_or_logged(repo, ada, caplog):
    """Of a key and of a link the SHA-256 is stored; logs, the trail and the repr of objects have nothing."""
    with caplog.at_level(logging.DEBUG):
        key, link = repo.keys.create("ci", user="ada"), repo.as_user(ada).session("s").sharing.create_link()
        entry = repo.users.create_link("ada")
        browser = repo.users.sign_in(entry.secret)
        handle = repo.authenticate(key.secret)
        expect_refused(repo.authenticate, f"{key.secret[:-1]}!")
    assert (key.secret[:5], link.token[:9]) == ("agit_", "agitlink_")
    keys = [parse_token(KEY_PREFIX, one.secret)[1] for one in (key, entry, browser)]
    secrets = {API_KEY: keys, SESSION_LINK: [parse_token(LINK_PREFIX, link.token)[1]]}
    for table, told in secrets.items():
        with backend.reading(repo) as transaction:
            stored = {bytes(one) for one in transaction.execute(select(table.c.hash)).scalars()}
        assert stored == {sha256(secret.encode()).digest() for secret in told}
    shown = [key, key.key, link, entry, browser, handle, handle.context.principal, repo.events.audit()]
    found = everything(repo) + caplog.text + repr(shown)
    assert "'ada'" in found
    assert [one for told in secrets.values() for one in told if one[:-1] in found] == []


CHANGES = {
    "users.add": lambda repo: repo.users.add("new"),
    "users.create_link": lambda repo: repo.users.create_link("ada"),
    "users.disable": lambda repo: repo.users.disable("ada"),
    "users.delete": lambda repo: repo.users.delete("ada"),
    "keys.create": lambda repo: repo.keys.create("ci", user="ada"),
    "keys.revoke": lambda repo: repo.keys.revoke(repo.keys.list("ada")[0]),
    "share": lambda repo: repo.as_user("ada").session("s").sharing.share("bob", "editor"),
    "unshare": lambda repo: repo.as_user("ada").session("s").sharing.unshare("bob"),
    "share_link": lambda repo: repo.as_user("ada").session("s").sharing.create_link(),
    "revoke_link": lambda repo: repo.as_user("ada").revoke_link(repo.as_user("ada").session("s").sharing.links()[0]),
    "delete_session": lambda repo: repo.as_user("ada").session("s").delete(),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_a_change_of_rights_fails_if_it_cannot_be_recorded(repo, ada, monkeypatch, verb):
    """A change and its event share one transaction: if the event cannot be written, nothing changes."""
    repo.users.add("bob")
    repo.keys.create("old", user="ada")
    repo.as_user(ada).session("s").sharing.share("bob")
    repo.as_user(ada).session("s").sharing.create_link()
    before = everything(repo)

    def broken(*_given):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(database, "finish_events", broken)
        with pytest.raises(ZeroDivisionError):
            CHANGES[verb](repo)
    assert everything(repo) == before
    CHANGES[verb](repo)
    assert everything(repo) != before


def test_invalid_credentials_are_refused_alike_and_store_nothing(repo, ada):
    """A refused key writes no row, so that strangers cannot fill the database."""
    made = repo.keys.create("ci", user="ada", expires_in=timedelta(days=1))
    secret = parse_token(KEY_PREFIX, made.secret)[1]
    past = datetime.now(UTC) - timedelta(seconds=1)
    backend.write(repo, lambda c: c.execute(API_KEY.update().values(expires_at=past)))
    before = everything(repo)
    bad = [made.secret, made.secret[:-1] + "!", "", "agit", "agit___", "agit_zz_zz_\0", "x" * 10_000, "\ud800"]
    for ask in (repo.authenticate, repo.users.sign_in):
        expect_refused(ask, *bad, "agit_1_1_x", format_token(KEY_PREFIX, 2**60, secret), None)
    assert everything(repo) == before


def test_a_user_cannot_revoke_another_users_key(repo, ada):
    made = repo.keys.create("ci", user="ada")
    bob = repo.as_user(repo.users.add("bob"))
    with pytest.raises(NotFound):
        bob.keys.revoke(made.key)
    with pytest.raises(InvalidInput, match="no credential"):
        repo.keys.create("mine")
    with pytest.raises(Conflict):
        repo.users.add("ada")
