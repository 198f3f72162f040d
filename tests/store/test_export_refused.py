"""The import of a damaged, truncated, forged or hostile export stores nothing and names the wrong line."""

from __future__ import annotations

import base64
import json
import pickle
import re
import signal
from hashlib import shake_256
from io import BytesIO

import backend
import ormsgpack
import processes
import pytest
from exports import everything, file_of, forged, of, rows, written
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from memory_graphs import noting, said
from scripted import World, agent_graph, call, calls, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Corrupt, InvalidInput, SQLModelSaver
from agentgit.saver.codec import make_codec
from agentgit.store.objects.blobs import leaf, list_hash, pack
from agentgit.store.sql.tables import TOOL_INVOCATION
from agentgit.store.threads.graph_rows import hash_state
from agentgit.store.transfer import import_, import_check, lines
from agentgit.store.transfer.fields import MAX_COUNT
from agentgit.store.transfer.lines import LineWriter
from agentgit.store.transfer.records import FORMAT


@pytest.fixture(scope="module")
def source():
    """Create a session with a rollback, an exploration, a pending interrupt and a checkpoint with data."""
    with agentgit.open(":memory:") as repo:
        shop = World()
        agent = repo.wrap(tool_node_graph(obedient(), shop.tools()), "s", effects=shop.effects())
        agent.run("add chair; send hello")
        agent.checkpoint("before", data={"reward": 1})
        agent.run("look; note it")
        agent.rollback("before", force=True).run("add sofa; send hello")
        explored = repo.wrap(agent_graph(obedient(), shop.tools()), "s", effects=shop.effects())
        explored.explore(["look"], choices=2)
        both = calls(call("add", "call-1", item="bed"), call("add_if_approved", "call-2", item="lamp"))
        asking = repo.wrap(tool_node_graph(scripted(*["hm"] * 4, both), shop.tools()), "s", effects=shop.effects())
        asking.invoke({"messages": [("user", "bed and lamp")]})
        asking.checkpoint("asked")
        yield repo


@pytest.fixture(scope="module")
def export(source):
    """Return the export of that session."""
    return written(source, "s")


@pytest.fixture
def target():
    """Open an empty repository to import into."""
    with agentgit.open(":memory:") as repo:
        yield repo


def refused(target, data, *said, error=(Corrupt, InvalidInput)):
    """Assert that an import fails and stores nothing, and return the error."""
    before = rows(target)
    with pytest.raises(error) as found:
        target.import_(data if isinstance(data, BytesIO) else BytesIO(data))
    assert rows(target) == before
    for text in said:
        assert re.search(text, str(found.value)), str(found.value)
    return found.value


def test_the_unmodified_export_is_imported(source, export, target):
    """The export that the other tests damage can be imported."""
    target.import_(BytesIO(export))
    assert everything(target, "s") == everything(source, "s")
    kinds = {json.loads(line)["record"] for line in export.splitlines()}
    assert {"session", "branch", "value", "list", "state", "write", "checkpoint", "call", "operation", "log"} <= kinds


@pytest.mark.long
def test_every_changed_missing_doubled_or_moved_line_is_refused(export, target):
    """An export in which any line is changed, missing, doubled or moved is refused."""
    whole = export.splitlines(keepends=True)
    for n, line in enumerate(whole):
        middle = len(line) // 2
        flipped = line[:middle] + bytes([line[middle] ^ 1]) + line[middle + 1 :]
        refused(target, b"".join([*whole[:n], flipped, *whole[n + 1 :]]), f"Line {n + 1} " if n else "")
        refused(target, b"".join([*whole[:n], *whole[n + 1 :]]), rf"[Ll]ine ({n}|{n + 1})\b" if n else "")
        refused(target, b"".join([*whole[: n + 1], *whole[n:]]), f"Line {n + 2} ")
        if n:
            refused(target, b"".join([*whole[: n - 1], line, whole[n - 1], *whole[n + 1 :]]))


