"""Encryption at rest: contents are readable only with the right keys, and keys can be rotated."""

import base64
import json

import backend
import pytest
from command_line import run
from sqlalchemy import select, update

import agentgit
from agentgit import Keyring, SQLModelSaver
from agentgit.demo import EFFECTS, build
from agentgit.errors import Corrupt, InvalidInput, KeyMissing, Unavailable
from agentgit.store.objects.blobs import BlobStore, leaf
from agentgit.store.objects.content import Content
from agentgit.store.records.encryption_keys import raw_table
from agentgit.store.sql import encryption
from agentgit.store.sql.encryption import ENVIRONMENT, MAGIC

MARK = "zebrafish"
ONE, TWO = Keyring.new_key(), Keyring.new_key()


def story(repo, tmp_path):
    """Run a session with the mark in messages, calls, a and a checkpoint's data, and roll it back."""
    agent = repo.wrap(build(str(tmp_path / "shop.db")), session="s", effects=EFFECTS)
    agent.run(f"note {MARK}, order two chairs")
    place = agent.checkpoint("the place", description=f"{MARK} told", data={MARK: [1]})
    agent.run("order three tables")
    agent.rollback(place)


def shown(repo):
    session = repo.session("s")
    place = session.get_checkpoint("the place").to_dict()
    return [branch.conversation_history for branch in session.branches()], place


def test_an_encrypted_database_stores_names_but_no_contents(url, tmp_path):
    with agentgit.open(url, keyring=Keyring({"a": ONE}), compression="none") as repo:
        story(repo, tmp_path)
        assert MARK in str(shown(repo))
        lies = backend.as_stored(repo)
        assert MARK not in lies
        assert "the place" in lies
        assert set(repo.maintenance.encryption_keys()) == {"a"}
        assert repo.maintenance.fsck(3).findings == ()
        assert repo.maintenance.gc(dry_run=True).lists >= 0
        named, content = repo.session().search("place"), repo.session().search(MARK)
        assert [hit.kind for hit in named] == ["checkpoint"]
        assert (list(content), content.names_only) == ([], True)
        assert "everything else is encrypted" in str(content)


def test_a_database_opens_only_with_the_right_keys(url, monkeypatch):
    with agentgit.open(url, keyring=Keyring({"a": ONE})) as repo:
        repo.session("s", create=True)
    with pytest.raises(KeyMissing, match="with the key a, which is missing") as failure:
        agentgit.open(url)
    assert failure.value.key_id == "a"
    with pytest.raises(KeyMissing):
        agentgit.open(url, keyring=Keyring({"b": TWO}))
    with pytest.raises(InvalidInput, match="differs from the key"):
        agentgit.open(url, keyring=Keyring({"a": TWO}))
    monkeypatch.setenv(ENVIRONMENT, f"b:{TWO},a:{ONE}")
    with agentgit.open(url) as repo:
        assert [session.session_name for session in repo.sessions()] == ["s"]


@pytest.mark.long
def test_a_database_is_encrypted_rotated_and_decrypted_although_each_step_was_interrupted(url, tmp_path):
    with agentgit.open(url) as repo:
        story(repo, tmp_path)
        before, plain = shown(repo), repo.maintenance.encryption_keys()[""]

    def stop(done, _total):
        if done > 30:
            raise KeyboardInterrupt

    def rotated(ring, *, off=False):
        with agentgit.open(url, keyring=ring) as repo, pytest.raises(KeyboardInterrupt):
            repo.maintenance.rotate_keys(off=off, progress=stop)
        with agentgit.open(url, keyring=ring) as repo:
            assert (shown(repo), repo.maintenance.fsck(3).findings) == (before, ())
            assert len(repo.maintenance.encryption_keys()) == 2
            was_whole = backend.database(repo).seal.is_fully_encrypted
            done = repo.maintenance.rotate_keys(off=off)
            assert (shown(repo), repo.maintenance.fsck(3).findings, done.problem) == (before, (), "")
            assert 0 < done.changed < plain
            return was_whole, backend.database(repo).seal.is_fully_encrypted, set(done.keys)

    assert rotated(Keyring({"a": ONE})) == (False, True, {"a"})
    if url.drivername == "sqlite":
        assert MARK.encode() not in (tmp_path / "agentgit.db").read_bytes()
    assert rotated(Keyring({"b": TWO, "a": ONE})) == (True, True, {"b"})
    with agentgit.open(url, keyring=Keyring({"b": TWO})) as repo:
        assert MARK not in backend.as_stored(repo)
    assert rotated(Keyring({"b": TWO}), off=True) == (False, False, {""})  # the old key is no longer needed
    with agentgit.open(url) as repo:
        assert (shown(repo), repo.maintenance.fsck(3).findings) == (before, ())
        assert len(repo.session().search("chairs")) > 0
        assert [event.kind for event in repo.events.newest(limit=1000)].count("keys.rotated") == 3


