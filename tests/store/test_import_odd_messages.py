"""Imported messages and values of odd shape are refused with their line, or readable everywhere."""

from __future__ import annotations

import itertools
import json
from io import BytesIO
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from exports import forged, of, rows, written
from fastapi.testclient import TestClient
from langchain_core.messages import AIMessage, AnyMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

import agentgit
from agentgit import Corrupt, InvalidInput
from agentgit.store.objects.blobs import leaf, list_hash, pack, unpack
from agentgit.store.objects.packing import split_hashes
from agentgit.store.records.json_shapes import decode_bytes, encode_bytes
from agentgit.store.threads.graph_rows import hash_state
from agentgit.web import app


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: list[Any]
    odd: Any


CALL = {"name": "look", "args": {"at": ["shop"]}, "id": "c1", "type": "tool_call"}
SPENT = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 1}}
TALK = [
    SystemMessage("be kind", id="m0"),
    HumanMessage([{"type": "text", "text": "hello"}, "there"], id="m1", name="ann", mine=[1]),
    AIMessage("", id="m2", tool_calls=[CALL], usage_metadata=SPENT, response_metadata={"model_name": "m"}),
    ToolMessage("a shop", tool_call_id="c1", name="look", id="m3", artifact={"raw": 1}),
    AIMessage("done", id="m4", additional_kwargs={"seen": {1, 2}}), FunctionMessage("old", name="f", id="m5"),
]  # fmt: skip


def graph():
    """Return a graph that answers the first turn with `TALK` and the second with an interrupt."""

    def say(state: State) -> Any:
        if len(state["messages"]) > 1:
            return {"messages": [AIMessage(str(interrupt({"sure": [1]})))]}
        return {"messages": TALK, "notes": ["a", {"b": 1}, "x" * 500], "odd": (1, 2)}

    return StateGraph(State).add_node("say", say).add_edge(START, "say").compile()


@pytest.fixture(scope="module")
def export():
    """Return the export of a session with every kind of value and a pending interrupt."""
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(graph(), "s")
        agent.invoke({"messages": [("user", "hello")]})
        agent.invoke({"messages": [("user", "go on")]})
        yield written(repo, "s")


def kind_and_data(record):
    return record["type"], decode_bytes(record["data"])


def reforged(export, changes):
    """Replace values of an export, and update every hash that depends on them.

    Args:
        export: the original export.
        changes: the new type and bytes of each replaced value, by its position among the values.
    """
    names: dict[bytes, bytes] = {}

    def new(key):
        return names.get(key, key)

    def joined(hashes):
        return b"".join(map(new, split_hashes(bytes.fromhex(hashes)))).hex()

    def change(found):
        lists: dict[bytes, list[bytes]] = {}
        values = {id(record): n for n, record in enumerate(of(found, "value"))}
        for record in of(found, "blob"):
            old = bytes.fromhex(record["hash"])
            if record["type"] == "list":
                data = record["data"]
                items = [new(bytes.fromhex(key)) for key in data["items"]]
                base = data["base"] and new(bytes.fromhex(data["base"]))
                whole = [*lists.get(base or b"", [])[: data["keep"]], *items]
                names[old] = list_hash(whole)
                lists[names[old]] = whole
                record["data"] = {**data, "base": base and base.hex(), "items": [key.hex() for key in items]}
            else:
                n = values[id(record)]
                kind, data = changes.get(n) or kind_and_data(record)
                if kind == "record" and n not in changes:
                    data = pack({name: new(key) for name, key in unpack(data).items()})
                names[old] = leaf(kind, data).hash
                record.update(type=kind, data=encode_bytes(data))
            record["hash"] = names[old].hex()
        states: dict[str, str] = {"": ""}
        for record in of(found, "state"):
            channels = {name: new(key) for name, key in unpack(bytes.fromhex(record["channels"])).items()}
            states[record["state_hash"]] = hash_state(channels).hex()
            record.update(channels=pack(channels).hex(), state_hash=states[record["state_hash"]])
        for record in of(found, "write"):
            record["value"] = joined(record["value"])
        for record in of(found, "checkpoint"):
            record["state_hash"] = states[record["state_hash"]]
            for _, _, writes in record["pending"][0] if record["pending"] else ():
                for write in writes:
                    write[-1] = joined(write[-1])

    return forged(export, change)


def values_of(export):
    records = [json.loads(line) for line in export.splitlines()]
    return list(enumerate(map(kind_and_data, of(records, "value"))))


