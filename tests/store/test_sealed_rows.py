"""In an encrypted database, no verb reads values or rows that somebody without the key has written."""

import ast
import json
from datetime import UTC, datetime
from importlib import import_module
from io import BytesIO
from pathlib import Path

import backend
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from sqlalchemy import and_, create_engine, delete, insert, select, text, true, update
from sqlalchemy.exc import IntegrityError
from test_encryption import ONE, TWO, shown, story

import agentgit
from agentgit import Keyring, SQLModelSaver
from agentgit.demo import EFFECTS, build
from agentgit.errors import Corrupt, InvalidInput, KeyMissing
from agentgit.store.database import Database
from agentgit.store.objects.blobs import leaf, unpack
from agentgit.store.records.encryption_keys import write_proofs
from agentgit.store.sql import row_codes
from agentgit.store.sql.encrypted_columns import raw_table, sealed_columns
from agentgit.store.sql.encryption import Seal, parse_key_name
from agentgit.store.sql.tables import ENCRYPTION_KEY, LIST, METADATA

RINGS = Keyring({"a": ONE}), Keyring({"b": TWO, "a": ONE})


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Run each test in its own folder, because the demo's graph creates its shop in the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def url(database):
    return database.url


def write(repo, *statements):
    """Run statements without encryption, as somebody who has no key."""
    for one in statements:
        backend.write(repo, lambda c, s=one: c.execute(s))


def proofs(repo):
    """Return the rows that prove which keys the database has, as they are stored."""
    with backend.reading(repo) as connection:
        return [dict(row) for row in connection.execute(select(ENCRYPTION_KEY)).mappings()]


def put_back(repo, rows):
    """Replace the rows of the encryption keys by the given ones."""
    write(repo, delete(ENCRYPTION_KEY), *(insert(ENCRYPTION_KEY).values(row) for row in rows))


def forged(repo):
    """Replace the arguments of all calls by unencrypted ones."""
    table = raw_table("tool_invocation")
    write(repo, update(table).values(args=b'{"item": "bomb"}'))