def flipped(value):
    """Return a value with one bit, or one character of a text, changed near the end."""
    if isinstance(value, str):
        return value[:-6] + ("A" if value[-6] != "A" else "B") + value[-5:]
    return value[:-1] + bytes([value[-1] ^ 1])


def test_a_sealed_value_opens_only_in_its_place(url):
    with agentgit.open(url, keyring=Keyring({"a": ONE})) as repo:
        seal = backend.database(repo).seal
        closed = seal.seal("tool_invocation.args", b"{}")
        assert seal.open("tool_invocation.args", closed) == b"{}"
        with pytest.raises(Corrupt):
            seal.open("tool_invocation.result", closed)
        blobs, value = repo.context.store.graphs.blobs.of(1), leaf("json", b'"hello"')
        write = backend.database(repo).write
        write(lambda c: Content(blobs).put(c, [(value, None)]))
        table = raw_table("blob")
        this = table.c.hash == value.hash
        with backend.reading(repo) as transaction:
            bad = flipped(transaction.execute(select(table.c.data).where(this)).scalar_one())
        write(lambda c: c.execute(update(table).where(this).values(data=bad)))
        with backend.reading(repo) as transaction, pytest.raises(Corrupt) as failure:
            BlobStore().of(1).get_many(transaction, [value.hash])
        assert failure.value.row == f"blob 1/{value.hash.hex()}"


@pytest.mark.parametrize("keys", [None, Keyring({"a": ONE})])
def test_values_of_every_shape_are_read_back(url, keys):
    with agentgit.open(url, keyring=keys) as repo:
        blobs, write = repo.context.store.graphs.blobs.of(1), backend.database(repo).write
        odd = [leaf("bytes", MAGIC + tail) for tail in (b"", b"\0x", b"\1\1a" + bytes(40), b"\2")]
        values = [*odd, leaf("bytes", bytes(range(256)) * 4000), leaf("bytes", b"")]
        values += [leaf("json", json.dumps(f"{MARK} is message {n}, as long as others").encode()) for n in range(120)]
        write(lambda c: Content(blobs).put(c, [(one, None) for one in values]))
        with backend.reading(repo) as transaction:
            fresh = BlobStore().of(1)
            assert all(fresh.get_many(transaction, [one.hash])[one.hash] == one for one in values)
        assert repo.maintenance.fsck(2).findings == ()
        assert (MARK in backend.as_stored(repo)) == (keys is None)
        if keys is not None:
            assert set(repo.maintenance.encryption_keys()) == {"a"}


async def test_the_saver_and_async_methods_encrypt_values(url, tmp_path):
    config = {"configurable": {"thread_id": "t"}}
    async with SQLModelSaver.from_conn_string(url, keyring=Keyring({"a": ONE})) as saver:
        graph = build(tmp_path / "shop.db").copy({"checkpointer": saver})
        await graph.ainvoke({"messages": [("user", f"note {MARK}")]}, config)
        assert MARK in str((await graph.aget_state(config)).values["messages"])
    with pytest.raises(KeyMissing), SQLModelSaver.from_conn_string(url) as plain:
        plain.get_tuple(config)
    with agentgit.open(url, keyring=Keyring({"a": ONE})) as repo:
        assert MARK not in backend.as_stored(repo)


@pytest.mark.parametrize(
    ("keys", "current"),
    [({}, None), ({"a": b"short"}, None), ({"a": "no base64"}, None), ({"ä": ONE}, None), ({"": ONE}, None),
     ({"a": ONE}, "b"), ({"a": 7}, None), ({"a": 32}, None), ("a", None)],
)  # fmt: skip
def test_an_invalid_keyring_is_refused(keys, current):
    with pytest.raises(InvalidInput) as failure:
        Keyring(keys, current=current)
    assert ONE not in str(failure.value)
    raw = base64.b64decode(ONE)
    assert repr(Keyring({"a": raw})) == "Keyring(['a'], current='a')"
    with pytest.raises(InvalidInput, match="same name"):
        Keyring.from_text(f"a:{ONE},a:{TWO}")


def test_a_missing_encryption_library_is_reported_with_a_pip_command(monkeypatch):
    def gone(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(encryption, "import_module", gone)
    with pytest.raises(Unavailable, match=r"pip install 'agentgit\[encryption\]'"):
        agentgit.open(":memory:", keyring=Keyring({"a": ONE}))


@pytest.mark.long
def test_the_command_line_manages_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with agentgit.open("agentgit.db") as repo:
        repo.session("s", create=True)
    key = run("db", "rotate", "--new-key").out.strip()
    assert len(base64.b64decode(key)) == 32
    assert "plaintext  2 values" in run("db", "rotate", "--count").out
    monkeypatch.setenv(ENVIRONMENT, f"2026-11:{key}")
    assert "2 values rewritten" in run("db", "rotate").out
    assert json.loads(run("db", "rotate", "--count", "--json").out) == {"2026-11": 2}
