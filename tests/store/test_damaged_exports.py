"""One table of edits of export files: an import refuses each, names the wrong line, and changes nothing."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from hashlib import shake_256
from io import BytesIO, StringIO

import backend
import ormsgpack
import pytest
from exports import SHORT, everything, forged, of, rows, written
from file_tools import Desk
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.memory import InMemoryStore
from memory_graphs import noting, said
from scripted import World, agent_graph, call, calls, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Corrupt, InvalidInput, SQLModelSaver, Workspace
from agentgit.store.objects.blobs import leaf, list_hash, pack, unpack
from agentgit.store.records.json_shapes import MAX_COUNT, encode_bytes
from agentgit.store.threads.graph_rows import hash_state
from agentgit.store.transfer import file_trees, lines
from agentgit.store.transfer.import_ import import_session
from agentgit.store.transfer.import_check import check_export
from agentgit.store.transfer.lines import FORMAT

# -- the exports that are edited


def a_session(folder):
    """Export a session with a rollback, an exploration, a pending interrupt and a checkpoint with data."""
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
        return written(repo, "s")


def with_files(folder):
    with pytest.MonkeyPatch.context() as patch, agentgit.open(":memory:") as repo:
        patch.setenv("AGENTGIT_HOME", str(folder / "home"))
        desk = Desk(folder / "work")
        agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)
        (desk.root / "large.bin").write_bytes(b"\xff" * 300_000)
        (desk.root / "link").symlink_to("a.txt")
        agent.run("write a.txt one; write d/b.txt two")
        agent.run("write a.txt three; delete d/b.txt")
        return written(repo, "s", files=True)


def in_parts(folder):
    with agentgit.open(":memory:") as repo:
        repo.wrap(agent_graph(scripted("x" * 600_000), []), "s").run("hi")
        return written(repo, "s")


def with_memory(folder):
    with agentgit.open(":memory:") as repo:
        repo.wrap(noting(InMemoryStore()), "s").invoke(said("+food=pizza"))
        return written(repo, "s")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Return a function that makes each export once."""
    made: dict[Callable[..., bytes], bytes] = {}

    def get(source):
        return made.get(source) or made.setdefault(source, source(tmp_path_factory.mktemp("source")))

    return get


# -- edits of records; hashes and counts of the edited file are valid


def change(kind, which=0, /, **fields):
    return lambda found: of(found, kind)[which].update(fields)


def drop(kind, which=0):
    return lambda found: found.remove(of(found, kind)[which])


def double(kind, which=0):
    return lambda found: found.insert(found.index(of(found, kind)[which]) + 1, dict(of(found, kind)[which]))


def add(kind, data):
    """Return a change that adds a value with the correct hash."""
    return lambda found: found.insert(found.index(of(found, "value")[0]), value(kind, data))


def value(kind, data):
    """Return the record of a value with the correct hash."""
    return {"record": "blob", "hash": leaf(kind, data).hash.hex(), "type": kind, "data": encode_bytes(data)}


def nested(found):
    """Insert an empty record value before the first value, and return a record value that refers to it."""
    inner = value("record", pack({}))
    found.insert(found.index(of(found, "value")[0]), inner)
    return value("record", pack({"x": bytes.fromhex(inner["hash"])}))


def pending(place, value):
    """Return a change of the first pending writes of a checkpoint: their namespace, checkpoint or writes."""

    def edit(found):
        with_writes = next(one for one in of(found, "checkpoint") if one["pending"] and one["pending"][0])
        with_writes["pending"][0][0][place] = value

    return edit


def inside(kind, which, *way, **fields):
    """Return a change of a part of one record of a kind."""

    def edit(found):
        part = of(found, kind)[which]
        for name in way:
            part = part[name]
        part.update(fields)

    return edit


def of_type(found, kind):
    return [one for one in of(found, "blob") if one["type"] == kind]


def drop_chunk(found):
    found.remove(of_type(found, "chunk")[0])


def whole_of_chunks(found):
    """Return the record of the value that is in chunks."""
    return next(one for one in of(found, "value") if "chunks" in one["data"])


def put(name, mode=0o644, **item):
    """Return a change that adds an item to the last directory: the first file of the export, or what `item` says."""

    def edit(found):
        kind, value = next(iter(item.items()), ("file", of(found, "file")[0]["id"]))
        of(found, "folder")[-1]["items"][name] = [kind, value, mode]

    return edit


