"""In an encrypted database, no verb reads values that somebody without the key has written."""

import json

import backend
import pytest
from sqlalchemy import delete, insert, select, update
from test_encryption import ONE, TWO, shown, story

import agentgit
from agentgit import Keyring
from agentgit.errors import Corrupt, InvalidInput, KeyMissing
from agentgit.store.database import Database
from agentgit.store.objects.blobs import leaf
from agentgit.store.records.encryption_keys import raw_table
from agentgit.store.sql.encryption import Seal, parse_key_name
from agentgit.store.sql.tables import ENCRYPTION_KEY, LIST

RINGS = Keyring({"a": ONE}), Keyring({"b": TWO, "a": ONE})


def write(repo, *statements):
    """Run statements without encryption, as somebody who has no key."""
    for one in statements:
        backend.write(repo, lambda c, s=one: c.execute(s))


def proofs(repo):
    """Return the rows that prove which keys the database has, as they are stored."""
    with backend.reading(repo) as transaction:
        return [dict(row) for row in transaction.execute(select(ENCRYPTION_KEY)).mappings()]


def put_back(repo, rows):
    write(repo, delete(ENCRYPTION_KEY), *(insert(ENCRYPTION_KEY).values(row) for row in rows))


def forged(repo):
    table = raw_table("tool_invocation")
    write(repo, update(table).values(args=b'{"item": "bomb"}'))


def test_no_verb_reads_an_unencrypted_call_and_no_rotation_encrypts_it(url, tmp_path):
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        forged(repo)
    with agentgit.open(url, keyring=RINGS[1]) as repo:
        session = repo.session("s")
        for verb in (
            session.tool_track,
            lambda: session.plan_rollback("main#1"),
            lambda: session.rollback("main#1"),
            lambda: session.export(tmp_path / "s.jsonl"),
            repo.maintenance.rotate_keys,
        ):
            with pytest.raises(Corrupt, match="is not encrypted"):
                verb()
        assert repo.maintenance.encryption_keys()[""] > 0
        found = {one.what for one in repo.maintenance.fsck(2).findings}
        assert any(
            "A value in tool_invocation.args is not encrypted, although this database is" in one for one in found
        )
        repo.maintenance.rotate_keys(off=True)  # allowed with the key
        assert not backend.database(repo).seal.is_fully_encrypted
    with agentgit.open(url) as repo:
        assert {call.args["item"] for call in repo.session("s").tool_track()} == {"bomb"}


def test_an_unencrypted_message_with_a_valid_hash_is_refused(url, tmp_path):
    with agentgit.open(url, keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        value, table = leaf("json", json.dumps({"content": "send it all"}).encode()), raw_table("blob")
        session = repo.session("s").id
        row = {"external_session_id": session, "hash": value.hash}
        write(repo, insert(table).values(**row, type="json", codec=0, size=len(value.data), data=value.data))
        with backend.reading(repo) as transaction:
            blobs = repo.context.store.graphs.blobs.of(session)
            with pytest.raises(Corrupt, match="is not encrypted"):
                blobs.get_many(transaction, [value.hash])
            stored = transaction.execute(select(table.c.data).where(table.c.type == LIST)).scalars().all()
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
    attacks = {
        "no row": [],
        "the early row": early,
        "both": [*early, *now],
        "another place": [{**now[0], "proof": other.seal("tag.description", b"agentgit")}],
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
            assert what in ("another place", "another name", "something else")
            past = Database(url)
            past.write(lambda c: c.execute(delete(ENCRYPTION_KEY)))
            past.close()
            with agentgit.open(url, keyring=ring) as repo:
                put_back(repo, now)


def test_forged_search_index_rows_are_not_found(tmp_path):
    with agentgit.open(tmp_path / "x.db", keyring=RINGS[0]) as repo:
        story(repo, tmp_path)
        other = repo.session("other", create=True)
        other.checkpoint("zebra")
        assert len(list(other.search("zebra"))) == 1
        call = repo.session("s").tool_track()[0]
        write(repo, update(raw_table("search_text")).values(kind="call", row_id=call.id))
        assert list(other.search("zebra")) == []
