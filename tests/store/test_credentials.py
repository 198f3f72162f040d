"""Credentials: the limits of passwords, API keys and tokens, and their immediate revocation."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import backend
import faults
import jwt as pyjwt
import points
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm
from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher
from sqlalchemy import select

import agentgit
from agentgit import Repository
from agentgit.auth import JWT, credentials
from agentgit.auth.credentials import key_parts, key_text
from agentgit.auth.sharing import link_parts
from agentgit.errors import Conflict, InvalidInput, NotAllowed, NotFound, TooManyAttempts, Unavailable
from agentgit.store import database
from agentgit.store.records import login_attempts
from agentgit.store.sql.tables import API_KEY, LOGIN_FAILURE, METADATA, SESSION_LINK, USER
from agentgit.web.authentication import Accounts

PASSWORD = "correct horse"  # noqa: S105  # of a test
SECRET = "s" * 40
REFUSED = "Wrong name or password, or an invalid key. Check them, or ask an admin for new ones."


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Make Argon2 cheap, since a real hash takes a tenth of a second on purpose."""
    hasher = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))
    monkeypatch.setattr(*points.PASSWORD_HASHER.place, lambda: hasher)
    credentials._dummy_hash.cache_clear()
    yield
    credentials._dummy_hash.cache_clear()


@pytest.fixture
def ada(repo):
    """Create the user ada with a password and a session."""
    user = repo.users.add("ada", PASSWORD)
    repo.as_user(user).session("s", create=True)
    return user


def column(repo, what):
    with backend.reading(repo) as connection:
        return connection.execute(what).scalars().all()


def test_a_password_logs_in_and_is_stored_only_as_argon2(repo, ada):
    """A login returns a handle with the user's rights; the database stores only the argon2id hash."""
    assert [one.session_name for one in repo.login("ada", PASSWORD).sessions()] == ["s"]
    (stored,) = [one for one in column(repo, select(USER.c.password)) if one]
    assert stored.startswith("$argon2id$")
    assert PASSWORD not in stored


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ada", "wrong horse"),
        ("nobody", PASSWORD),
        ("local", ""),
        ("local", PASSWORD),
        ("ada", "x" * 1001),
        ("ada", "\ud800" * 12),
        ("ada", None),
        ("a\0da", PASSWORD),
        (None, PASSWORD),
    ],
)
def test_every_failed_login_has_the_same_message(repo, ada, name, password):
    """A wrong password, an unknown user and the local owner fail alike, and the trail records the failure."""
    with pytest.raises(NotAllowed) as caught:
        repo.login(name, password)
    assert str(caught.value) == REFUSED
    known = {"ada": ada.id, "local": repo.user.id}
    event = repo.events.audit()[-1]
    assert (event.kind, event.user_id) == ("login.failed", known.get(name))


def test_a_login_of_an_unknown_user_costs_one_hash_too(repo, ada, monkeypatch):
    """Each failed login verifies one hash, so its duration does not reveal whether the user exists."""
    asked = []
    hasher = credentials._hasher()
    verify = hasher.verify
    monkeypatch.setattr(hasher, "verify", lambda *given: asked.append(given) or verify(*given))
    for name in ("ada", "nobody", "local"):
        with pytest.raises(NotAllowed):
            repo.login(name, "wrong horse")
    assert len(asked) == 3
    assert len({stored.split("$")[3] for _, stored in asked}) == 1


@pytest.mark.parametrize("password", ["short", "x" * 1001, "\ud800" * 12, 12345678901, ""])
def test_bad_passwords_are_refused_and_not_quoted(repo, ada, password):
    """Bad input: an invalid password raises InvalidInput, whose text does not contain the password."""
    with pytest.raises(InvalidInput, match="10 to 1000") as caught:
        repo.users.set_password("ada", password)
    assert not password or str(password) not in str(caught.value)


def test_a_new_password_or_disabling_ends_open_handles_at_once(repo, ada):
    """Open handles are refused after a new password, and while their user is disabled."""
    old = repo.login("ada", PASSWORD)
    events = old.events.list(session="s")
    repo.users.set_password(ada, "another horse")
    for use in (old.sessions, lambda: old.session("t", create=True), lambda: next(events)):
        with pytest.raises(NotAllowed, match="expired or was revoked"):
            use()
    new, acting = repo.login("ada", "another horse"), repo.as_user("ada")
    repo.users.disable("ada")
    for handle in (new, acting):
        with pytest.raises(NotAllowed, match="expired or was revoked"):
            handle.session("s")
    for again in (lambda: repo.login("ada", "another horse"), lambda: repo.as_user("ada")):
        with pytest.raises(NotAllowed):
            again()
    assert repo.users.enable("ada").disabled_at is None
    assert repo.login("ada", "another horse").session("s").info.is_own


