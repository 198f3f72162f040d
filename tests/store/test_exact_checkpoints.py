"""A checkpoint comes back exactly as it was put, and equal to the one that LangGraph's InMemorySaver returns."""

import math
from copy import deepcopy
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import backend
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt
from saver_checkpoints import on
from sqlalchemy import select

import agentgit
from agentgit import SQLModelSaver
from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.sql.tables import GRAPH_CHECKPOINT

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
ID = UUID("1f1e79b0-81f4-6390-bffe-3be8f6144c9f")
REMOVED = object()


def checkpoint(values=None, **fields):
    """Return a checkpoint with these values, each with a version. A field that is REMOVED is left out."""
    values = {"a": 1} if values is None else values
    made = {
        "v": 4,
        "id": "1f1e79b0-81f4-6390-bffe-3be8f6144c9f",
        "ts": "2026-11-24T00:07:26.741014+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
        "versions_seen": {"__input__": {}, "node": {"a": 1}},
        "updated_channels": ["a"],
        **fields,
    }
    return {name: value for name, value in made.items() if value is not REMOVED}


def stored(saver, put, metadata, *, config=None, writes=()):
    config = config or {}
    where = on("t", checkpoint_ns="", **config.get("configurable", {}))
    named = saver.put({**config, **where}, deepcopy(put), metadata, put["channel_versions"])
    for task_id, path, pairs in writes:
        saver.put_writes(named, pairs, task_id, path)
    return saver.get_tuple(on("t"))


