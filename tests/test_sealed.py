"""Q1: an encrypted database against who can write rows and has no key: what is in clear there is read nowhere."""

import json

import pytest
from sqlalchemy import delete, insert, select, true, update
from test_encryption import ONE, TWO, shown, story

import agentgit
from agentgit import Keyring
from agentgit.demo import EFFECTS, build
from agentgit.errors import Corrupt, InvalidInput, KeyMissing
from agentgit.store.blobs import LIST, leaf
from agentgit.store.database import Database
from agentgit.store.encryption import Seal, key_of
from agentgit.store.sealed import raw, sealed_columns
from agentgit.store.unlocking import KEY

RINGS = Keyring({"a": ONE}), Keyring({"b": TWO, "a": ONE})


@pytest.fixture
def url(database):
    return database.url


def write(repo, *statements):
    """Write rows as somebody who has no key: nothing is sealed on the way."""
    for one in statements:
        repo.store.database.write(lambda c, s=one: c.execute(s))


def proofs(repo):
    """Give what says which keys there are, as it lies there."""
    with repo.store.database.reading() as connection:
        return [dict(row) for row in connection.execute(select(KEY)).mappings()]


def put_back(repo, rows):
    """Put rows in the place of those that say which keys there are."""
    write(repo, delete(KEY), *(insert(KEY).values(row) for row in rows))


def forged(repo):
    """Put arguments of somebody's own into a call, in clear."""
    table = raw("tool_invocation")
    write(repo, update(table).values(args=b'{"item": "bomb"}'))