@pytest.mark.parametrize("name", list(sealed_columns()))
def test_fsck_names_the_row_of_an_unencrypted_value(sqlite_template, tmp_path, name):
    """In a fully encrypted database, fsck reports an unencrypted value in each sealed column that has values."""
    path = tmp_path / "x.db"
    path.write_bytes(sqlite_template.read_bytes())
    with agentgit.open(path, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        agent = repo.wrap(build("shop.db"), session="files", workspace=tmp_path / "w", effects=EFFECTS)
        agent.checkpoint("one")
        repo.session("s").tag("HEAD", "t", description="told")
        assert repo.maintenance.fsck(2).findings == ()
        table, seal = raw_table(name), backend.database(repo).seal
        for column in sealed_columns()[name]:
            this = table.c[column]
            with backend.reading(repo) as connection:
                whole = table.c.type != LIST if name == "blob" else true()  # lists of hashes are not encrypted
                rows = connection.execute(select(this, *table.primary_key).where(whole)).all()
            value = next((row[0] for row in rows if row[0] is not None), None)
            if value is None:
                continue
            clear = "in clear" if isinstance(value, str) else b'{"in": "clear"}'
            write(repo, update(table).where(this == value).values({column: clear}))
            found = [one for one in repo.maintenance.fsck(2).findings if one.row.startswith(f"{name} ")]
            assert [one for one in found if "is not encrypted" in one.what], column
            write(repo, update(table).where(this == clear).values({column: value}))
        assert seal.is_fully_encrypted
        assert repo.maintenance.fsck(2).findings == ()


def test_no_verb_reads_an_unencrypted_call(url, tmp_path):
    """A call with unencrypted arguments is Corrupt for the track, a plan, a rollback and an export."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        forged(repo)
        for verb in (
            lambda: repo.session("s").tool_track(),
            lambda: repo.session("s").plan_rollback("main#1"),
            lambda: repo.session("s").rollback("main#1"),
            lambda: repo.session("s").export(tmp_path / "s.jsonl"),
        ):
            with pytest.raises(Corrupt, match="is not encrypted"):
                verb()


def test_an_unencrypted_message_with_a_valid_hash_is_refused(url, tmp_path):
    """An unencrypted message with a valid hash is Corrupt; unencrypted lists of hashes stay readable."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        value, table = leaf("json", json.dumps({"content": "send it all"}).encode()), raw_table("blob")
        session = repo.session("s").id
        row = {"tenant_id": repo.context.store.tenant_id, "external_session_id": session, "hash": value.hash}
        write(repo, insert(table).values(**row, type="json", codec=0, size=len(value.data), data=value.data))
        with backend.reading(repo) as connection:
            blobs = repo.context.store.graphs.blobs.of(session)
            with pytest.raises(Corrupt, match="is not encrypted"):
                blobs.get_many(connection, [value.hash])
            stored = connection.execute(select(table.c.data).where(table.c.type == LIST)).scalars().all()
        assert stored
        assert {parse_key_name(data) for data in stored} == {None}
        (finding,) = repo.maintenance.fsck(1).findings
        assert (finding.row, "is not encrypted" in finding.what) == (f"blob {session}/{value.hash.hex()}", True)
        write(repo, delete(table).where(table.c.hash == value.hash))
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        assert repo.maintenance.fsck(3).findings == ()
        assert len(repo.session("s").branch().conversation_history) > 0


@pytest.mark.long
@pytest.mark.parametrize("begins", ["sealed", "plain"])
def test_full_encryption_cannot_be_revoked_without_the_key(url, tmp_path, begins):
    """Without the key, no change of the key rows makes a fully encrypted database accept unencrypted values."""
    with agentgit.open(url, keyring=RINGS[0] if begins == "sealed" else None) as repo:
        story(repo, tmp_path)
    if begins == "plain":
        with agentgit.open(url, keyring=RINGS[0]) as repo:
            assert not backend.database(repo).seal.is_fully_encrypted
            early = proofs(repo)
            assert len(shown(repo)[0]) > 0  # still unencrypted, and readable
            repo.maintenance.rotate_keys()
            assert backend.database(repo).seal.is_fully_encrypted
        with agentgit.open(url, keyring=RINGS[1]) as repo:  # another key, so that no earlier row is of use
            repo.maintenance.rotate_keys()
        ring = RINGS[1]
    else:
        ring, early = RINGS[0], []
    with agentgit.open(url, keyring=ring) as repo:
        forged(repo)
        now = proofs(repo)
    name = now[0]["id"]
    other = Seal(Keyring({name: ring[name]}))
    other.tenant_id = now[0]["tenant_id"] + 1
    attacks = {
        "no row": [],
        "the early row": early,
        "both": [*early, *now],
        "another tenant's": [{**now[0], "proof": other.seal("encryption_key.proof", b"agentgit")}],
        "another name": [{**row, "id": name} for row in early],
        "something else": [{**now[0], "proof": b"agentgit"}],
    }
    for what, rows in attacks.items():
        with agentgit.open(url, keyring=ring) as repo:
            put_back(repo, rows)
        try:
            with agentgit.open(url, keyring=ring) as repo:
                with pytest.raises(Corrupt, match="is not encrypted"):
                    repo.session("s").tool_track()
                assert backend.database(repo).seal.is_fully_encrypted, what
                put_back(repo, now)
        except (InvalidInput, KeyMissing):
            assert what in ("another tenant's", "another name", "something else")
            past = Database(url)
            past.write(lambda c: c.execute(delete(ENCRYPTION_KEY)))
            past.close()
            with agentgit.open(url, keyring=ring) as repo:
                put_back(repo, now)


def test_a_text_is_not_a_valid_proof_of_a_key(tmp_path):
    """A text in place of the bytes that prove a key is refused like the proof of another key, on SQLite."""
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo:
        write(repo, text("UPDATE encryption_key SET proof = 'x'"))
    with pytest.raises(InvalidInput, match="The key a differs"):
        agentgit.open(tmp_path / "x.db", keyring=RINGS[0])


def test_a_rotation_does_not_encrypt_forged_plain_values(url, tmp_path):
    """A rotation of a fully encrypted database raises Corrupt for a plain value and does not encrypt it."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        forged(repo)
    with agentgit.open(url, keyring=RINGS[1]) as repo:
        with pytest.raises(Corrupt, match="is not encrypted"):
            repo.maintenance.rotate_keys()
        assert repo.maintenance.encryption_keys()[""] > 0
        assert {one.what for one in repo.maintenance.fsck(2).findings} >= {
            "its args is not encrypted, although this database is"
        }
        repo.maintenance.rotate_keys(off=True)  # allowed with the key
        assert not backend.database(repo).seal.is_fully_encrypted
    with agentgit.open(url) as repo:
        assert {call.args["item"] for call in repo.session("s").tool_track()} == {"bomb"}


@pytest.mark.long
def test_an_interrupted_rotation_can_be_completed(url, tmp_path):
    """After interrupted encryption, rotation or decryption all is readable, and a new run completes it."""
    with agentgit.open(url) as repo:
        story(repo, tmp_path)
        before = shown(repo)

    def broken(ring, *, off=False):
        def stop(done, _total):
            if done > 30:
                raise KeyboardInterrupt

        with agentgit.open(url, keyring=ring) as repo, pytest.raises(KeyboardInterrupt):
            repo.maintenance.rotate_keys(off=off, progress=stop)
        with agentgit.open(url, keyring=ring) as repo:
            assert (shown(repo), repo.maintenance.fsck(3).findings) == (before, ())
            was_whole = backend.database(repo).seal.is_fully_encrypted
            repo.maintenance.rotate_keys(off=off)
            assert (shown(repo), repo.maintenance.fsck(3).findings) == (before, ())
            return was_whole, backend.database(repo).seal.is_fully_encrypted

    assert broken(RINGS[0]) == (False, True)
    assert broken(RINGS[1]) == (True, True)
    assert broken(Keyring({"b": TWO}), off=True) == (False, False)
    with agentgit.open(url) as repo:
        assert (shown(repo), set(repo.maintenance.encryption_keys())) == (before, {""})


def covered():
    """Return the name of each table whose rows have codes, with each column that the codes cover."""
    return [
        (table.name, name)
        for table in row_codes.signed_tables()
        for name in sorted(set(table.c.keys()) - row_codes.UNSIGNED_COLUMNS.get(table.name, frozenset()) - {"mac"})
    ]


OTHER = {int: 7**12, bool: True, str: "done", bytes: b"\1" * 32, datetime: datetime(2001, 1, 1, tzinfo=UTC)}
"""A forged value for each type of column."""


@pytest.fixture(scope="module")
def eventful(tmp_path_factory):
    """Return the bytes of an encrypted database that has rows in each table whose rows have codes."""
    place = tmp_path_factory.mktemp("eventful")
    with agentgit.open(place / "x.db", keyring=RINGS[0]) as repo:
        story(repo, place)
        agent = repo.wrap(build(place / "shop.db"), session="files", workspace=place / "w", effects=EFFECTS)
        agent.run("order two chairs")
        agent.rollback("main#1")
        repo.wrap(build(place / "shop.db"), session="files", workspace=place / "w").checkpoint("zebra")
        repo.session("s").tag("HEAD", "t", description="told")
        eve = repo.users.add("eve")
        repo.session("s").sharing.share(eve, "viewer")
        repo.session("s").sharing.create_link()
        repo.keys.create("hers", user="eve")
        assert repo.maintenance.fsck(2).findings == ()
    return (place / "x.db").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("table", [table.name for table in row_codes.signed_tables()])
def test_a_row_changed_without_the_key_is_refused_and_named(eventful, tmp_path, table):
    """A row with a changed, emptied or swapped value in a covered column is Corrupt, and fsck names such a row."""
    path, this = tmp_path / "x.db", METADATA.tables[table]
    path.write_bytes(eventful)
    engine = create_engine(f"sqlite:///{path}")
    with agentgit.open(path, keyring=RINGS[0]) as repo:
        with backend.reading(repo) as connection:
            rows = connection.execute(select(this)).all()
        assert rows, table
        keys, stored = [c.name for c in this.primary_key], raw_table(table)
        where = f"{table} {'/'.join(str(getattr(rows[-1], name)) for name in keys[1:])}"
        for name in (name for of, name in covered() if of == table and name not in keys):
            other = [row for row in rows if getattr(row, name) not in (None, getattr(rows[-1], name))]
            two = (rows[-1], *other, rows[-1])[:2]
            key, there = (and_(*(stored.c[c] == getattr(row, c) for c in keys)) for row in two)
            with engine.connect() as connection:
                before = connection.execute(select(stored.c[name]).where(key)).scalar()
                others = connection.execute(select(stored.c[name]).where(there)).scalars().all() if other else []
            kind = getattr(this.c[name].type, "impl", this.c[name].type).python_type
            for value in [one for one in (*others, OTHER[kind], None) if one != before]:
                if value is None and not this.c[name].nullable:
                    continue
                try:
                    with engine.begin() as connection:
                        connection.execute(text("PRAGMA foreign_keys = OFF"))
                        connection.execute(update(stored).where(key).values({name: value}))
                except IntegrityError:  # a unique index refuses the value
                    continue
                with backend.reading(repo) as connection, pytest.raises(Corrupt):
                    row_codes.verify_rows(connection, this, connection.execute(select(this)))
                if name in ("created_at", "action", "status"):
                    assert [one for one in repo.maintenance.fsck(2).findings if one.row == where], (name, value)
                with engine.begin() as connection:
                    connection.execute(update(stored).where(key).values({name: before}))
        assert repo.maintenance.fsck(2).findings == ()
    engine.dispose()


@pytest.mark.long
def test_verbs_refuse_rows_changed_without_the_key(url, tmp_path):
    """Verbs that read a call, branch, user or key that was changed without the key raise Corrupt."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        repo.users.add("eve")
        secret = repo.keys.create("hers", user="eve").secret
        for table, values, verb in (
            (
                "tool_invocation",
                {"effect": "reversible", "undo": "subprocess:call"},
                lambda: repo.session("s").tool_track(),
            ),
            ("tool_invocation", {"status": "reversed"}, lambda: repo.session("s").plan_rollback("main#1")),
            ("tool_invocation", {"mac": None}, lambda: repo.session("s").rollback("main#1")),
            ("tool_invocation", {"tool_name": "other"}, lambda: repo.session("s").export(tmp_path / "s.jsonl")),
            ("internal_session", {"inherited": 9}, lambda: repo.session("s").branch()),
            ("checkpoint", {"position": 0}, lambda: repo.session("s").checkpoints()),
            ("external_session", {"mac": None}, lambda: repo.session("s")),
            ("user", {"is_admin": True, "mac": None}, lambda: repo.users.list()),
            ("api_key", {"user_id": repo.user.id, "expires_at": None}, lambda: repo.authenticate(secret)),
        ):
            stored = raw_table(table)
            with backend.reading(repo) as connection:
                rows = connection.execute(select(stored)).mappings().all()
            write(repo, update(stored).values(values))
            with pytest.raises(Corrupt, match="without the key"):
                verb()
            for row in rows:
                write(repo, update(stored).where(stored.c.id == row["id"]).values(row))
        assert repo.maintenance.fsck(3).findings == ()
        repo.session("s").rollback("main#1")


@pytest.mark.parametrize("mac", [b"", b"\xffagit\1", b"\xffagit\1\1z" + b"x" * 32, b"\xffagit\1\1a", "text", 10**11])
def test_an_invalid_row_code_is_refused(eventful, tmp_path, mac):
    """A row code of any bytes, a text, a number, or of an unknown key is Corrupt, and fsck finds it."""
    (tmp_path / "x.db").write_bytes(eventful)
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo:
        engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE tool_invocation SET mac = ?", (mac,))
        engine.dispose()
        with pytest.raises(Corrupt, match="tool_invocation"):
            repo.session("s").tool_track()
        assert [one for one in repo.maintenance.fsck(2).findings if one.row.startswith("tool_invocation ")]
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[1]) as repo, pytest.raises(Corrupt, match="tool_invocation"):
        repo.maintenance.rotate_keys()