def test_a_login_that_ends_during_a_password_change_is_revoked(repo, ada):
    """A login that checked the old password and ends while the password is changed is refused from then on."""
    has_locked, may_go_on = threading.Event(), threading.Event()

    def lock(plain, *args, **how):
        if has_locked.is_set():
            may_go_on.set()
            plain(*args, **how)
            return
        plain(*args, **how)
        has_locked.set()
        assert may_go_on.wait(60), "the change of the password did not come"

    def arrive():
        if has_locked.is_set() and backend.is_sqlite(repo):
            may_go_on.set()  # on SQLite the change waits for the login before it begins, and never reaches the lock

    with (
        faults.around(points.LOCK_USER, lock),
        faults.before(points.EVERY_WRITE, arrive),
        ThreadPoolExecutor() as pool,
    ):
        login = pool.submit(repo.login, "ada", PASSWORD)
        assert has_locked.wait(60), "the login did not come"
        change = pool.submit(repo.users.set_password, ada, "another horse")
        change.result(60)
        handle = login.result(60)
    with pytest.raises(NotAllowed, match="expired or was revoked"):
        handle.sessions()
    assert repo.login("ada", "another horse").user == ada


def test_changing_a_password_requires_the_current_one(repo, ada):
    """A login or a key needs the current password; the operator, and an admin for other users, need none."""
    key = repo.keys.create("all", "admin", user="ada")
    for handle in (repo.login("ada", PASSWORD), repo.authenticate(key.secret)):
        for user in (ada, "ada", ada.id, str(ada.id)):
            for current in (None, "", "wrong horse", PASSWORD[:-1], 7):
                with pytest.raises(NotAllowed) as caught:
                    handle.users.set_password(user, "another horse", current=current)
                if isinstance(caught.value, TooManyAttempts):
                    backend.write(repo, lambda c: repo.context.store.login_attempts.delete_failures(c, "ada"))
    assert repo.login("ada", PASSWORD).user == ada
    repo.login("ada", PASSWORD).users.set_password("ada", "another horse", current=PASSWORD)
    repo.users.set_password("ada", PASSWORD)
    root = repo.users.add("root", PASSWORD, is_admin=True)
    repo.login("root", PASSWORD).users.set_password("ada", "another horse")
    with pytest.raises(NotAllowed):
        repo.login("root", PASSWORD).users.set_password(str(root.id), "another horse")
    assert repo.login("ada", "another horse").user == ada


def test_a_new_password_or_revocation_ends_browser_logins(repo, ada):
    """A new password ends the user's other browser logins, a revocation all of them; keys stay."""
    bob, door = repo.users.add("bob", PASSWORD), Accounts(repo)
    ci = repo.keys.create("ci", user="ada").secret

    def come_in(name, password=PASSWORD):
        return door.login(name, password, "192.0.2.1").key

    def ended(*keys):
        found = []
        for key in keys:
            try:
                door.repository(key).sessions()
            except NotAllowed:
                found.append(key)
        return found

    first, second, of_bob = come_in("ada"), come_in("ada"), come_in("bob")
    thief = door.repository(second)
    door.repository(first).users.set_password("ada", "another horse", current=PASSWORD)
    with pytest.raises(NotAllowed, match="expired or was revoked"):
        thief.keys.create("for ever", "admin", None)
    assert ended(first, second, of_bob, ci) == [second]
    repo.users.set_password("ada", PASSWORD)
    assert ended(first, of_bob, ci) == [first]
    third = come_in("ada")
    repo.users.revoke_tokens("ada")
    assert ended(third, of_bob, ci) == [third]
    fourth = come_in("ada")
    repo.users.revoke_tokens()
    assert ended(fourth, of_bob, ci) == [fourth, of_bob]
    assert {one.name for one in repo.keys.list(bob)} == {"browser"}