def typed(value):
    """Return a value with the types of all its parts, so that 1, 1.0 and True, or a list and a tuple, differ."""
    if isinstance(value, dict):
        return dict, {key: (type(key), typed(item)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    if isinstance(value, Send):
        return Send, typed([value.node, value.arg])
    return type(value), "nan" if isinstance(value, float) and math.isnan(value) else value


def assert_equal(ours, theirs):
    assert typed(tuple(ours)) == typed(tuple(theirs))


CHECKPOINTS = {
    "as LangGraph makes it": checkpoint(),
    "empty": checkpoint({}, versions_seen={}, updated_channels=[]),
    "no updated channels": checkpoint(updated_channels=None),
    "without the field of updated channels": checkpoint(updated_channels=REMOVED),
    "no pending sends": checkpoint(pending_sends=[]),
    "plain pending sends": checkpoint(v=2, pending_sends=[["node", {"x": 1}]]),
    "pending sends": checkpoint(v=2, pending_sends=[Send("node", {"messages": [HumanMessage("hi", id="1")]})]),
    "a field of a later version": checkpoint(v=9, later={"at": NOON, "n": 1}, plain=[1, None]),
    "the base class's empty checkpoint": {**empty_checkpoint(), "id": str(ID)},
    "versions of every kind": checkpoint(
        {"a": 1, "b": 2, "c": 3},
        channel_versions={"a": 1, "b": 2.5, "c": "0000003.25"},
        versions_seen={"n": {"a": 1.25}},
    ),
    "values in another order": checkpoint({"z": 1, "a": None, "m": "", "b": [], "c": {}}),
    "values of every kind": checkpoint(
        {
            "messages": [
                HumanMessage("hi", id="1"),
                AIMessage("", id="2", tool_calls=[{"name": "f", "args": {}, "id": "c"}]),
            ],
            "typed": {"when": NOON, "id": ID, "set": {1, 2}, "bytes": b"\0", "decimal": Decimal("1.10"), 3: (4, 5)},
            "numbers": [0, 0.0, -0.5, True, 2**53 + 1],
            "nested": [[], {}, [None], {"": ""}],
        }
    ),
}
METADATA = {
    "as LangGraph makes it": {"source": "loop", "step": 1, "parents": {}},
    "none": {},
    "parents of a subgraph": {"source": "input", "step": -1, "parents": {"": "1f1e79b0", "a:1": "1f1e79b1"}},
    "counters of a DeltaChannel": {"source": "loop", "step": 2, "counters_since_delta_snapshot": {"log": (1, 2)}},
    "plain values": {"none": None, "text": "", "n": 0, "x": 0.5, "yes": True, "list": [], "deep": {"a": [{"b": None}]}},
    "typed values": {"at": NOON, "id": ID, "set": {1}, "bytes": b"x", "tuple": (1, (2,)), "keys": {1: "a"}, "n": 1},
    "no number": {"nan": float("nan"), "infinite": [float("inf")]},
    "messages": {"writes": {"model": {"messages": [AIMessage("hi", id="1")]}}},
}  # fmt: skip


PUT = {name: (each, {"source": "loop"}) for name, each in CHECKPOINTS.items()}
PUT |= {f"metadata: {name}": (checkpoint(), each) for name, each in METADATA.items()}


@pytest.mark.parametrize("name", PUT)
def test_each_field_of_a_checkpoint_comes_back_as_it_was_put(database, name):
    put, metadata = PUT[name]
    ours = stored(SQLModelSaver(database), put, metadata)
    assert_equal(ours, stored(InMemorySaver(), put, metadata))
    assert ours.checkpoint.keys() == put.keys()
    assert list(ours.checkpoint["channel_values"]) == list(put["channel_values"])
    listed = next(SQLModelSaver(database).list(on("t")))
    assert typed(tuple(listed)) == typed(tuple(ours))


def test_metadata_of_any_type_survives_a_copy_and_an_encrypted_database(tmp_path):
    ring = agentgit.Keyring({"k": agentgit.Keyring.new_key()})
    with SQLModelSaver.from_conn_string(tmp_path / "a.db", keyring=ring) as saver:
        stored(saver, checkpoint(pending_sends=[Send("hush-hush", 1)]), {"said": {"hush-hush"}})
        saver.copy_thread("t", "copy")
        saver.copy_thread("empty", "nothing")
        copied, nothing = saver.get_tuple(on("copy")), saver.get_tuple(on("nothing"))
        assert "hush-hush" not in backend.as_stored(saver.database)
    assert nothing is None
    assert copied.metadata == {"said": {"hush-hush"}}
    assert copied.checkpoint["pending_sends"] == [Send("hush-hush", 1)]


def test_damaged_metadata_is_named(database):
    saver = SQLModelSaver(database)
    saver.put(on("t", checkpoint_ns=""), checkpoint({"__typed_fields__": [1]}), {"source": "loop"}, {})
    with pytest.raises(Corrupt, match="damaged metadata"):
        saver.get_tuple(on("t"))


def test_pending_writes_come_back_in_the_order_of_langgraph(database):
    writes = [
        ("task-b", "~__pregel_pull, b", [("a", 1), ("b", (2, NOON))]),
        ("task-a", "~__pregel_pull, c", [("a", None), ("c", [])]),
        ("task-c", "~__pregel_pull, a", [("__error__", "failed")]),
        ("task-c", "~__pregel_pull, a", [("__error__", "failed again")]),
        ("task-b", "~__pregel_pull, b", [("a", "ignored")]),
        ("task-d", "", [("__resume__", ["yes"]), ("x", {1: ID})]),
    ]
    ours, theirs = (
        stored(saver, checkpoint(), {"source": "loop"}, writes=writes)
        for saver in (SQLModelSaver(database), InMemorySaver())
    )
    assert_equal(ours, theirs)
    assert len(ours.pending_writes) == 7


INTEGERS = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=6,
)
ANY = PLAIN | st.recursive(
    st.datetimes(timezones=st.just(UTC)) | st.uuids() | st.binary() | st.dates() | st.decimals(allow_nan=False) | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.integers(0, 9), inner),
    max_leaves=4,
)
NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
VERSIONS = st.integers(1, 9) | st.floats(1, 9) | st.from_regex(r"0000\d\.\d{3}", fullmatch=True)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    values=st.dictionaries(NAMES, ANY, max_size=4),
    versions=st.data(),
    metadata=st.dictionaries(NAMES, ANY, max_size=4),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "pending_sends": st.lists(PLAIN | st.builds(Send, NAMES, PLAIN), max_size=2),
            "updated_channels": st.none() | st.lists(NAMES, max_size=3),
            "later": ANY,
        },
    ),
    configurable=st.dictionaries(NAMES, st.text("xyz\0") | INTEGERS | st.booleans() | st.lists(st.none())),
)
def test_any_checkpoint_equals_that_of_inmemorysaver(values, versions, metadata, fields, configurable):
    numbers = versions.draw(st.fixed_dictionaries(dict.fromkeys(values, VERSIONS)))
    put = {**checkpoint(values, channel_versions=numbers, updated_channels=REMOVED), **fields}
    config = {"configurable": configurable, "metadata": {"mine": "yes", "n": 1}}
    with SQLModelSaver.from_conn_string(":memory:") as saver:
        ours = stored(saver, put, metadata, config=config)
    assert_equal(ours, stored(InMemorySaver(), put, metadata, config=config))