def forge(repo, name, like, **values):
    """Insert a copy of a row with some other values, as somebody who has no key."""
    table = raw_table(name)
    with backend.reading(repo) as connection:
        row = dict(connection.execute(select(table).where(like(table.c))).mappings().first())
    write(repo, insert(table).values(row | values))


def test_a_forged_share_grants_no_access(url, tmp_path):
    """A forged membership row without a valid code lets its user read, share and delete nothing."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        eve, session = repo.as_user(repo.users.add("eve")), repo.session("s")
        repo.session("other", create=True)
        repo.session("other").sharing.share("eve", "viewer")
        forge(repo, "session_member", lambda c: c.user_id == eve.user.id, external_session_id=session.id, role="owner")
        for verb in (
            lambda: eve.session(session.id),
            lambda: eve.session(session.id).export(tmp_path / "x"),
            eve.sessions,
            lambda: eve.session(session.id).sharing.share("eve", "owner"),
            lambda: eve.session(session.id).sharing.create_link(),
            lambda: eve.session(session.id).delete(),
            lambda: eve.session(session.id).tool_track(),
        ):
            with pytest.raises(Corrupt, match="session_member"):
                verb()
        assert repo.session("s").branch().conversation_history


def test_forged_search_index_rows_are_not_found(eventful, tmp_path):
    """Search rows forged to refer to a call in an encrypted database are not found."""
    (tmp_path / "x.db").write_bytes(eventful)
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo:
        assert len(list(repo.session("files").search("zebra"))) == 1
        call = repo.session("s").tool_track()[0]
        write(repo, update(raw_table("search_text")).values(kind="call", row_id=call.id))
        assert list(repo.session("files").search("zebra")) == []


def secret_of(repo):
    """Create and return two users, bob and mallory, each with a session; bob's session has a secret."""
    bob, mallory = repo.users.add("bob"), repo.users.add("mallory")
    for user, said in ((bob, "the vault opens with sesame"), (mallory, "mine")):
        agent = repo.as_user(user).wrap(build("shop.db"), session=user.name, effects=EFFECTS)
        agent.run(said)
    return bob, mallory