def read_everywhere(repo, name):
    """Read a session in every possible way; an exception fails the test."""
    session = repo.session(name)
    try:
        agent = repo.wrap(graph(), name)
        (
            str(agent.state),
            agent.messages,
            str(agent.session.log(branch=agent.branch_id)),
            str(agent.tree()),
            repr(agent.history()),
        )
        agent.get_state({"configurable": {}})
        list(agent.get_state_history())
    except InvalidInput as error:
        assert "another serializer" in str(error)  # noqa: PT017  # the graph needs it, and everybody else does not
    points = session.checkpoints()
    for point in points:
        json.dumps(point.to_dict())
        point._repr_html_()
    for one, other in itertools.pairwise([points[0], *points]):
        found = session.diff(one, other)
        json.dumps(found.to_dict()), str(found), found._repr_html_()
    str(session.compare("HEAD", "HEAD"))
    list(session.search("hello")), list(session.search("shop", all_branches=True))
    str(session.plan_rollback(points[0]))
    list(session.trajectories())
    repo.session().stats()
    again = BytesIO()
    session.export(again)
    repo.import_(BytesIO(again.getvalue()), session=f"{name} again")
    key = repo.keys.create(name).secret
    browser = TestClient(app(repo), base_url="https://git.example", cookies={"__Host-agentgit": key})
    at, ends = f"/sessions/{session.id}", f"a={points[0].id}&b={points[-1].id}"
    parts = [f"{at}/checkpoints/{point.id}" for point in points]
    pages = [at, *parts, f"{at}/search?text=shop", f"{at}/rollback?to=main%231", f"{at}/diff?{ends}"]
    api = [f"{at}{rest}" for rest in ("", "/tree", "/log", "/tool-track", "/search?text=hello", f"/diff?{ends}")]
    api += [f"{part}{rest}" for part in parts for rest in ("", "/messages", "/state", "/calls")]
    for way in (*pages, *(f"/api/v1{one}" for one in api)):
        answer = browser.get(way)
        assert answer.status_code == 200, (way, answer.text)


def taken(repo, file, name):
    """Import and read a file, or assert that its refusal names a line and stores nothing; return if it is accepted."""
    before, refusal = rows(repo), None
    try:
        repo.import_(file, session=name)
    except Corrupt as error:
        refusal = error
    if refusal is None:
        read_everywhere(repo, name)
        return True
    assert str(refusal).startswith("Line "), refusal
    assert rows(repo) == before
    return False


def places(value, way=()):
    inside = value.items() if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else ()
    for name, item in inside:
        yield (*way, name)
        yield from places(item, (*way, name))


def changed(value, way, odd):
    """Return a copy of a value with `odd` at a path, or without that path if `odd` is `...`."""
    made = at = json.loads(json.dumps(value))
    for name in way[:-1]:
        at = at[name]
    if odd is ...:
        del at[way[-1]]
    else:
        at[way[-1]] = odd
    return made


def deep(levels):
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


ODD = [
    ..., None, True, 7, -1, 1.5, 2**90, float("nan"), float("inf"), "", "x", "\0", "\ud800", "<b>",
    [], [7], [None], [[]], ["x"], {}, {"type": "text"}, {"text": 7}, {"x": None}, [{}], [{"id": []}],
    [{"name": "f", "args": {}, "id": {}}], [{"name": 7, "args": {}, "id": "c"}], [{"name": "f", "args": [], "id": "c"}],
    [{"type": "text"}], [{"type": "text", "text": [1]}], deep(200), deep(400), 10**4000,
]  # fmt: skip

EXTRAS = ("_fields_set", "cls", "self", "model_dump", "pretty_print", "tool_calls", "usage_metadata", "name")
"""Fields that are added to each message, although most kinds have none of them."""


def as_leaf(value):
    return "message+py", json.dumps(value).encode()


def mutants(export):
    """Yield changes of the messages of an export, each with an odd value in one field."""
    for n, (kind, data) in values_of(export):
        if kind in ("message", "message+py"):
            message = json.loads(data)
            for way in places(message):
                for odd in ODD:
                    if not (odd is ... and isinstance(way[-1], int)):
                        yield {n: as_leaf(changed(message, way, odd))}
            for name in EXTRAS:
                for odd in ODD[1::3]:
                    yield {n: as_leaf(changed(message, ("data", name), odd))}


def sent(value):
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


A_MESSAGE = ("langchain_core.messages.ai", "AIMessage", {"content": 7}, "model_validate_json")
A_FUNCTION = {"type": "human", "data": {"content": ormsgpack.Ext(0, sent(("os", "getcwd", "x")))}}