def test_guesses_of_the_current_password_are_limited(repo, ada):
    """After too many wrong current passwords the user must wait, but can still log in."""
    inside = repo.login("ada", PASSWORD, source="192.0.2.1")
    for _ in range(11):
        with pytest.raises(NotAllowed):
            inside.users.set_password("ada", "another horse", current="wrong horse")
    with pytest.raises(TooManyAttempts):
        inside.users.set_password("ada", "another horse", current=PASSWORD)
    assert repo.login("ada", PASSWORD, source="192.0.2.1").user == ada


def test_a_key_is_read_only_and_expires_by_default(repo, ada):
    """A key reads for 90 days by default; one without an expiry must be requested."""
    made = repo.keys.create("ci", user="ada").key
    assert made.scopes == {"read"}
    assert abs(made.expires_at - made.created_at - timedelta(days=90)) < timedelta(minutes=1)
    assert repo.keys.create("for ever", "write", None, user="ada").key.expires_at is None


@pytest.mark.parametrize("makes_users", [False, True])
def test_a_token_of_an_erased_user_is_refused_for_a_namesake(repo, ada, makes_users):
    """A token from before the erasure is refused for a new user of that name; a later one is accepted."""
    repo = Repository(repo.context, jwt=replace(RULES, create_users=makes_users), is_borrowed=True)
    early = token(), token(iat=None)
    handles = [repo.authenticate(one) for one in early]
    assert [handle.user for handle in handles] == [ada, ada]
    repo.users.delete("ada")
    for one in early:
        with pytest.raises(NotAllowed):
            repo.authenticate(one)  # also with create_users: the token does not bring the erased user back
    new = repo.users.add("ada")
    for one in early:
        with pytest.raises(NotAllowed):
            repo.authenticate(one)
    for handle in handles:
        with pytest.raises(NotAllowed):
            handle.sessions()
    assert repo.authenticate(token(iat=datetime.now(UTC) + timedelta(seconds=1))).user == new


@pytest.mark.parametrize("said", [None, 7, "7", "", "x", [], {}, 1.5, "9" * 5000, True])
def test_id_claim_requires_the_user_id_in_a_token(repo, ada, said):
    """With id_claim a token is accepted only with the id of the user whom it names."""
    repo = Repository(repo.context, jwt=replace(RULES, id_claim="uid"), is_borrowed=True)
    with pytest.raises(NotAllowed):
        repo.authenticate(token(uid=said))
    assert repo.authenticate(token(uid=ada.id)).user == repo.authenticate(token(uid=str(ada.id))).user == ada
    with pytest.raises(InvalidInput, match="id_claim or create_users"):
        replace(RULES, id_claim="uid", create_users=True)


def test_a_key_is_limited_to_its_scope(repo, ada):
    """A handle made from a key has the key's scope, and cannot create keys with a wider scope."""
    read, write, admin = (
        repo.authenticate(repo.keys.create(scope, scope, user="ada").secret) for scope in ("read", "write", "admin")
    )
    assert read.session("s").name == "s"
    for refused in (
        lambda: read.session("t", create=True),
        lambda: read.session("s").recover(),
        lambda: write.session("s").sharing.share("local"),
        lambda: write.keys.create("more", "read"),
        lambda: write.users.set_password("ada", "another horse"),
        lambda: admin.keys.create("other", "read", user="local"),
        lambda: admin.maintenance.gc(),
        lambda: admin.as_user("local"),
    ):
        with pytest.raises(NotAllowed):
            refused()
    assert write.session("t", create=True).name == "t"
    assert admin.keys.create("another", "write").key.scopes == {"read", "fork", "write"}


def test_a_revoked_key_ends_open_handles_and_hides_its_secret(repo, ada):
    """A revoked key ends open handles at once; the repr of key and handle and the trail lack its secret."""
    made = repo.keys.create("ci", user="ada", expires_in=timedelta(days=1))
    handle = repo.authenticate(made.secret)
    assert key_parts(made.secret)[:2] == (repo.context.store.tenant_id, made.key.id)
    secret = key_parts(made.secret)[2]
    stored = column(repo, select(API_KEY.c.hash))
    said = (
        repr(made)
        + repr(made.key)
        + repr(handle)
        + repr(handle.context.principal)
        + repr(repo.events.audit())
        + repr(stored)
    )
    assert secret not in said
    assert repo.keys.revoke(made.key).revoked_at is not None
    with pytest.raises(NotAllowed, match="expired or was revoked"):
        handle.sessions()
    with pytest.raises(NotAllowed) as caught:
        repo.authenticate(made.secret)
    assert str(caught.value) == REFUSED
    assert [one.kind for one in repo.events.audit(kinds=["key.*"])] == ["key.created", "key.revoked"]