def heads(repo, *users):
    """Return the newest graph checkpoint of each user's session, as it is stored."""
    table, found = raw_table("graph_checkpoint"), []
    for user in users:
        thread = f"agentgit-{repo.as_user(user).session(user.name).branch().id}"
        query = select(table).where(table.c.thread_id == thread, table.c.ns == "").order_by(table.c.seq.desc())
        with backend.reading(repo) as connection:
            found.append(connection.execute(query).first())
    return found


@pytest.mark.parametrize("columns", [["channels"], ["channels", "state_hash"], ["channels", "header", "state_hash"]])
def test_the_state_of_another_user_in_a_forged_row_is_not_readable(url, columns):
    """Another user's state copied into a forged row is refused for its user and for a saver."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        bob, mallory = secret_of(repo)
        theirs, mine = heads(repo, bob, mallory)
        table = raw_table("graph_checkpoint")
        this = and_(*(key == getattr(mine, key.name) for key in table.primary_key))
        write(repo, update(table).where(this).values({name: getattr(theirs, name) for name in columns}))
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        me = repo.as_user("mallory")
        for read in (
            lambda: me.wrap(build("shop.db"), session="mallory"),
            lambda: me.session("mallory").branch().conversation_history,
            lambda: me.session("mallory").export(BytesIO()),
            lambda: me.graph(build("shop.db"), effects=EFFECTS).invoke(
                {"messages": [("user", "hm")]}, {"configurable": {"thread_id": "mallory"}}
            ),
        ):
            with pytest.raises(Corrupt, match="without the key") as caught:
                read()
            assert "sesame" not in str(caught.value)
    with SQLModelSaver.from_conn_string(url, keyring=RINGS[0], sessions=True) as saver:
        for verb in (
            lambda: list(saver.list(None)),
            lambda: saver.copy_thread(mine.thread_id, "copy"),
            lambda: saver.get_tuple({"configurable": {"thread_id": mine.thread_id}}),
            lambda: saver.prune([mine.thread_id]),
        ):
            with pytest.raises(Corrupt, match="without the key"):
                verb()


def test_a_forged_pending_write_is_refused(url):
    """A pending write forged with the hash of another user's value is refused."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        bob, mallory = secret_of(repo)
        theirs, mine = heads(repo, bob, mallory)
        value = unpack(theirs.channels)["messages"]
        place = {name: getattr(mine, name) for name in ("tenant_id", "thread_id", "ns", "checkpoint_id")}
        place["external_session_id"] = mine.external_session_id
        row = {**place, "task_id": "t", "idx": 0, "task_path": "", "channel": "messages", "value": value}
        write(repo, insert(raw_table("graph_write")).values(row))
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        me = repo.as_user("mallory")
        agent = me.wrap(build("shop.db"), session="mallory", effects=EFFECTS)
        for read in (lambda: agent.state, lambda: agent.run("go on"), lambda: agent.fork()):
            with pytest.raises(Corrupt, match="without the key"):
                read()
        assert [one.row for one in repo.maintenance.fsck(2).findings if one.row.startswith("graph_write ")]