LEAVES = [
    ("null", b""), ("bytes", b"\xff\0"), ("serde", b"json\0x"), ("serde", b"\xff\0x"), ("serde", b""),
    ("json", b"7"), ("json", b'"x"'), ("json", b"{}"), ("json", b"[]"), ("json", b'{"type":7}'),
    ("json", b'{"type":"ai","tool_calls":[7]}'), ("json", b'{"type":"ai","content":7,"data":3}'),
    ("json", b"[" * 200 + b"]" * 200), ("json", b"[" * 700 + b"]" * 700), ("json+py", b"[" * 700 + b"]" * 700),
    ("json+py", b"NaN"), ("json+py", b'"\\ud800"'), ("json+py", b"1" * 4000),
    ("run", b"7"), ("run", b"{}"), ("run", b'{"a":1}'), ("run", b"null"), ("run", b'["a",7]'), ("run", b"[]"),
    ("run+py", b"[NaN]"),
    ("message", b'{"type":"human","data":{"content":"x"}}'), ("message", b'"x"'), ("message", b"{}"),
    ("message", b'{"type":"chat","data":{}}'), ("message", b'{"type":"AIMessageChunk","data":{"content":""}}'),
    ("message", b'{"type":"remove","data":{"id":"x","content":""}}'), ("message", b'{"type":"human","data":{}}'),
    ("message", b'{"type":"tool","data":{"content":"x"}}'), ("message", b'{"type":["ai"],"data":{}}'),
    ("message", b'{"type":"ai","data":[["content","x"]]}'),
    ("message+msgpack", sent(7)), ("message+msgpack", sent({"type": "ai"})), ("message+msgpack", sent(A_FUNCTION)),
    ("message+msgpack", sent({"type": "tool", "data": {"content": "x", "tool_call_id": 7}})),
    ("msgpack", sent({"type": "ai", "tool_calls": [7]})), ("msgpack", sent({"type": "ai", "content": 7})),
    ("msgpack", sent({"type": "tool", "content": "", "tool_call_id": []})),
    ("msgpack", sent({"type": "ai", "content": "", "id": {}})), ("msgpack", sent({7: 8})),
    ("msgpack", sent(ormsgpack.Ext(99, b"x"))), ("msgpack", sent(ormsgpack.Ext(5, sent(A_MESSAGE)))),
]  # fmt: skip


@pytest.fixture
def target():
    with agentgit.open(":memory:", user="ada") as repo:
        yield repo


def test_an_unmodified_export_is_imported_and_readable(export, target):
    """The export that the other tests change is accepted unchanged and after its records are rebuilt."""
    assert taken(target, BytesIO(export), "as it is")
    assert taken(target, reforged(export, {}), "to create it")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"type": "chat", "data": {"content": "x"}}, "type is not one of"),
        ({"type": "human"}, "no field 'data'"),
        ({"type": "human", "data": {}}, "no field 'content'"),
        ({"type": "human", "data": {"content": 7}}, "data content is neither"),
        ({"type": "tool", "data": {"content": "x"}}, "no field 'tool_call_id'"),
        ({"type": "ai", "data": [1]}, "data is not an object"),
        ({"type": "ai", "data": {"content": "", "tool_calls": [{}]}}, "data tool_calls has no field 'args'"),
        ({"type": "ai", "data": {"content": "", "_fields_set": []}}, "has a field '_fields_set'"),
        ({"type": "ai", "data": {"content": "", "type": "human"}}, "data type is not one of ai"),
        ({"type": "human", "data": {"content": "", "tool_calls": "x"}}, "cannot be read"),
    ],
)
def test_the_error_for_an_invalid_message_names_line_and_field(export, target, message, said):
    place = next(n for n, (kind, _) in values_of(export) if kind == "message")
    before = rows(target)
    with pytest.raises(Corrupt, match=rf"^Line \d+ of the export .*{said}"):
        target.import_(reforged(export, {place: as_leaf(message)}))
    assert rows(target) == before


def all_taken(export, all_changes):
    """Return the number of accepted changes and of all; each hundred has a new repository, to stay fast."""
    count, all_changes = [], iter(all_changes)
    while hundred := list(itertools.islice(all_changes, 100)):
        with agentgit.open(":memory:", user="ada") as target:
            count += [taken(target, reforged(export, changes), f"n{n}") for n, changes in enumerate(hundred)]
    return sum(count), len(count)


def odd_values(export):
    """Return changes that replace each value of an export, except records, by each of `LEAVES`."""
    places_ = [n for n, (kind, _) in values_of(export) if kind != "record"]
    return ({place: odd} for place, odd in itertools.product(places_, LEAVES))


@pytest.mark.long
def test_forged_messages_are_refused_or_readable(export):
    """A message with an odd value in any field is refused or readable; one of 14 changes is tried, for time."""
    count, n = all_taken(export, itertools.islice(mutants(export), 0, None, 14))
    assert 0 < count < n


@pytest.mark.long
def test_forged_values_are_refused_or_readable(export):
    """A value replaced by one of another type is refused or readable; one of three replacements is tried."""
    count, n = all_taken(export, itertools.islice(odd_values(export), 0, None, 3))
    assert 0 < count < n