def everything(repo):
    """Return all rows of all tables as text."""
    with backend.reading(repo) as connection:
        return repr([sorted(map(repr, connection.execute(select(table)))) for table in METADATA.sorted_tables])


def test_the_database_stores_only_hashes_of_secrets(repo, ada):
    """No row has a password, key or link; of keys and links the SHA-256 is stored."""
    key, link = repo.keys.create("ci", user="ada"), repo.as_user(ada).session("s").sharing.create_link()
    repo.login("ada", PASSWORD)
    repo.authenticate(key.secret)
    assert (key.secret[:5], link.token[:9]) == ("agit_", "agitlink_")
    secrets = {API_KEY: key_parts(key.secret)[2], SESSION_LINK: link_parts(link.token)[1]}
    for table, secret in secrets.items():
        assert [bytes(one) for one in column(repo, select(table.c.hash))] == [sha256(secret.encode()).digest()]
    found = everything(repo)
    assert "'ada'" in found
    assert [one for one in (PASSWORD, *secrets.values()) if one in found] == []


CHANGES = {
    "users.add": lambda repo: repo.users.add("new"),
    "users.set_password": lambda repo: repo.users.set_password("ada", "a new password"),
    "users.disable": lambda repo: repo.users.disable("ada"),
    "users.revoke_tokens": lambda repo: repo.users.revoke_tokens(),
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


def test_every_invalid_key_is_refused_with_the_same_message(repo, ada):
    """A wrong secret, another tenant's key, an expired one and hostile text are refused alike."""
    made = repo.keys.create("ci", user="ada", expires_in=timedelta(days=1))
    tenant, key, secret = key_parts(made.secret)
    backend.write(
        repo, lambda c: c.execute(API_KEY.update().values(expires_at=datetime.now(UTC) - timedelta(seconds=1)))
    )
    other = key_text(tenant + 2, key, secret)
    bad = [made.secret, made.secret[:-1] + "!", other, "", "agit", "agit___", "agit_zz_zz_\0", "x" * 10_000, "\ud800"]
    for text in [*bad, key_text(tenant, 2**60, secret), None]:
        with pytest.raises(NotAllowed) as caught:
            repo.authenticate(text)
        assert str(caught.value) == REFUSED


def test_the_last_use_of_a_key_is_not_updated_within_a_minute(repo, ada):
    """The last use of a key is recorded, and a second use at once does not update it."""
    made = repo.keys.create("ci", user="ada")
    repo.authenticate(made.secret)
    first = repo.keys.list("ada")[0].last_used_at
    repo.authenticate(made.secret)
    assert repo.keys.list("ada")[0].last_used_at == first
    assert first is not None


def test_a_user_cannot_revoke_another_users_key(repo, ada):
    """Another user's key is not found, and the local owner can have neither key nor password."""
    made = repo.keys.create("ci", user="ada")
    bob = repo.as_user(repo.users.add("bob"))
    with pytest.raises(NotFound):
        bob.keys.revoke(made.key)
    with pytest.raises(InvalidInput, match="no credential"):
        repo.keys.create("mine")
    with pytest.raises(InvalidInput, match="no credential"):
        repo.users.set_password("local", PASSWORD)
    with pytest.raises(Conflict):
        repo.users.add("ada")


# -- limits on failed logins


@pytest.mark.usefixtures("long_login_pauses")
def test_repeated_failures_delay_only_that_user_at_that_address(repo, ada):
    """After some failures a login must wait; another address and another user are not affected."""
    for _ in range(11):
        with pytest.raises(NotAllowed):
            repo.login("ada", "wrong horse", source="10.0.0.1")
    with pytest.raises(TooManyAttempts) as caught:
        repo.login("ada", PASSWORD, source="10.0.0.1")
    assert 60 <= caught.value.retry_after <= 120
    assert repo.login("ada", PASSWORD, source="10.0.0.2").user.name == "ada"
    repo.users.add("bob", PASSWORD)
    assert repo.login("bob", PASSWORD, source="10.0.0.1").user.name == "bob"
    backend.write(repo, lambda c: c.execute(LOGIN_FAILURE.update().values(blocked_until=datetime.now(UTC))))
    assert repo.login("ada", PASSWORD, source="10.0.0.1").user.name == "ada"
    for _ in range(10):  # the successful login has reset the count
        with pytest.raises(NotAllowed) as again:
            repo.login("ada", "wrong horse", source="10.0.0.1")
        assert not isinstance(again.value, TooManyAttempts)


@pytest.mark.usefixtures("long_login_pauses")
def test_failures_are_counted_across_processes_without_names(repo, ada):
    """Failures are counted in the database under a hash of their subject, and deleted after their time."""
    with agentgit.open(backend.url(repo)) as other:
        for _ in range(31):
            with pytest.raises(NotAllowed):
                other.authenticate("agit_1_1_x", source="10.0.0.1")
    with pytest.raises(TooManyAttempts):
        repo.authenticate("agit_1_1_x", source="10.0.0.1")
    (subject,) = column(repo, select(LOGIN_FAILURE.c.subject))
    assert len(bytes(subject)) == 32
    backend.write(repo, lambda c: c.execute(LOGIN_FAILURE.update().values(forget_at=datetime.now(UTC))))
    repo.login("ada", PASSWORD)
    assert column(repo, select(LOGIN_FAILURE.c.subject)) == []


def test_the_login_pause_has_an_upper_limit():
    """The pause after failures never exceeds a quarter of an hour."""
    assert login_attempts.pause(10**9) == timedelta(minutes=15)


# -- tokens

KEYS = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEYS.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
RULES = JWT(algorithms=["RS256"], key=PEM, issuer="https://id.example", audience="agentgit")


def token(key=KEYS, algorithm="RS256", headers=None, **claims):
    now = datetime.now(UTC)
    said = {"sub": "ada", "iss": "https://id.example", "aud": "agentgit", "iat": now, "exp": now + timedelta(hours=1)}
    return pyjwt.encode({k: v for k, v in {**said, **claims}.items() if v is not None}, key, algorithm, headers)


def unsigned():
    return pyjwt.encode({"sub": "ada", "exp": 2**40}, None, "none")


def confused():
    """Return a token signed with the public key as a shared secret, by hand, since PyJWT refuses to."""
    import base64
    import hmac

    head, body, _ = token().split(".")
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()).rstrip(b"=").decode()
    signed = base64.urlsafe_b64encode(hmac.digest(PEM.encode(), f"{head}.{body}".encode(), "sha256")).rstrip(b"=")
    return f"{head}.{body}.{signed.decode()}"