def test_a_thread_without_pending_writes_is_copied(url):
    """An encrypted database can copy a thread without pending writes and one without any rows."""
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with SQLModelSaver.from_conn_string(url, keyring=RINGS[0]) as saver:
        saver.copy_thread("empty", "nothing")
        saver.put(config, empty_checkpoint(), {}, {})
        saver.copy_thread("t", "copy")
        assert saver.get_tuple({"configurable": {"thread_id": "copy"}}) is not None
        assert saver.get_tuple({"configurable": {"thread_id": "nothing"}}) is None


def test_the_branch_point_of_a_branch_is_verified(eventful, tmp_path):
    """Listing checkpoints verifies a branch point, although the path of the branch ends before it."""
    (tmp_path / "x.db").write_bytes(eventful)
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo:
        point = next(
            branch.branch_point_checkpoint_id
            for branch in repo.session("files").branches()
            if branch.branch_point_checkpoint_id
        )
        table = raw_table("checkpoint")
        write(repo, update(table).where(table.c.id == point).values(number=900))
        with pytest.raises(Corrupt, match="checkpoint"):
            repo.session("files").checkpoints()


@pytest.mark.parametrize(
    "change",
    [
        ("checkpoint", {"graph_checkpoint_id": "elsewhere"}, lambda repo: list(repo.session("s").log(which="all"))),
        ("tool_invocation", {"external_session_id": 7}, lambda repo: repo.session("files").plan_rollback("main#1")),
        ("workspace_snapshot", {"snapshot": "another"}, lambda repo: repo.session("files").plan_rollback("main#1")),
        ("internal_session", {"thread_id": "another"}, lambda repo: repo.session("s").checkpoints()),
    ],
)
def test_rows_read_through_other_rows_are_verified(eventful, tmp_path, change):
    """Rows that are joined or read in parts are verified like rows that are read directly."""
    table, values, verb = change
    (tmp_path / "x.db").write_bytes(eventful)
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        stored = raw_table(table)
        order = stored.c.id if table in ("checkpoint", "internal_session") else stored.c.id.desc()
        one = connection.execute(select(stored.c.id).order_by(order).limit(1)).scalar()
        connection.execute(update(stored).where(stored.c.id == one).values(values))
    engine.dispose()
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo, pytest.raises(Corrupt, match=table):
        verb(repo)