@pytest.mark.parametrize("name", [name for name in sealed_columns() if name not in ("dictionary", "webhook_delivery")])
def test_q1_what_is_put_in_clear_is_named(sqlite_template, tmp_path, name):
    """Q1: where everything is encrypted, fsck names the row of a value in clear, in each column that is sealed."""
    path = tmp_path / "x.db"
    path.write_bytes(sqlite_template.read_bytes())
    with agentgit.open(path, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        agent = repo.wrap(build("shop.db"), session="files", workspace=tmp_path / "w", effects=EFFECTS)
        agent.checkpoint("one")
        repo.tag("HEAD", "t", session="s", description="told")
        assert repo.fsck(2).findings == ()
        table, seal = raw(name), repo.store.database.seal
        for column in sealed_columns()[name]:
            this = table.c[column]
            with repo.store.database.reading() as connection:
                whole = table.c.type != LIST if name == "blob" else true()  # lists of hashes lie in clear
                rows = connection.execute(select(this, *table.primary_key).where(whole)).all()
            value = next((row[0] for row in rows if row[0] is not None), None)
            if value is None:
                continue
            clear = "in clear" if isinstance(value, str) else b'{"in": "clear"}'
            write(repo, update(table).where(this == value).values({column: clear}))
            found = [one for one in repo.fsck(2).findings if one.row.startswith(f"{name} ")]
            assert [one for one in found if "is in clear" in one.what], column
            write(repo, update(table).where(this == clear).values({column: value}))
        assert seal.is_whole
        assert repo.fsck(2).findings == ()


def test_q1_no_verb_reads_a_call_that_was_put_in_clear(url, tmp_path):
    """Q1: a call whose arguments somebody wrote in clear is Corrupt for the track, for a plan and for a rollback."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        forged(repo)
        for verb in (
            lambda: repo.tool_track("s"), lambda: repo.plan_rollback("main#1", "s"),
            lambda: repo.rollback("main#1", "s"),
            lambda: repo.export("s", tmp_path / "s.jsonl"),
        ):  # fmt: skip
            with pytest.raises(Corrupt, match="is in clear"):
                verb()


def test_q1_a_message_in_clear_under_its_own_hash_is_refused(url, tmp_path):
    """Q1: a message that somebody wrote in clear, under its true hash, is Corrupt; lists of hashes are read as ever."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        value, table = leaf("json", json.dumps({"content": "send it all"}).encode()), raw("blob")
        row = {"tenant_id": repo.store.tenant_id, "hash": value.hash, "type": "json", "codec": 0}
        write(repo, insert(table).values(**row, size=len(value.data), data=value.data))
        with repo.store.database.reading() as connection:
            blobs = repo.store.graphs.content.blobs
            with pytest.raises(Corrupt, match="is in clear"):
                blobs.get_many(connection, [value.hash])
            stored = connection.execute(select(table.c.data).where(table.c.type == LIST)).scalars().all()
        assert stored
        assert {key_of(data) for data in stored} == {None}
        (finding,) = repo.fsck(1).findings
        assert (finding.row, "is in clear" in finding.what) == (f"blob {value.hash.hex()}", True)
        write(repo, delete(table).where(table.c.hash == value.hash))
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        assert repo.fsck(3).findings == ()
        assert len(repo.branch("s").conversation_history) > 0


def test_q1_a_dictionary_in_clear_is_refused(url):
    """Q1: a dictionary that somebody put in clear, with its true hash, is named, and no value is read with it."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        blobs, table = repo.store.graphs.content.blobs, raw("dictionary")
        values = [
            leaf(
                "json",
                json.dumps({"n": n, "text": f"this is message number {n}, which is as long as others are"}).encode(),
            )
            for n in range(120)
        ]
        repo.store.database.write(lambda c: blobs.put_many(c, values))
        repo.train_dictionary()
        seal = repo.store.database.seal
        with repo.store.database.reading() as connection:
            sealed = connection.execute(select(table.c.data)).scalar_one()
        write(repo, update(table).values(data=seal.open("dictionary.data", sealed)))
        found = [one.what for one in repo.fsck(2).findings if one.row.startswith("dictionary ")]
        assert any("is in clear" in what for what in found)


@pytest.mark.parametrize("begins", ["sealed", "plain"])
def test_q1_that_all_is_encrypted_cannot_be_taken_back(url, tmp_path, begins):
    """Q1: without the key nobody makes a wholly encrypted database one in which values in clear are read."""
    with agentgit.open(url, keyring=RINGS[0] if begins == "sealed" else None) as repo:
        story(repo, tmp_path)
    if begins == "plain":
        with agentgit.open(url, keyring=RINGS[0]) as repo:
            assert not repo.store.database.seal.is_whole
            early = proofs(repo)
            assert len(shown(repo)[0]) > 0  # which still is in clear
            repo.rotate_keys()
            assert repo.store.database.seal.is_whole
        with agentgit.open(url, keyring=RINGS[1]) as repo:  # another key, so that nothing from before helps
            repo.rotate_keys()
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
                with pytest.raises(Corrupt, match="is in clear"):
                    repo.tool_track("s")
                assert repo.store.database.seal.is_whole, what
                put_back(repo, now)
        except (InvalidInput, KeyMissing):
            assert what in ("another tenant's", "another name", "something else")
            past = Database(url)
            past.write(lambda c: c.execute(delete(KEY)))
            past.close()
            with agentgit.open(url, keyring=ring) as repo:
                put_back(repo, now)


def test_q1_changing_keys_does_not_seal_what_others_wrote(url, tmp_path):
    """Q1: a rotation where everything is encrypted is Corrupt for a value in clear, and does not seal it."""
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        forged(repo)
    with agentgit.open(url, keyring=RINGS[1]) as repo:
        with pytest.raises(Corrupt, match="is in clear"):
            repo.rotate_keys()
        assert repo.encryption_keys()[""] > 0
        assert {one.what for one in repo.fsck(2).findings} >= {"its args is in clear, where everything is encrypted"}
        repo.rotate_keys(off=True)  # who has the key may
        assert not repo.store.database.seal.is_whole
    with agentgit.open(url) as repo:
        assert {call.args["item"] for call in repo.tool_track("s")} == {"bomb"}


def test_q1_a_rotation_that_breaks_off_goes_on(url, tmp_path):
    """Q1: encrypting, changing keys, decrypting, each broken off half way: all is read, and run again it ends."""
    with agentgit.open(url) as repo:
        story(repo, tmp_path)
        before = shown(repo)

    def broken(ring, *, off=False):
        def stop(done, _total):
            if done > 30:
                raise KeyboardInterrupt

        with agentgit.open(url, keyring=ring) as repo, pytest.raises(KeyboardInterrupt):
            repo.rotate_keys(off=off, progress=stop)
        with agentgit.open(url, keyring=ring) as repo:
            assert (shown(repo), repo.fsck(3).findings) == (before, ())
            was_whole = repo.store.database.seal.is_whole
            repo.rotate_keys(off=off)
            assert (shown(repo), repo.fsck(3).findings) == (before, ())
            return was_whole, repo.store.database.seal.is_whole

    assert broken(RINGS[0]) == (False, True)
    assert broken(RINGS[1]) == (True, True)
    assert broken(Keyring({"b": TWO}), off=True) == (False, False)
    with agentgit.open(url) as repo:
        assert (shown(repo), set(repo.encryption_keys())) == (before, {""})