def test_a_valid_token_logs_its_user_in(repo, ada):
    """A token is accepted if its signature matches the key, or the key of the set that it names."""
    repo = Repository(repo.context, jwt=RULES, is_borrowed=True)
    assert repo.authenticate(token()).session("s").info.is_own
    public = {**RSAAlgorithm.to_jwk(KEYS.public_key(), as_dict=True), "kid": "k1"}
    repo = Repository(
        repo.context, jwt=JWT(algorithms=["RS256"], jwks={"keys": [public]}, audience="agentgit"), is_borrowed=True
    )
    assert repo.authenticate(token(headers={"kid": "k1"})).user.name == "ada"
    repo = Repository(repo.context, jwt=JWT(algorithms=["HS256"], key=SECRET, audience="agentgit"), is_borrowed=True)
    assert repo.authenticate(token(SECRET, "HS256")).user.name == "ada"


def test_every_invalid_token_is_refused_with_the_same_message(repo, ada):
    """Unsigned, confused, expired, foreign and endless tokens are refused alike, and create no user."""
    repo = Repository(repo.context, jwt=RULES, is_borrowed=True)
    past = datetime.now(UTC) - timedelta(hours=2)
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    bad = [
        unsigned(),
        confused(),
        token(exp=past),
        token(exp=None),
        token(iss="https://evil.example"),
        token(aud="other"),
        token(aud=None),
        token(stranger),
        token(sub=""),
        token(sub=None),
        token(sub="local"),
        token(sub="bob"),
        token(nbf=datetime.now(UTC) + timedelta(hours=1)),
        token(iat=datetime.now(UTC) + timedelta(hours=1)),
        token() + "x" * 9000,
        "a.b.c",
        "\ud800.a.b",
    ]
    for text in bad:
        with pytest.raises(NotAllowed) as caught:
            repo.authenticate(text)
        assert str(caught.value) == REFUSED
    assert [one.name for one in repo.users.list()] == ["ada", "local"]