def test_a_plan_detects_a_deleted_call(eventful, tmp_path):
    """A plan raises Corrupt if the world log refers to a deleted call."""
    (tmp_path / "x.db").write_bytes(eventful)
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM tool_invocation")
    engine.dispose()
    with (
        agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo,
        pytest.raises(Corrupt, match="world log refers to call"),
    ):
        repo.session("files").plan_rollback("main#1")


def test_a_changed_row_of_the_local_owner_does_not_prevent_fsck(eventful, tmp_path):
    """A database in which the local owner's row was changed opens, and fsck names the row."""
    (tmp_path / "x.db").write_bytes(eventful)
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo:
        write(repo, update(raw_table("user")).values(mac=None))
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo:
        assert [one for one in repo.maintenance.fsck(2).findings if one.row.startswith("user ")]


def test_a_changed_row_is_never_signed_again(url, tmp_path):
    """A row changed without the key is signed neither by a rotation nor by a verb that changes it."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        eve = repo.users.add("eve")
        write(repo, update(raw_table("user")).where(raw_table("user").c.id == eve.id).values(is_admin=True))
        with pytest.raises(Corrupt, match="without the key"):
            repo.users.disable("eve")
        with pytest.raises(Corrupt, match="without the key"):
            backend.write(repo, lambda c: repo.context.store.users.change(c, eve.id, {"is_admin": False}))
    with agentgit.open(url, keyring=RINGS[1]) as repo, pytest.raises(Corrupt, match="without the key"):
        repo.maintenance.rotate_keys()


@pytest.mark.long
def test_a_rotation_adds_codes_to_old_rows(url, tmp_path):
    """An encrypted database whose rows have no codes yet is readable, and a rotation adds the codes."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        for table in row_codes.signed_tables():
            write(repo, update(table).values(mac=None))
        backend.write(
            repo,
            lambda c: write_proofs(
                c, repo.context.store.tenant_id, backend.database(repo).seal, is_fully_encrypted=False
            ),
        )
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        assert repo.maintenance.fsck(3).findings == ()
        repo.session("s").tool_track()
        assert repo.maintenance.encryption_keys()[""] > 0
        repo.maintenance.rotate_keys()
        assert "" not in repo.maintenance.encryption_keys()
        assert backend.database(repo).seal.is_fully_encrypted
        assert repo.maintenance.fsck(3).findings == ()
        repo.maintenance.rotate_keys(off=True)
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        assert repo.maintenance.fsck(3).findings == ()
        assert len(repo.session("s").tool_track()) > 0