@pytest.mark.long
def test_an_export_truncated_at_any_byte_is_refused(target):
    """A small export cut off at any byte is refused, and so is one with anything after its end."""
    with agentgit.open(":memory:") as repo:
        repo.session("s", create=True)
        whole = written(repo, "s")
    for end in range(len(whole)):
        refused(target, whole[:end])
    refused(target, whole + b"\n", "Line 5 ")
    refused(target, whole + whole, "Line 5 ")


def test_an_export_truncated_between_lines_is_reported_as_truncated(export, target):
    """An export of valid lines without its end is refused as truncated, with its last line."""
    whole = export.splitlines(keepends=True)
    for n in (1, 2, len(whole) // 2, len(whole) - 1):
        refused(target, b"".join(whole[:n]), f"ends with line {n}", "truncated", error=Corrupt)


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", b"notes\n", b"\x89PNG\r\n\x1a\n", b"PK\3\4", b"\x80\4K\1."])
def test_a_file_that_is_not_an_export_is_refused(target, data):
    """An empty file, notes, a picture, an archive and a pickle are refused as not an export."""
    refused(target, data, "not an agentgit export", error=InvalidInput)


@pytest.mark.parametrize("other", [0, FORMAT + 1, str(FORMAT), None])
def test_an_export_in_another_format_is_refused_with_advice(export, target, other):
    """A file in another format is refused with advice to export it again or to upgrade the library."""
    refused(
        target,
        forged(export, lambda found: found[0].update(format=other)),
        f"This export has format {other!r}, and this version of agentgit reads format {FORMAT}.",
        "Export the session again with this version, or run: pip install --upgrade agentgit",
        error=InvalidInput,
    )


ODD = [
    None, True, -1, 0, 2**31, 2**53, 2**90, 1.5, "", "x", "\0", "\ud800", "0" * 64, "x" * 300, [], ["x"], [None], {},
    {"x": None}, [[[]]], "2026-01-01T00:00:00+00:00", "2026-01-01", "0001-01-01T00:00:00+10:00",
]  # fmt: skip


def places(value, way=()):
    """Yield the paths to all fields of a record except hashes, and of a list only to its first item."""
    inside = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, item in inside:
        if name != "hash":
            yield (*way, name)
            yield from places(item, (*way, name))


def records_of_each_kind(export):
    """Return the paths into the largest record of each kind, each with the number of its line."""
    richest: dict[str, int] = {}
    whole = [json.loads(line) for line in export.splitlines()]
    for n, record in enumerate(whole):
        best = richest.setdefault(record["record"], n)
        if len(list(places(record))) > len(list(places(whole[best]))):
            richest[record["record"]] = n
    return [(n, way) for n in richest.values() for way in places(whole[n])]


def put(found, line, way, odd):
    """Replace the field at a path of one record."""
    at = found[line]
    for name in way[:-1]:
        at = at[name]
    at[way[-1]] = odd


@pytest.mark.long
def test_a_forged_field_is_refused_or_harmless(export):
    """An export with a forged field is refused, or the imported session can be read."""
    with agentgit.open(":memory:") as target:
        for n, (line, way) in enumerate(records_of_each_kind(export)):
            for odd in ODD[n % 6 :: 6]:
                file = forged(export, lambda found, at=(line, way, odd): put(found, *at))
                try:
                    made = target.import_(file)
                except (Corrupt, InvalidInput):
                    continue
                looked_at(target, made.session)


NOISE = shake_256(b"long").hexdigest(5000)
"""A text that PostgreSQL cannot compress, so that it is too long for any index."""


@pytest.mark.long
@pytest.mark.parametrize("odd", ["\0", "\ud800", NOISE], ids=["nul", "surrogate", "long"])
def test_unusual_text_causes_no_database_error_in_an_import(repo, export, odd):
    """An export with unusual text is refused, or the imported session can be read, on PostgreSQL too."""
    for line, way in records_of_each_kind(export):
        if len(way) > 1:
            continue
        try:
            made = repo.import_(forged(export, lambda found, at=(line, way, odd): put(found, *at)))
        except (Corrupt, InvalidInput):
            continue
        looked_at(repo, made.session)


def looked_at(repo, session):
    """Read all of a session that users can read, with plans to the ends and the named checkpoints of each branch."""
    seen = everything(repo, session)
    str(repo.session(session).tree())
    for operation in repo.session(session).operations():
        repo.context.engine().read_report(operation.id)
    for branch in repo.session(session).branches():
        first, *between, last = repo.session(session).checkpoints(branch=branch.name)
        for point in (first, *(point for point in between if point.checkpoint_name), last):
            str(repo.session(session).plan_rollback(point))
        list(repo.session(session).trajectories(branch=branch.name))
    return seen


# -- inconsistent records


def change(kind, /, at=0, **fields):
    """Return a change of one record of a kind."""
    return lambda found: of(found, kind)[at].update(fields)


def drop(kind, at=0):
    """Return a change that removes one record of a kind."""
    return lambda found: found.remove(of(found, kind)[at])


def double(kind, at=0):
    """Return a change that duplicates one record of a kind."""
    return lambda found: found.insert(found.index(of(found, kind)[at]) + 1, dict(of(found, kind)[at]))


def nested(found):
    """Insert an empty record value before the first value, and return a record value that refers to it."""
    inner = value("record", pack({}))
    found.insert(found.index(of(found, "value")[0]), inner)
    return value("record", pack({"x": bytes.fromhex(inner["id"])}))


def pending(**fields):
    """Return a change of the first pending writes of a checkpoint."""
    return lambda found: next(one for one in of(found, "checkpoint") if one["pending"])["pending"][0].update(fields)


LIES = {
    "pending writes of a graph checkpoint that is not there": (pending(state="nowhere"), "not its own"),
    "pending writes of a namespace that is not there": (pending(ns="nowhere"), "not its own"),
    "a pending write without a value": (
        pending(writes=[{"task": "t", "idx": 0, "path": "", "channel": "c", "value": []}]),
        "without a value",
    ),
    "a doubled pending write": (
        pending(writes=[{"task": "t", "idx": 0, "path": "", "channel": "c", "value": []}] * 2),
        "duplicate write",
    ),
    "a pending write of a value that is not there": (
        pending(writes=[{"task": "t", "idx": 0, "path": "", "channel": "c", "value": ["0" * 64]}]),
        "refers to value",
    ),
    "a value that lies about its hash": (change("value", text="other", data=None), "does not match its hash"),
    "a value of another type": (change("value", type="json"), "does not match its hash"),
    "a value that is missing": (drop("value"), "refers to value"),
    "a list that is missing": (drop("list"), "refers to value"),
    "a doubled value": (double("value"), "duplicate of value"),
    "a doubled branch": (double("branch"), "duplicate of branch"),
    "a doubled checkpoint": (double("checkpoint"), "duplicate of checkpoint"),
    "a doubled call": (double("call"), "duplicate of call"),
    "a doubled operation": (double("operation"), "duplicate of operation"),
    "a doubled state": (double("state"), "is a duplicate"),
    "a doubled write": (double("write"), "is a duplicate"),
    "a doubled entry of the log": (double("log"), "out of order"),
    "a log that tells other than a call": (change("log", action="unknown"), "was last logged as unknown"),
    "no session": (drop("session"), "misplaced branch"),
    "two sessions": (double("session"), "misplaced session"),
    "a state that lies about its hash": (change("state", state_hash="0" * 64), "hash of its state"),
    "a count of messages that is wrong": (change("state", at=2, messages=7), "counts 7 messages"),
    "a checkpoint without its state": (change("checkpoint", at=1, state="nowhere"), "no graph checkpoint"),
    "a checkpoint of nobody": (change("checkpoint", branch=7), "refers to branch 7"),
    "a position behind the end": (change("checkpoint", position=1000), "beyond the end of its tool track"),
    "a branch that leaves from nowhere": (change("branch", at=1, point=7), "starts from no checkpoint"),
    "a branch below itself": (
        lambda found: of(found, "branch")[1].update(parent=of(found, "branch")[1]["id"]),
        "refers to",
    ),
    "two roots": (change("branch", at=1, parent=None, point=None), "lacks a parent"),
    "a head that is elsewhere": (change("branch", head=7), "head is not one of its checkpoints"),
    "a wrong beginning": (change("branch", at=1, inherited=7), "does not begin at its branch point"),
    "a beginning before its point": (change("branch", at=1, inherited=1), "does not begin at its branch point"),
    "a current branch that is not there": (change("session", current=7), "refers to branch 7"),
    "a status that does not exist": (change("call", status="maybe"), "status is not one of"),
    "a call that still runs": (change("call", status="intended"), "status is not one of"),
    "an effect that does not exist": (change("call", effect="harmless"), "effect is not one of"),
    "a replay of nothing": (change("call", kind="replay"), "does not say which call it replays"),
    "a replay of what is not there": (change("call", replay_of=7), "refers to call 7"),
    "an undo function": (change("call", undo="os:system"), "unknown field 'undo'"),
    "a verify function": (change("call", verify="os:system"), "unknown field 'verify'"),
    "an operation that goes on": (change("operation", status="partial"), "unknown field 'status'"),
    "an operation about nothing": (change("operation", accepted=[7]), "refers to call 7"),
    "a request that nobody makes": (change("operation", request={"files": {"snapshot": "x"}}), "unknown field 'files'"),
    "a log of nothing": (change("log", call=7), "refers to call 7"),
    "a record of another program": (change("log", record="pickle"), "not a known kind of record"),
    "a path": (change("session", path="../../etc/passwd"), "unknown field 'path'"),
    "a name that is no branch's": (change("branch", name="../#@"), "cannot be called"),
    "a header without a version": (lambda found: of(found, "state")[0]["header"].pop("v"), "no field 'v'"),
    "a header with a number as what changed": (
        lambda found: of(found, "state")[0]["header"].update(updated=3),
        "updated",
    ),
    "versions that nobody can compare": (
        lambda found: of(found, "state")[1]["header"]["versions"].update(x="1"),
        "cannot be compared",
    ),
    "what was seen and cannot be compared": (
        lambda found: of(found, "state")[1]["header"]["seen"].update(x={"y": "1"}),
        "cannot be compared",
    ),
    "a step that is none": (lambda found: of(found, "state")[-1]["meta"].update(step=[[]]), "step is not a whole"),
    "a checkpoint's name that none can have": (change("checkpoint", name="x" * 201), "name is not text of 1 to 200"),
    "a number after which none comes": (change("checkpoint", at=-1, number=2**31 - 1), "number is not a whole number"),
    "a call after which none comes": (change("call", at=-1, arrival=2**31 - 1), "arrival is not a whole number"),
    "a batch after which none comes": (change("call", at=-1, batch=2**31 - 1), "batch is not a whole number"),
    "a step after which none comes": (change("state", at=-1, seq=2**31 - 1), "seq is not a whole number"),
    "an entry after which none comes": (change("log", at=-1, seq=2**31 - 1), "seq is not a whole number"),
    "an exploration whose end is not told": (
        lambda found: of(found, "branch")[-1]["meta"]["exploration"].pop("end"),
        "no field 'end'",
    ),
    "a score that is none": (
        lambda found: of(found, "branch")[-1]["meta"]["exploration"].update(score="best"),
        "score is not a number",
    ),
    "a record in a record": (
        lambda found: found.insert(found.index(of(found, "value")[1]), nested(found)),
        "record in a record",
    ),
    "wrong counts": (lambda found: found[-1].update(counts={"X": 1}), "but there are"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_inconsistent_export_with_valid_line_hashes_is_refused(export, target, lie):
    """Duplicate ids, broken references, unknown statuses and wrong contents are refused with their line."""
    how, said = LIES[lie]
    found = refused(target, forged(export, how), r"^Line \d+ of the export", said, error=Corrupt)
    assert found.row.startswith("line ")


def value(kind, data):
    """Return the record of a value with the correct hash."""
    return {
        "record": "value", "id": leaf(kind, data).hash.hex(), "type": kind, "text": None,
        "data": base64.b64encode(data).decode(), "parts": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("pickle", pickle.dumps(print)), ("list", b""), ("chunk", b"x"), ("json", b"{"), ("message", b"[1]"),
        ("message", b'{"type":"ai","data":{"tool_calls":[7]}}'), ("msgpack", b"\xc1"), ("record", b"\0\0\0\1"),
        ("json+py", b"[" * 100_000 + b"]" * 100_000), ("json", b"[" * 100_000 + b"]" * 100_000),
    ],
)  # fmt: skip
def test_an_unreadable_value_is_refused(export, target, kind, data):
    """Pickles, broken JSON, invalid messages and deep nesting are refused with their line."""
    hostile = forged(export, lambda found: found.insert(found.index(of(found, "value")[0]), value(kind, data)))
    refused(target, hostile, r"^Line \d+ of the export", error=Corrupt)


def test_deep_json_is_refused(export, target):
    """Deeply nested JSON is refused without a RecursionError."""
    for depth in (300, 900, 5_000, 100_000):
        deep = export.splitlines(keepends=True)
        body = deep[1].partition(b',"hash"')[0] + b',"x":' + b"[" * depth + b"]" * depth
        sealed = LineWriter()
        first = sealed.line({name: v for name, v in json.loads(deep[0]).items() if name != "hash"})
        chain = lines.sha256(sealed._chain + body).digest()
        refused(target, first + body + lines._tail(chain), "Line 2 ", error=Corrupt)


def test_an_endless_line_is_not_read_completely(export, target, monkeypatch):
    """A line longer than the limit is refused after its first part is read."""

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


@pytest.mark.long
def test_an_incomplete_value_in_parts_is_refused(target):
    """Parts that are missing, doubled, too many, or without their value are refused."""
    with agentgit.open(":memory:") as repo:
        graph = agent_graph(scripted("x" * 600_000), [])
        repo.wrap(graph, "s").run("hi")
        export = written(repo, "s")
    for how in (drop("part"), double("part"), lambda found: found.remove(found[found.index(of(found, "part")[0]) - 1])):
        refused(target, forged(export, how), r"^Line \d+ ", error=Corrupt)
    huge = forged(export, lambda found: found[found.index(of(found, "part")[0]) - 1].update(parts=2**30))
    refused(target, huge, "cannot have", error=Corrupt)


def test_an_interrupted_import_leaves_no_rows(export, tmp_path, monkeypatch):
    """An import stores everything in one transaction, so an interrupted one leaves no rows."""
    with agentgit.open(tmp_path / "a.db") as target:
        before = rows(target)
        plain = import_._Tables.flush

        def die(self, *kinds):
            plain(self, *kinds)
            raise KeyboardInterrupt

        monkeypatch.setattr(import_._Tables, "flush", die)
        with pytest.raises(KeyboardInterrupt):
            target.import_(BytesIO(export))
        assert rows(target) == before


KILLED = """
import sys
import agentgit, faults
from points import Point
repo = agentgit.open(sys.argv[1])
with getattr(faults, sys.argv[2])(Point("store.transfer.import_", sys.argv[3]), faults.die):
    repo.import_(sys.argv[4])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("when", "where"),
    [("after", "_ValueImport.add"), ("before", "_Tables.flush"), ("after", "_Tables.flush"), ("after", "record_event")],
)
def test_an_import_killed_at_any_step_leaves_no_rows(repo, export, tmp_path, when, where):
    """An import whose process is killed with SIGKILL leaves no rows, and the file can be imported afterwards."""
    before = rows(repo)
    done = processes.run(KILLED, backend.address(repo), when, where, file_of(tmp_path, export))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert rows(repo) == before
    assert repo.import_(BytesIO(export)).session.session_name == "s"
    assert repo.maintenance.fsck(level=2).is_sound


def test_a_file_changed_during_its_import_is_refused(export, target):
    """An import of a file that changes after its check is refused and stores nothing."""
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
    """An imported session with the largest accepted numbers can run another turn, on PostgreSQL too."""

    def great(found):
        change("checkpoint", at=-1, number=MAX_COUNT)(found)
        change("call", at=-1, arrival=MAX_COUNT, batch=MAX_COUNT)(found)
        change("log", at=-1, seq=MAX_COUNT)(found)

    made = repo.import_(forged(export, great))
    shop = World()
    agent = repo.wrap(
        tool_node_graph(obedient(), shop.tools()), made.session.session_name, branch="main", effects=shop.effects()
    )
    agent.run("add lamp")
    assert shop.items == ["lamp"]


@pytest.mark.parametrize("where", ["a list", "a record", "a state"])
def test_a_value_referenced_too_often_is_refused(export, target, monkeypatch, where):
    """A list, record or state that would unpack to far more than the file contains is refused."""
    monkeypatch.setattr(import_check, "UNPACKED_BYTES_ALLOWED", 200_000)
    large = value("json", json.dumps("x" * 100_000).encode())
    key = bytes.fromhex(large["id"])
    made = [large]
    if where == "a list":
        many = tuple([key] * 4000)
        items = [one.hex() for one in many]
        made.append({"record": "list", "id": list_hash(many).hex(), "base": None, "keep": 0, "items": items})
    elif where == "a record":
        made.append(value("record", pack({f"x{n}": key for n in range(4000)})))

    def bomb(found):
        at = found.index(of(found, "value")[0])
        found[at:at] = made
        if where == "a state":
            state = of(found, "state")[0]
            state["channels"] |= {f"x{n}": large["id"] for n in range(4000)}
            channels = {name: bytes.fromhex(held) for name, held in state["channels"].items()}
            state["state_hash"] = hash_state(channels).hex()

    refused(target, forged(export, bomb), "unpacks to more than", error=Corrupt)


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
    """An imported value that an encrypting serializer did not seal is Corrupt, and its code is not called."""
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

    session = target.import_(forged(export, add)).session
    serde = EncryptedSerializer(Cipher())
    saver = SQLModelSaver(
        backend.database(target), tenant_id=target.context.store.tenant_id, serde=serde, sessions=True
    )
    (thread,) = {branch.langgraph_session_id for branch in target.session(session).branches() if branch.is_current}
    with pytest.raises(Corrupt, match="not sealed"):
        saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    assert CALLED == []


def test_an_unsealed_value_never_reaches_the_inner_serializer(tmp_path):
    """With an encrypting serializer, a forged unsealed value is Corrupt, and its code is not called."""
    hostile = b"msgpack\0" + ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((__name__, "called", "forged"))))

    def graph(saver):
        builder = StateGraph(dict)
        builder.add_node("keep", lambda _: {"x": {1, 2}}).add_edge(START, "keep")
        return builder.compile(checkpointer=saver)

    with SQLModelSaver.from_conn_string(tmp_path / "a.db", serde=EncryptedSerializer(Cipher())) as saver:
        config = {"configurable": {"thread_id": "1"}}
        graph(saver).invoke({}, config)
        codec = make_codec(EncryptedSerializer(Cipher()), is_default=False)
        with pytest.raises(Corrupt, match="not sealed"):
            codec.decode(leaf("serde", hostile))
        assert saver.get_tuple(config).checkpoint["channel_values"]["__root__"] == {"x": {1, 2}}
    assert CALLED == []


def test_a_pickle_of_a_custom_serializer_is_refused(export, target):
    """A pickle is refused, even as the value of a custom serializer."""
    hostile = value("serde", b"pickle\0" + pickle.dumps(print))
    refused(
        target, forged(export, lambda found: found.insert(found.index(of(found, "value")[0]), hostile)), "pickle",
        error=Corrupt,
    )  # fmt: skip


@pytest.mark.parametrize("missing", ["namespace", "key", "before"])
def test_a_write_to_memory_without_its_item_is_refused(target, missing):
    """A plan needs the item and the value before it, so an import and fsck check them."""
    with agentgit.open(":memory:") as repo:
        repo.wrap(noting(InMemoryStore()), "s").invoke(said("+food=pizza"))
        whole = written(repo, "s")
        backend.write(repo, lambda c: c.execute(TOOL_INVOCATION.update().values(args=b'{"key":"food"}')))
        assert [one.what for one in repo.maintenance.fsck(2).findings] == [
            "it is a write to memory without the item or the value before it"
        ]
    refused(target, forged(whole, lambda found: of(found, "call")[0]["args"].pop(missing)), "a write to memory without")
    target.import_(BytesIO(whole))
