"""The commands for users, keys and sharing, with several users on one database."""

import json
from datetime import datetime, timedelta

import command_line
import pytest

from agentgit import NotAllowed
from agentgit import open as open_repository
from agentgit.demo import story


@pytest.fixture
def agentgit(tmp_path, monkeypatch):
    """Run the demo in an empty folder, and return a function that returns a command's exit code and output."""
    monkeypatch.chdir(tmp_path)
    for name in ("AGENTGIT_USER", "AGENTGIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    story("agentgit.db", "shop.db", lambda _: None)

    def run(*words, said=""):
        done = command_line.run(*words, stdin=said)
        return done.code, done.out + done.err

    return run


@pytest.mark.long
def test_two_users_share_a_session_on_the_command_line(agentgit, monkeypatch):
    for name in ("ada", "bob"):
        assert agentgit("users", "add", name)[0] == 0
    assert agentgit("--user", "bob", "tree", "local/demo")[0] == 3
    assert agentgit("share", "demo", "bob", "--expires", "7d") == (0, "bob is viewer of demo\n")
    assert "local/demo" in agentgit("--user", "bob", "sessions")[1]
    code, said = agentgit("--user", "bob", "rollback", "local/demo", "main#1")
    assert (code, "needs editor" in said) == (5, True)
    token = agentgit("share", "demo", "--link", "--role", "editor")[1].strip()
    monkeypatch.setenv("AGENTGIT_USER", "ada")
    assert agentgit("accept", token) == (0, "you are editor of local/demo\n")
    assert json.loads(agentgit("accept", token, "--json")[1])["session_name"] == "demo"
    assert agentgit("users", "list")[0] == 5
    monkeypatch.delenv("AGENTGIT_USER")
    links = json.loads(agentgit("share", "demo", "--links", "--json")[1])
    assert agentgit("share", "demo", "--revoke", str(links[0]["id"]))[0] == 0
    assert agentgit("share", "demo")[1].split()[:2] == ["bob", "viewer"]
    assert agentgit("share", "demo", "bob", "--remove")[0] == 0
    assert agentgit("share", "demo")[1] == "not shared\n"
    assert agentgit("share", "demo", "bob", "--expires", "soon")[0] == 2


def test_keys_and_users_are_managed_on_the_command_line(agentgit):
    """A key is shown once, only reads and expires unless it is told otherwise; a disabled user can do nothing."""
    agentgit("users", "add", "ada")
    made = json.loads(agentgit("keys", "create", "ci", "--for", "ada", "--json")[1])
    assert made["secret"].startswith("agit_")
    assert made["scopes"] == ["read"]
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert round(lifetime / timedelta(days=1)) == 90
    words = ("--scope", "write", "--expires", "never", "--json")
    wider = json.loads(agentgit("keys", "create", "bot", "--for", "ada", *words)[1])
    assert (wider["scopes"], wider["expires_at"]) == (["read", "write"], None)
    assert made["secret"] not in agentgit("keys", "list", "--for", "ada", "--json")[1]
    assert agentgit("keys", "revoke", str(made["id"]))[0] == 0
    assert "revoked" in agentgit("keys", "list", "--for", "ada")[1]
    assert agentgit("users", "disable", "ada")[0] == 0
    code, said = agentgit("--user", "ada", "sessions")
    assert (code, "disabled" in said) == (5, True)
    assert agentgit("users", "enable", "ada")[0] == 0
    assert agentgit("--user", "ada", "sessions")[0] == 0
    kinds = [one["kind"] for one in json.loads(agentgit("audit", "--json")[1])]
    assert kinds == ["user.added", *["key.created"] * 3, "key.revoked", "user.disabled", "user.enabled"]


def test_a_new_user_gets_a_link_that_signs_in_once(agentgit):
    """`users add` and `users link` print the address of a sign-in link, which gives one browser a key of the user."""
    code, said = agentgit("users", "add", "ada")
    told, address = said.splitlines()
    assert (code, told) == (0, "user ada is created. This link signs a browser in once, within 24 hours:")
    assert address.startswith("http://127.0.0.1:8700/sign-in?token=agit_")
    more = json.loads(agentgit("users", "link", "ada", "--public-url", "https://git.example/git/", "--json")[1])
    assert more["sign_in_link"].startswith("https://git.example/git/sign-in?token=agit_")
    with open_repository("agentgit.db") as repo:
        for link in (address, more["sign_in_link"]):
            token = link.partition("token=")[2]
            assert repo.authenticate(repo.users.sign_in(token).secret).user.name == "ada"
            with pytest.raises(NotAllowed):
                repo.users.sign_in(token)
    assert agentgit("--user", "ada", "users", "link", "ada")[0] == 5
    assert agentgit("users", "link", "local")[0] == 2
    assert agentgit("users", "link", "eve")[0] == 3


def test_the_audit_trail_names_the_actor_of_each_event(agentgit):
    """An admin reads the actor and the subject of each event by name; an erased user is shown by id."""
    for name in ("ada", "bob"):
        agentgit("users", "add", name)
    agentgit("keys", "create", "ci", "--for", "bob")
    agentgit("--user", "ada", "users", "disable", "bob")
    lines = [line.split()[2:] for line in agentgit("audit")[1].splitlines()]
    assert lines[0][:4] == ["user.added", "local", "user", "ada"]
    assert [line[0] for line in lines[:5]] == ["user.added", "key.created", "user.added", "key.created", "key.created"]
    assert "of bob" in " ".join(lines[4])
    assert lines[-1] == ["access.denied", "ada", "needs", "admin", "verb", "users.disable"]
    ada = json.loads(agentgit("users", "list", "--json")[1])[0]["id"]
    agentgit("users", "delete", "ada", "--yes")
    assert f"access.denied  {ada}" in agentgit("audit")[1]


@pytest.mark.long
def test_a_user_is_deleted_on_the_command_line(agentgit):
    agentgit("users", "add", "ada")
    assert agentgit("users", "delete", "ada", said="n\n")[0] == 1
    assert agentgit("users", "delete", "ada", "--json", said="y\n")[0] == 2  # --json asks nothing and needs --yes
    code, said = agentgit("users", "delete", "ada", said="y\n")
    assert (code, "erased user ada: " in said) == (0, True)
    assert agentgit("users", "delete", "ada", "--yes")[0] == 3
    assert agentgit("users", "delete", "local", "--yes")[0] == 2
    assert "user.erased" in agentgit("audit")[1]


@pytest.mark.long
def test_every_command_refuses_an_unknown_user(agentgit, monkeypatch):
    """An unknown user is refused and never created, and every command acts for the named user."""
    agentgit("users", "add", "ada")
    for words in (
        "sessions",
        "demo",
        "chat agentgit.demo:build",
        "import --langgraph x.db",
        "mcp",
        "db rotate --count",
    ):
        code, said = agentgit("--user", "adda", *words.split())
        assert (code, "There is no user 'adda'" in said, "ada" in said) == (3, True, True), words
    assert agentgit("--user", "a/b", "sessions")[0] == 2
    assert "adda" not in agentgit("users", "list")[1]
    monkeypatch.setenv("AGENTGIT_USER", "ada")
    assert agentgit("demo")[0] == 0
    assert agentgit("sessions", "--json")[1].count("session_name") == 1
    agentgit("chat", "agentgit.demo:build", "talk", said="order two chairs\n")
    assert agentgit("tree", "talk")[0] == 0
    monkeypatch.delenv("AGENTGIT_USER")
    assert agentgit("tree", "talk")[0] == 3
    assert agentgit("--db", "new.db", "users", "add", "bob")[0] == 0
    assert agentgit("--db", "newer.db", "--user", "bob", "users", "add", "eve")[0] == 3