@pytest.mark.long
def test_no_statement_writes_a_signed_table_without_a_code():
    """Only listed statements write tables with codes outside of SignedWrite, in columns no code covers."""
    package, found, signed = Path(agentgit.__file__).parent, set(), set()
    tables = {of.name for of in row_codes.signed_tables()}
    for path in sorted(package.rglob("[!_]*.py")):
        module = import_module(".".join(["agentgit", *path.relative_to(package).with_suffix("").parts]))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            verb = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if verb == "SignedWrite":  # adds the code to each row
                signed.update(ast.walk(node))
            of = getattr(module, getattr(node.args[0], "id", ""), None) if node.args else None
            if verb in ("insert", "update") and getattr(of, "name", None) in tables and node not in signed:
                found.add((path.relative_to(package).as_posix(), verb, of.name))
    assert found == {
        ("store/records/journal.py", "update", "tool_invocation"),  # signed
        ("store/threads/graph_rows.py", "insert", "graph_checkpoint"),  # passed to SignedWrite
        ("store/threads/graph_rows.py", "insert", "graph_write"),  # as above
        ("store/records/users.py", "update", "api_key"),  # the time of its last use
        ("store/records/operations.py", "update", "operation"),  # its owner and lease
        ("store/records/sessions.py", "update", "internal_session"),  # its owner and metadata
        ("store/records/sessions.py", "update", "external_session"),  # the time of its last change
        ("store/search/index.py", "update", "internal_session"),  # how far it is indexed
        ("store/maintenance/retention.py", "update", "external_session"),  # its metadata
    }