def left(name, why="x"):
    """Return a change that adds a name that the last directory leaves out."""
    return put(name, mode=0, left=why)


def folders_within(levels, *names):
    """Return a change that adds directories in one another, each with these names for the one below."""

    def edit(found):
        folders = of(found, "folder")
        place, count = found.index(folders[-1]) + 1, len(folders)
        below = next(one["id"] for one in folders if not one["items"])
        for id in range(count + 1, count + levels + 1):
            items = {name: ["folder", below, 0o755] for name in names}
            found.insert(place, {"record": "folder", "id": id, "items": items})
            place, below = place + 1, id

    return edit


DEEP = b"[" * 100_000 + b"]" * 100_000
LONG = "x" * 256
WRITE = ["t", 0, "", "c", "0" * 64]
NS, ID, WRITES = 0, 1, 2
EDITS = {
    a_session: {
        "pending writes of a graph checkpoint that is not there": (pending(ID, "nowhere"), "not its own"),
        "pending writes of a namespace that is not there": (pending(NS, "nowhere"), "of its pending writes is missing"),
        "a pending write without a value": (pending(WRITES, [[*WRITE[:4], ""]]), "has no value"),
        "a doubled pending write": (pending(WRITES, [WRITE] * 2), "duplicate write"),
        "a pending write of a missing value": (pending(WRITES, [WRITE]), "refers to value"),
        "a value that lies about its hash": (change("value", type="json", data="7"), ""),
        "a value that is missing": (drop("value"), "refers to value"),
        "a list that is missing": (drop("list"), "refers to value"),
        "a list with another item": (inside("list", 0, "data", items=[]), ""),
        "a list that keeps too much": (inside("list", -1, "data", keep=1000), ""),
        **{
            f"a doubled {kind}": (double(kind), f"duplicate of {SHORT.get(kind, kind)}")
            for kind in ("value", "branch", "checkpoint", "call", "operation", "state", "write", "log")
        },
        "a log that tells other than a call": (change("log", action="unknown"), "its last entry in the world log is"),
        "no session": (drop("session"), "misplaced internal_session"),
        "two sessions": (double("session"), "misplaced external_session"),
        "a state that lies about its hash": (change("state", state_hash="0" * 64), "state_hash does not match"),
        "a count of messages that is wrong": (change("state", 2, message_count=7), "it records 7 messages"),
        "a count of the header that is wrong": (inside("state", 4, "header", counts={"messages": 7}), "counts 7"),
        "a checkpoint without its state": (change("checkpoint", 1, graph_checkpoint_id="nowhere"), ""),
        "a checkpoint of nobody": (change("checkpoint", internal_session_id=7), "refers to internal_session 7"),
        "a position behind the end": (change("checkpoint", position=1000), "its position is 1000"),
        "a branch that leaves from nowhere": (change("branch", 1, branch_point_id=7), "refers to checkpoint 7"),
        "a branch below itself": (
            lambda found: of(found, "branch")[1].update(parent_id=of(found, "branch")[1]["id"]),
            "refers to",
        ),
        "a call that replays itself": (
            lambda found: of(found, "call")[1].update(replay_of=of(found, "call")[1]["id"]),
            "leads back to itself",
        ),
        "two roots": (change("branch", 1, parent_id=None, branch_point_id=None), "lacks a parent"),
        "a head that is elsewhere": (change("branch", head_id=7), "refers to checkpoint 7"),
        "no head": (change("branch", head_id=None), "no head"),
        "a wrong beginning": (change("branch", 1, inherited=7), "it records 7 inherited calls"),
        "a beginning before its point": (change("branch", 1, inherited=1), "it records 1 inherited calls"),
        "a current branch that is not there": (change("session", current_branch_id=7), "refers to internal_session 7"),
        "a status that does not exist": (change("call", status="maybe"), "status is not one of"),
        "a call that still runs": (change("call", status="intended"), "status is not one of"),
        "an effect that does not exist": (change("call", effect="harmless"), "effect is not one of"),
        "a replay of nothing": (change("call", kind="replay"), "does not say which call it replays"),
        "a replay of what is not there": (change("call", replay_of=7), "refers to tool_invocation 7"),
        "an undo function": (change("call", undo="os:system"), "unknown field 'undo'"),
        "a verify function": (change("call", verify="os:system"), "unknown field 'verify'"),
        "a call that was made here": (change("call", made_on=None), "made_on is not"),
        "an operation that goes on": (change("operation", status="partial"), "unknown field 'status'"),
        "an operation about nothing": (inside("operation", 0, "request", accepted=[7]), "refers to tool_invocation 7"),
        "a request that nobody makes": (inside("operation", 0, "request", files={}), "unknown field 'files'"),
        "an owner": (change("branch", owner="me"), "unknown field 'owner'"),
        "a log of nothing": (change("log", invocation_id=7), "refers to tool_invocation 7"),
        "a record of another program": (change("log", record="pickle"), "not a known kind of record"),
        "a path": (change("session", path="../../etc/passwd"), "unknown field 'path'"),
        "a name that is no branch's": (change("branch", name="../#@"), "cannot be called"),
        "a header without a version": (lambda found: of(found, "state")[0]["header"].pop("v"), "no field 'v'"),
        "a header with a number as what changed": (inside("state", 0, "header", updated=3), "updated"),
        "versions that nobody can compare": (inside("state", 1, "header", "versions", x="1"), "cannot be compared"),
        "seen versions nobody can compare": (inside("state", 1, "header", "seen", x={"y": "1"}), "cannot be compared"),
        "a step that is none": (inside("state", -1, "meta", step=[[]]), "step is not a whole"),
        "a checkpoint's name that none can have": (change("checkpoint", name="x" * 201), "name is not text of 1"),
        "a number after which none comes": (change("checkpoint", -1, number=2**31 - 1), "number is not a whole number"),
        "a call after which none comes": (change("call", -1, arrival=2**31 - 1), "arrival is not a whole number"),
        "a batch after which none comes": (change("call", -1, batch=2**31 - 1), "batch is not a whole number"),
        "a step after which none comes": (change("state", -1, seq=2**31 - 1), "seq is not a whole number"),
        "an entry after which none comes": (change("log", -1, seq=2**31 - 1), "seq is not a whole number"),
        "an exploration whose end is not told": (
            lambda found: of(found, "branch")[-1]["meta"]["exploration"].pop("end"),
            "no field 'end'",
        ),
        "a score that is none": (inside("branch", -1, "meta", "exploration", score="best"), "score is not a number"),
        "a record in a record": (
            lambda found: found.insert(found.index(of(found, "value")[1]), nested(found)),
            "record in a record",
        ),
        **{
            f"an unreadable value, {n}": (add(kind, data), "")
            for n, (kind, data) in enumerate(
                [
                    ("pickle", pickle.dumps(print)), ("list", b""), ("json", b"{"),
                    ("message", b"[1]"), ("message", b'{"type":"ai","data":{"tool_calls":[7]}}'),
                    ("msgpack", b"\xc1"), ("record", b"\0\0\0\1"), ("json+py", DEEP), ("json", DEEP),
                ]
            )
        },
        "a pickle of a custom serializer": (add("serde", b"pickle\0" + pickle.dumps(print)), "pickle"),
    },
    in_parts: {
        "a chunk that is missing": (drop_chunk, "refers to value"),
        "a chunk that is another": (lambda found: of_type(found, "chunk")[0].update(data="x"), ""),
        "chunks that make no value": (
            lambda found: whole_of_chunks(found)["data"].update(chunks=[of_type(found, "chunk")[0]["hash"]]),
            "",
        ),
        "a chunk in chunks": (lambda found: of_type(found, "chunk")[0].update(data={"chunks": []}), "not the data of"),
    },
    with_memory: {
        f"a write to memory without its {name}": (
            lambda found, name=name: of(found, "call")[0]["args"].pop(name),
            "a write to memory without",
        )
        for name in ("namespace", "key", "before")
    },
    with_files: {
        "a path left out that leads out": (left("../a"), "leads out"),
        "an absolute path left out": (left("/etc/passwd"), "leads out"),
        "a path left out with an end of the text": (left("a\0b"), "leads out"),
        "no path left out": (left(""), "not text of 1"),
        "a path left out for no reason": (left("new", None), "is not text"),
        "a path left out for a long reason": (left("new", LONG), "not text of 1 to 200"),
        "a way out": (put("../x"), "leads out"),
        "a way out on the way": (put("d/../../x"), "leads out"),
        "an absolute path": (put("/etc/passwd"), "leads out"),
        "a point": (put("./x"), "leads out"),
        "nothing": (put(""), "not text of 1"),
        "no item": (lambda found: of(found, "folder")[-1]["items"].update(x=7), "is not a file, a link"),
        "an item of no kind": (put("x", pipe=1), "is not a file, a link"),
        "a repository": (put(".git"), "git repository"),
        "a repository in a folder": (put(".git", folder=1), "git repository"),
        "a repository for the Mac": (put(".gi\u200ct"), "git repository"),
        "a repository for Windows": (put("GIT~1"), "git repository"),
        "a repository as a stream": (put(".git::$INDEX_ALLOCATION"), "git repository"),
        "control characters": (put("a\x1b[2J"), "control characters"),
        "an end of the text": (put("a\0b"), "control characters"),
        "a lone surrogate": (put("\ud800"), "not a path on any system"),
        "a device": (put("NUL.txt"), "device"),
        "a device with a superscript": (put("com\u00b2.log"), "device"),
        "a path on a drive": (put("C:x"), "another path"),
        "a stream of a file": (put("a.txt:hidden"), "another path"),
        "a link to a drive": (put("out", link="C:x"), "another path"),
        "a link to a device": (put("out", link="d/NUL"), "another path"),
        "a path of Windows": (put("..\\..\\x"), "another path"),
        "a long name": (put(LONG), "more than 255 bytes"),
        "a long path": (folders_within(50, "x" * 99), "a path of more than 4096 bytes"),
        "a case clash": (put("A.TXT"), "is the same as"),
        "a case clash of folders": (put("D", folder=1), "is the same as"),
        "clashing accents": (lambda found: [put("\u00e9")(found), put("e\u0301", mode=0o600)(found)], "is the same as"),
        "an absolute link": (put("out", link="/etc"), "lead out"),
        "a link that goes up": (put("out", link="../x"), "lead out"),
        "a link that goes up later": (put("out", link="d/../../x"), "lead out"),
        "a link into a repository": (put("out", link="d/.GIT/hooks"), "into a git repository"),
        "a link with control characters": (put("out", link="a\nb"), "control characters"),
        "a mode for its owner": (put("x", mode=0o4755), "is not a whole number"),
        "contents that are not there": (put("x", file="0" * 64), "refers to file"),
        "contents that are missing": (drop("file", -1), "refers to file"),
        "contents that come twice": (
            lambda found: found.insert(found.index(of(found, "file")[1]), dict(of(found, "file")[1])),
            "duplicate of file",
        ),
        "contents that lie": (change("part", -1, data="other"), "does not match its hash"),
        "a size that lies": (change("file", -1, size=1), "or its size"),
        "a size that is huge": (change("file", -1, size=2**40), "size is not a whole number"),
        "a part that is missing": (drop("part"), "does not match its hash"),
        "a part that belongs to nothing": (double("part", -1), "does not match its hash"),
        "a part that is too large": (change("part", data="x" * 300_000), "more than 262144 bytes"),
        "a tree of another number": (change("folder", 1, id=7), "not the next directory"),
        "no tree": (drop("folder"), "no earlier directory"),
        "a directory that comes later": (put("x", folder=99), "directory 99, which did not come before"),
        "directories without end": (folders_within(40, "a", "b"), "more than 500000 paths"),
        "a snapshot of no tree": (change("snapshot", 0, tree=99), "no earlier directory"),
        "a snapshot of nothing": (change("snapshot", 0, tree=None), "no reason"),
        "a reason that there is not": (change("snapshot", 0, tree=None, why="because"), "why is not one of"),
        "a snapshot of no branch": (change("snapshot", 0, internal_session_id=7), "refers to internal_session 7"),
        "a checkpoint of no snapshot": (change("checkpoint", workspace_snapshot_id=7), "to workspace_snapshot 7"),
        "a doubled snapshot": (double("snapshot"), "duplicate of workspace_snapshot"),
        "a place to write to": (change("snapshot", 0, settings={"storage": "/"}), "unknown field 'settings'"),
    },
}  # fmt: skip
"""The edits of each export, each with what the refusal says."""


