"""An import that is interrupted, killed, or given a hostile value or a changing file, leaves nothing behind."""

from __future__ import annotations

from io import BytesIO

import backend
import ormsgpack
import pytest
from exports import forged, of, rows, written
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.memory import InMemoryStore
from memory_graphs import noting, said
from scripted import World, obedient, tool_node_graph
from test_damaged_exports import a_session, change, exports, value

import agentgit
from agentgit import Corrupt, SQLModelSaver
from agentgit.store.sql.tables import TOOL_INVOCATION
from agentgit.store.threads.graph_rows import hash_state
from agentgit.store.transfer import import_, lines
from agentgit.store.transfer.fields import MAX_COUNT

__all__ = ["exports"]  # the fixture


@pytest.fixture
def export(exports):
    return exports(a_session)


@pytest.fixture
def target():
    with agentgit.open(":memory:") as repo:
        yield repo


def test_an_endless_line_is_not_read_completely(export, monkeypatch):
    class Endless(BytesIO):
        longest = 0

        def readline(self, size=-1, /):
            assert size is not None
            assert size > 0
            Endless.longest = max(Endless.longest, size)
            return super().readline(size)

    monkeypatch.setattr(lines, "LONGEST", 10_000)
    head = export.splitlines(keepends=True)[0]
    stream = Endless(head + b'{"record":"session","name":"' + b"x" * 1_000_000)
    with pytest.raises(Corrupt, match="Line 2 of the export is longer than 10000 bytes"):
        list(lines.read_lines(stream))
    assert Endless.longest == 10_001


def test_a_file_changed_during_its_import_is_refused(export, target):
    with agentgit.open(":memory:") as repo:
        repo.session("s", create=True)
        other = written(repo, "s")

    class Changing(BytesIO):
        times = 0

        def seek(self, *where):
            self.times += 1
            if self.times == 2:
                super().seek(0)
                self.truncate()
                self.write(other)
            return super().seek(*where)

    before = rows(target)
    changing = Changing(export)
    whole = import_.check_export(changing)
    with pytest.raises(Corrupt, match="changed while it was read"):
        import_.Import(target.context.store, target.user.id, changing, None).run(whole)
    assert rows(target) == before


def test_a_session_with_the_largest_numbers_can_continue(repo, export):
    def great(found):
        change("checkpoint", -1, number=MAX_COUNT)(found)
        change("call", -1, arrival=MAX_COUNT, batch=MAX_COUNT)(found)
        change("log", -1, seq=MAX_COUNT)(found)

    made = repo.import_(forged(export, great))
    shop = World()
    agent = repo.wrap(
        tool_node_graph(obedient(), shop.tools()), made.session.session_name, branch="main", effects=shop.effects()
    )
    agent.run("add lamp")
    assert shop.items == ["lamp"]


class Cipher:
    """A cipher that only reverses the bytes, which is enough to distinguish sealed values."""

    def encrypt(self, plaintext):
        return "swap", plaintext[::-1]

    def decrypt(self, ciphername, ciphertext):
        return ciphertext[::-1]


CALLED: list[str] = []


def called(text):
    """Record that a hostile value called this function."""
    CALLED.append(text)
    return text


def test_an_imported_unsealed_value_never_reaches_the_inner_serializer(export, target):
    hostile = value("serde", b"msgpack\0" + ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((__name__, "called", 1)))))

    def add(found):
        at = found.index(of(found, "value")[0])
        found[at:at] = [hostile]
        hashes = {None: None}
        for state in of(found, "state"):
            state["channels"]["x"] = hostile["id"]
            channels = {name: bytes.fromhex(held) for name, held in state["channels"].items()}
            old, state["state_hash"] = state["state_hash"], hash_state(channels).hex()
            hashes[old] = state["state_hash"]
        for checkpoint in of(found, "checkpoint"):
            checkpoint["state_hash"] = hashes[checkpoint["state_hash"]]

    imported = target.import_(forged(export, add)).session
    serde = EncryptedSerializer(Cipher())
    saver = SQLModelSaver(
        backend.database(target), tenant_id=target.context.store.tenant_id, serde=serde, sessions=True
    )
    (thread,) = {branch.langgraph_session_id for branch in target.session(imported).branches() if branch.is_current}
    with pytest.raises(Corrupt, match="not sealed"):
        saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    assert CALLED == []


def test_fsck_names_a_write_to_memory_without_its_item():
    """A plan needs the item of a write to memory and the value before it, so fsck checks them."""
    with agentgit.open(":memory:") as repo:
        repo.wrap(noting(InMemoryStore()), "s").invoke(said("+food=pizza"))
        backend.write(repo, lambda c: c.execute(TOOL_INVOCATION.update().values(args=b'{"key":"food"}')))
        assert [one.what for one in repo.maintenance.fsck(2).findings] == [
            "it is a write to memory without the item or the value before it"
        ]