def test_revocation_and_the_off_switch_end_tokens(repo, ada, monkeypatch):
    """A revocation ends earlier tokens of one user or of all, and a switch refuses all tokens."""
    repo = Repository(repo.context, jwt=RULES, is_borrowed=True)
    old = token(iat=datetime.now(UTC) - timedelta(seconds=5))
    handle = repo.authenticate(old)
    repo.users.revoke_tokens("ada")
    for use in (handle.sessions, lambda: repo.authenticate(old)):
        with pytest.raises(NotAllowed):
            use()
    assert repo.authenticate(token(iat=datetime.now(UTC) + timedelta(seconds=2))).user.name == "ada"
    backend.write(repo, lambda c: c.execute(USER.update().values(tokens_revoked_at=None)))
    monkeypatch.setenv("AGENTGIT_JWT", "off")
    with pytest.raises(NotAllowed):
        repo.authenticate(token())
    monkeypatch.delenv("AGENTGIT_JWT")
    repo = Repository(
        repo.context, jwt=JWT(algorithms=["RS256"], key=PEM, audience="agentgit", enabled=False), is_borrowed=True
    )
    with pytest.raises(NotAllowed):
        repo.authenticate(token())
    repo = Repository(repo.context, jwt=RULES, is_borrowed=True)
    handle = repo.authenticate(old)
    repo.users.revoke_tokens()
    with pytest.raises(NotAllowed):
        handle.sessions()
    assert [one.kind for one in repo.events.audit(kinds="tokens.*")] == ["tokens.revoked"] * 2


def test_create_users_lets_a_token_create_its_user(repo):
    """With create_users a token creates its user, if the name is valid for a user."""
    repo = Repository(
        repo.context, jwt=JWT(algorithms=["RS256"], key=PEM, audience="agentgit", create_users=True), is_borrowed=True
    )
    assert repo.authenticate(token(sub="new")).user.name == "new"
    with pytest.raises(NotAllowed):
        repo.authenticate(token(sub="a/b"))
    assert [one.name for one in repo.users.list()] == ["local", "new"]


@pytest.mark.parametrize(
    "rules",
    [
        {"algorithms": ["none"], "key": SECRET},
        {"algorithms": [], "key": SECRET},
        {"algorithms": ["HS256", "RS256"], "key": SECRET},
        {"algorithms": ["HS256"], "key": PEM},
        {"algorithms": ["HS256"], "key": "short"},
        {"algorithms": ["RS256"]},
        {"algorithms": ["HS256"], "jwks": {}},
        {"algorithms": ["RS256"], "key": PEM, "jwks": {}},
    ],
)
def test_token_rules_that_verify_nothing_are_refused(rules):
    """Bad input: rules that would accept unsigned tokens, or the public key as a secret, raise InvalidInput."""
    with pytest.raises(InvalidInput) as caught:
        JWT(**rules)
    assert "BEGIN" not in str(caught.value)


def test_a_missing_auth_extra_names_the_install_command(repo, ada, monkeypatch):
    """Bad input: if argon2 or PyJWT is not installed, the error says what to install."""
    monkeypatch.undo()
    credentials._hasher.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pwdlib", None)
    monkeypatch.setitem(__import__("sys").modules, "jwt", None)
    with pytest.raises(Unavailable, match=r'pip install "agentgit\[auth\]"'):
        repo.login("ada", PASSWORD)
    repo = Repository(repo.context, jwt=RULES, is_borrowed=True)
    with pytest.raises(Unavailable, match=r'pip install "agentgit\[auth\]"'):
        repo.authenticate("a.b.c")


def test_secrets_are_never_logged(repo, ada, caplog):
    """Neither passwords nor secrets of keys are logged, even if they are refused."""
    with caplog.at_level(logging.DEBUG):
        made = repo.keys.create("ci", user="ada")
        repo.authenticate(made.secret)
        repo.login("ada", PASSWORD)
        with pytest.raises(NotAllowed):
            repo.login("ada", "wrong horse")
    assert not any(text in caplog.text for text in (made.secret, PASSWORD, "wrong horse"))