@pytest.fixture
def target(tmp_path):
    """Yield an empty repository, and a workspace with a file and a snapshot, to import into."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("mine")
    with agentgit.open(":memory:") as repo, Workspace(tmp_path / "mine") as workspace:
        workspace.save("mine")
        yield repo, workspace


def seen(repo, workspace):
    """Return what an import would change: rows, snapshots, stored files, and the folder."""
    packs = sorted(os.listdir(os.path.join(workspace.storage_dir, "git", "objects", "pack")))
    return rows(repo), [one.id for one in workspace.list()], packs, os.listdir(workspace.workspace_dir)


def refusal(target, data, error=(Corrupt, InvalidInput)):
    """Import a damaged export, which must change nothing, and return the refusal; None if it was imported."""
    repo, workspace = target
    before = seen(repo, workspace)
    try:
        repo.import_(data if isinstance(data, BytesIO) else BytesIO(data), workspace=workspace)
    except error as refused:
        assert seen(repo, workspace) == before
        return refused
    return None


@pytest.mark.parametrize("source", EDITS, ids=lambda source: source.__name__)
def test_an_export_with_edited_records_is_refused_with_its_line(exports, target, source):
    export, wrong = exports(source), {}
    for name, (edit, said_) in EDITS[source].items():
        refused = refusal(target, forged(export, edit), Corrupt)
        if refused is None or said_ not in str(refused) or not re.fullmatch(r"line \d+", refused.row):
            wrong[name] = refused
    assert wrong == {}
    repo, workspace = target
    repo.import_(BytesIO(export), workspace=workspace)
    kinds = {json.loads(line).get("record") for line in export.splitlines()}
    assert kinds >= {SHORT.get(kind, kind) for kind in KINDS.get(source, ())}


KINDS = {
    a_session: {"session", "branch", "blob", "state", "write", "checkpoint", "call", "operation", "log"},
    with_files: {"file", "part", "folder", "snapshot"},
}


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", b"notes\n", b"\x89PNG\r\n\x1a\n", b"PK\3\4", b"\x80\4K\1."])
def test_a_file_that_is_not_an_export_is_refused(target, data):
    assert "not an agentgit export" in str(refusal(target, data, InvalidInput))


def test_a_file_that_is_open_as_text_is_refused(exports, target):
    repo, workspace = target
    with pytest.raises(InvalidInput, match="binary mode"):
        repo.import_(StringIO(exports(a_session).decode()), workspace=workspace)


@pytest.mark.parametrize("other", [0, FORMAT + 1, str(FORMAT), None])
def test_an_export_in_another_format_is_refused_with_advice(exports, target, other):
    edited = forged(exports(a_session), lambda found: found[0].update(version=other))
    refused = str(refusal(target, edited, InvalidInput))
    assert f"This export has format {other!r}, and this version of agentgit reads format {FORMAT}." in refused
    assert "Export the session again with this version. pip install --upgrade agentgit updates it." in refused


def test_deep_json_is_refused(exports, target):
    for depth in (300, 900, 5_000, 100_000):
        deep = exports(a_session).splitlines(keepends=True)
        deep[1] = deep[1].rstrip()[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}\n"
        assert "Line 2 " in str(refusal(target, b"".join(deep), Corrupt))


# -- edits of lines and bytes


def check(data):
    """Return the row that the check of an export names; None if it finds nothing."""
    try:
        check_export(BytesIO(data))
    except (Corrupt, InvalidInput) as refused:
        return refused.row if isinstance(refused, Corrupt) else "the beginning"
    return None


@pytest.mark.parametrize("source", [a_session, with_files], ids=lambda source: source.__name__)
def test_every_changed_missing_doubled_or_moved_line_is_refused(exports, source):
    """A line that still has its shape is found at the end, by the hash of the file."""
    whole = exports(source).splitlines(keepends=True)
    wrong = []
    for n in {*range(0, len(whole), max(1, len(whole) // 60)), len(whole) - 1}:
        line, middle = whole[n], len(whole[n]) // 2
        before, after = b"".join(whole[:n]), b"".join(whole[n + 1 :])
        edited = {
            "changed": before + line[:middle] + bytes([line[middle] ^ 1]) + line[middle + 1 :] + after,
            "missing": before + after,
            "doubled": before + line + line + after,
            "moved": b"".join(whole[: n - 1]) + line + whole[n - 1] + after if n else after + line,
            "cut": before,
            "cut inside": before + line[:middle],
        }
        wrong += [(n, how) for how, data in edited.items() if check(data) is None]
    assert wrong == []


def test_an_export_cut_at_any_byte_is_refused():
    with agentgit.open(":memory:") as repo:
        repo.session("s", create=True)
        whole = written(repo, "s")
    assert check(whole) is None
    assert [end for end in range(len(whole)) if check(whole[:end]) is None] == []
    assert check(whole + b"\n") == check(whole + whole) == "line 5"
    with pytest.raises(Corrupt, match=r"Line 2.*truncated"):
        check_export(BytesIO(b"".join(whole.splitlines(keepends=True)[:2])))


# -- forged fields that may be harmless


ODD = [
    None, True, -1, 0, 2**31, 2**53, 2**90, 1.5, "", "x", "\0", "\ud800", "0" * 64, "x" * 300, [], ["x"], [None], {},
    {"x": None}, [[[]]], "2026-01-01T00:00:00+00:00", "2026-01-01", "0001-01-01T00:00:00+10:00",
]  # fmt: skip
NOISE = shake_256(b"long").hexdigest(5000)
"""A text that PostgreSQL cannot compress, so that it is too long for any index."""


def places(found, way=()):
    """Yield the paths to all fields of a record, and of a list only to its first item."""
    inside = found.items() if isinstance(found, dict) else list(enumerate(found))[:1] if isinstance(found, list) else ()
    for name, item in inside:
        yield (*way, name)
        yield from places(item, (*way, name))


def records_of_each_kind(export):
    """Return the paths into the largest record of each kind, each with the number of its line."""
    richest: dict[str, int] = {}
    whole = [json.loads(line) for line in export.splitlines()[:-1]]
    for n, record in enumerate(whole):
        best = richest.setdefault(record.get("record", "header"), n)
        if len(list(places(record))) > len(list(places(whole[best]))):
            richest[record["record"]] = n
    return [(n, way) for n in richest.values() for way in places(whole[n])]


def replace(found, line, way, odd):
    record = found[line]
    for name in way[:-1]:
        record = record[name]
    record[way[-1]] = odd


def expect_refused_or_harmless(repo, export, line, way, odd):
    """Import an export with a forged field; if it is not refused, all of the session can be read."""
    try:
        made = repo.import_(forged(export, lambda found: replace(found, line, way, odd)))
    except (Corrupt, InvalidInput):
        return
    everything(repo, made.session)
    str(repo.session(made.session).tree())
    for operation in repo.session(made.session).operations():
        repo.context.engine().read_report(operation.id)
    for branch in repo.session(made.session).branches():
        first, *_, last = repo.session(made.session).checkpoints(branch=branch.name)
        for point in (first, last):
            str(repo.session(made.session).plan_rollback(point))
        list(repo.session(made.session).trajectories(branch=branch.name))


@pytest.mark.long
def test_a_forged_field_is_refused_or_harmless(exports):
    export = exports(a_session)
    with agentgit.open(":memory:") as repo:
        for n, (line, way) in list(enumerate(records_of_each_kind(export)))[::2]:
            expect_refused_or_harmless(repo, export, line, way, ODD[n % len(ODD)])


@pytest.mark.long
def test_unusual_text_causes_no_database_error_in_an_import(repo, exports):
    export = exports(a_session)
    ways = [(line, way) for line, way in records_of_each_kind(export) if len(way) == 1]
    for n, (line, way) in enumerate(ways):
        expect_refused_or_harmless(repo, export, line, way, ("\0", "\ud800", NOISE)[n % 3])


# -- exports that unpack to too much


def set_channels(state, channels):
    state.update(channels=pack(channels).hex(), state_hash=hash_state(channels).hex())


@pytest.mark.parametrize("where", ["a list", "a record", "a state"])
def test_a_value_referenced_too_often_is_refused(exports, target, monkeypatch, where):
    monkeypatch.setattr(file_trees, "UNPACKED_BYTES_ALLOWED", 200_000)
    large = value("json", json.dumps("x" * 100_000).encode())
    key = bytes.fromhex(large["hash"])
    made = [large]
    if where == "a list":
        many = tuple([key] * 4000)
        items = [one.hex() for one in many]
        data = {"base": None, "keep": 0, "items": items}
        made.append({"record": "blob", "hash": list_hash(many).hex(), "type": "list", "data": data})
    elif where == "a record":
        made.append(value("record", pack({f"x{n}": key for n in range(4000)})))

    def bomb(found):
        place = found.index(of(found, "value")[0])
        found[place:place] = made
        if where == "a state":
            state = of(found, "state")[0]
            set_channels(state, unpack(bytes.fromhex(state["channels"])) | {f"x{n}": key for n in range(4000)})

    assert "unpacks to more than" in str(refusal(target, forged(exports(a_session), bomb), Corrupt))


def test_a_tree_that_unpacks_to_too_much_is_refused(exports, target, monkeypatch):
    monkeypatch.setattr(file_trees, "UNPACKED_BYTES_ALLOWED", 1_000_000)
    monkeypatch.setattr(file_trees, "MAX_UNPACK_RATIO", 3)

    def bomb(found):
        large = next(one["id"] for one in of(found, "file") if one["size"] > 200_000)
        for n in range(3):
            put(f"copy-{n}", file=large)(found)

    assert "unpacks to more than 3 times" in str(refusal(target, forged(exports(with_files), bomb), Corrupt))
    monkeypatch.setattr(file_trees, "MOST_PATHS", 3)
    assert "has more than 3 paths" in str(refusal(target, forged(exports(with_files), put("one-more")), Corrupt))


# -- hostile values and files


def test_an_endless_line_is_not_read_completely(exports, monkeypatch):
    class Endless(BytesIO):
        longest = 0

        def readline(self, size=-1, /):
            assert size is not None
            assert size > 0
            Endless.longest = max(Endless.longest, size)
            return super().readline(size)

    monkeypatch.setattr(lines, "LONGEST", 10_000)
    head = exports(a_session).splitlines(keepends=True)[0]
    stream = Endless(head + b'{"record":"external_session","session_name":"' + b"x" * 1_000_000)
    with pytest.raises(Corrupt, match="Line 2 of the export is longer than 10000 bytes"):
        list(lines.read_lines(stream))
    assert Endless.longest == 10_001


def test_a_file_changed_during_its_import_is_refused(exports, target):
    repo, workspace = target
    repo.session("other", create=True)
    other = written(repo, "other")

    class Changing(BytesIO):
        times = 0

        def seek(self, *where):
            self.times += 1
            if self.times == 2:
                super().seek(0)
                self.truncate()
                self.write(other)
            return super().seek(*where)

    before = seen(repo, workspace)
    changing = Changing(exports(a_session))
    whole = check_export(changing)
    with pytest.raises(Corrupt, match="changed while it was read"):
        backend.write(repo, lambda c: import_session(c, repo.context.store, repo.user.id, changing, None, whole, {}))
    assert seen(repo, workspace) == before


def test_a_session_with_the_largest_numbers_can_continue(repo, exports):
    def great(found):
        change("checkpoint", -1, number=MAX_COUNT)(found)
        change("call", -1, arrival=MAX_COUNT, batch=MAX_COUNT)(found)
        change("log", -1, seq=MAX_COUNT)(found)

    made = repo.import_(forged(exports(a_session), great))
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


def test_an_imported_unsealed_value_never_reaches_the_inner_serializer(exports, target):
    repo, _ = target
    hostile = value("serde", b"msgpack\0" + ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((__name__, "called", 1)))))

    def add(found):
        at = found.index(of(found, "value")[0])
        found[at:at] = [hostile]
        hashes = {"": ""}
        for state in of(found, "state"):
            old = state["state_hash"]
            set_channels(state, unpack(bytes.fromhex(state["channels"])) | {"x": bytes.fromhex(hostile["hash"])})
            hashes[old] = state["state_hash"]
        for checkpoint in of(found, "checkpoint"):
            checkpoint["state_hash"] = hashes[checkpoint["state_hash"]]

    imported = repo.import_(forged(exports(a_session), add)).session
    serde = EncryptedSerializer(Cipher())
    saver = SQLModelSaver(backend.database(repo), serde=serde, sessions=True)
    (thread,) = {branch.langgraph_session_id for branch in repo.session(imported).branches() if branch.is_current}
    with pytest.raises(Corrupt, match="not sealed"):
        saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    assert CALLED == []