def test_the_checkpoints_of_a_graph_equal_those_of_langgraphs_savers(database):
    ours = history_of(SQLModelSaver(database))
    assert ours == history_of(InMemorySaver())
    with SqliteSaver.from_conn_string(":memory:") as sqlite_saver:
        assert ours == history_of(sqlite_saver)
    assert {metadata["model"] for _, metadata, _, _ in ours} == {"small"}


def history_of(saver):
    inner = StateGraph(MessagesState).add_node("ask", lambda _: {"messages": [("ai", interrupt("ok?"))]})
    builder = StateGraph(MessagesState).add_node("first", lambda _: {"messages": []})
    builder.add_node("inner", inner.add_edge(START, "ask").compile())
    builder.add_edge(START, "first").add_edge("first", "inner")
    config = on("t", model="small", temperature=0.5, verbose=True, tools=["a"])
    builder.compile(checkpointer=saver).invoke(
        {"messages": [HumanMessage("hi", id="1")]}, {**config, "metadata": {"mine": "yes"}}, durability="sync"
    )
    found = []
    for each in saver.list(on("t")):
        metadata = {name: value for name, value in each.metadata.items() if name != "parents"}
        metadata["depth"] = len(each.metadata["parents"])
        found.append((sorted(each.checkpoint), metadata, each.checkpoint["updated_channels"], len(each.pending_writes)))
    return sorted(found, key=lambda one: (one[1]["depth"], -one[1]["step"]))


# -- settings that are not stored


def test_settings_are_metadata_except_secrets_and_excluded_names(database):
    saver = SQLModelSaver(database, exclude_metadata=["customer_email"])
    settings_ = {"model": "small", "n": 1, "on": True}
    settings_ |= {"customer_email": "a@b.c", "openaiApiKey": "sk", "headers": {"a": 1}}
    config = {"configurable": settings_, "metadata": {**settings_, "mine": "yes", "session_token": "t"}}
    found = stored(saver, checkpoint(), {"source": "loop"}, config=config).metadata
    assert found == {"source": "loop", "model": "small", "n": 1, "on": True, "mine": "yes"}


def test_a_name_excluded_at_open_is_stored_for_no_session(tmp_path):
    builder = StateGraph(MessagesState).add_node("n", lambda _: {"messages": [("ai", "hi")]}).add_edge(START, "n")
    config = {"configurable": {"plan": "gold", "customer_email": "hush@x"}}
    said = {"messages": [("user", "hi")]}
    with SqliteSaver.from_conn_string(str(tmp_path / "old")) as old:
        builder.compile(checkpointer=old).invoke(said, {"configurable": {**config["configurable"], "thread_id": "old"}})
    with agentgit.open(tmp_path / "a.db", exclude_metadata={"customer_email"}) as repo:
        agent = repo.wrap(builder.compile(), "s")
        agent.invoke(said, config)
        assert agent.get_state().metadata["plan"] == "gold"
        report = repo.import_langgraph(tmp_path / "old")
        assert report.threads[0].hidden == ("customer_email",)
        with repo.session("s")._context.store.database.reading() as transaction:
            rows = transaction.execute(select(GRAPH_CHECKPOINT.c.meta)).scalars().all()
    assert sum(b'"plan":"gold"' in meta for meta in rows) == len(rows) > 4
    assert not any(b"hush" in file.read_bytes() for file in tmp_path.glob("a.db*"))


@pytest.mark.parametrize("names", ["email", [1], [None, "a"]])
def test_names_to_exclude_are_a_list_of_names(tmp_path, names):
    """Bad input: a single string, which would be its letters, and other values are refused before anything is made."""
    for opened in (agentgit.open, SQLModelSaver.from_conn_string):
        with pytest.raises(InvalidInput, match="exclude_metadata"):
            opened(tmp_path / "a.db", exclude_metadata=names)
    assert list(tmp_path.iterdir()) == []
