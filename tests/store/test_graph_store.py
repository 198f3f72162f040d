"""Graph checkpoints in the database: what is stored, its size, what is read back, and damaged rows."""

import gc

import backend
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from saver_checkpoints import BLOB, Cart, count, on, put, values

from agentgit import SQLModelSaver
from agentgit.errors import Corrupt
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE

# -- checkpoints


def test_only_an_unchanged_value_is_taken_from_the_parent(saver):
    first = put(saver, "t", {"a": "1", "b": object.__name__})
    before = count(saver.database, BLOB)
    parent = first["configurable"]["checkpoint_id"]
    second = put(saver, "t", {"a": "2", "b": object.__name__}, parent=parent, changed=["a"])
    assert count(saver.database, BLOB) == before + 1
    assert values(saver, second) == {"a": "2", "b": "object"}
    # Even if `new_versions` names no channel.
    third = put(saver, "t", {"a": "3"}, parent=parent, changed=[], version=2)
    assert values(saver, third) == {"a": "3"}
    for missing in (None, "gone"):
        assert values(saver, put(saver, "t", {"a": 1, "b": [2]}, parent=missing, changed=[])) == {"a": 1, "b": [2]}


def test_a_repeated_put_replaces_the_checkpoint_in_place(saver):
    first = put(saver, "t", {"a": 1}, id="1")
    put(saver, "t", {"a": 2}, id="2")
    assert put(saver, "t", {"a": 3}, id="1") == first
    assert values(saver, on("t", checkpoint_id="1")) == {"a": 3}
    assert values(saver, on("t")) == {"a": 2}
    assert len(list(saver.list(on("t")))) == 2


def test_the_newest_checkpoint_is_the_last_one_stored(saver):
    for id in ("5", "9", "3"):
        put(saver, "t", {"id": id}, id=id)
    assert saver.get_tuple(on("t")).checkpoint["id"] == "3"
    listed = saver.list(on("t", checkpoint_ns=""))
    assert [found.checkpoint["id"] for found in listed] == ["3", "9", "5"]
    older = saver.list(on("t", checkpoint_ns=""), before=on("t", checkpoint_id="9"))
    assert [found.checkpoint["id"] for found in older] == ["5"]
    with saver.database.reading() as transaction:
        assert saver.store.newest(transaction, "t").key.checkpoint_id == "3"


def test_sibling_checkpoints_keep_separate_values(saver):
    root = put(saver, "t", {"a": 0})["configurable"]["checkpoint_id"]
    one, two = (put(saver, "t", {"a": value}, parent=root, version=2) for value in ("one", "two"))
    three = put(saver, "t", {"a": "one", "b": 1}, parent=one["configurable"]["checkpoint_id"], changed=["b"], version=2)
    assert [values(saver, config)["a"] for config in (one, two, three)] == ["one", "two", "one"]


def test_versions_always_increase():
    with SQLModelSaver.from_conn_string(":memory:") as saver:
        version, foreign = None, InMemorySaver().get_next_version(None, None)
        for _ in range(50):
            for current in (version, foreign):
                following = {saver.get_next_version(current, None) for _ in range(3)}
                assert len(following) > 1
                assert current is None or all(each > current for each in following)
            version, foreign = saver.get_next_version(version, None), saver.get_next_version(foreign, None)


@pytest.mark.parametrize("name", ["'; DROP TABLE checkpoint; --", 'a"b', "a\\u0000", "\x00", "\ud800", "%_", "ü" * 300])
def test_hostile_names_are_stored_as_plain_text(saver, name):
    config = put(saver, name, {name: name}, ns=name, meta={name: 1})
    saver.put_writes(config, [(name, name)], "task", name)
    put(saver, "other", {"a": 1}, ns="x")
    found = saver.get_tuple(on(name, checkpoint_ns=name))
    assert found.config["configurable"]["thread_id"] == name
    assert found.checkpoint["channel_values"] == {name: name}
    assert found.pending_writes == [("task", name, name)]
    if name != "\x00":  # LangGraph removes U+0000 from metadata
        assert [each.config for each in saver.list(None, filter={name: 1})] == [found.config]
    saver.copy_thread(name, name + "2")
    saver.prune([name])
    saver.delete_thread(name)
    assert {each.config["configurable"]["thread_id"] for each in saver.list(None)} == {name + "2", "other"}


def test_list_returns_more_than_one_page(saver):
    for n in range(150):
        put(saver, f"t{n % 2}", {}, id=f"{n:03}", meta={"third": n % 3})
    assert [found.checkpoint["id"] for found in saver.list(None)] == [f"{n:03}" for n in reversed(range(150))]
    thirds = saver.list(None, filter={"third": 0}, limit=40)
    assert [found.checkpoint["id"] for found in thirds] == [f"{n:03}" for n in reversed(range(0, 150, 3))][:40]
    assert len(list(saver.list(on("t1", checkpoint_ns="")))) == 75
    assert list(saver.list(None, limit=0)) == []


def test_the_saver_can_write_during_an_unfinished_list(saver):
    for n in range(3):
        put(saver, "t", {"n": n})
    for found in saver.list(on("t")):
        put(saver, "other", found.checkpoint["channel_values"])
        break
    gc.collect()


def test_equal_states_have_equal_hashes(saver):
    talk = [HumanMessage("hi", id="1"), AIMessage("yes", id="2")]
    first = put(saver, "a", {"messages": talk[:1], "x": 1})["configurable"]["checkpoint_id"]
    put(saver, "a", {"messages": talk, "x": 1, "branch:to:n": None}, parent=first, changed=["messages"], version=1)
    put(saver, "b", {"x": 1, "messages": talk, "__start__": {"x": 1}})
    put(saver, "c", {"x": 2, "messages": talk})
    with saver.database.reading() as transaction:
        a, b, c = (saver.store.newest(transaction, thread) for thread in "abc")
    assert (a.state_hash, a.message_count) == (b.state_hash, 2)
    assert a.state_hash != c.state_hash


# -- reading without LangGraph


def test_state_and_messages_are_read_separately(saver):
    talk = [HumanMessage("hi", id="1"), AIMessage("yes", id="2")]
    config = put(saver, "t", {"messages": talk, "cart": Cart(["a"]), "empty": [], "__start__": 1, "branch:to:x": None})
    id = config["configurable"]["checkpoint_id"]
    with saver.database.reading() as transaction:
        state, messages = saver.store.read_state(transaction, "t", id)
        newest = saver.store.newest(transaction, "t")
        assert saver.store.messages(transaction, newest) == messages
        assert saver.store.messages(transaction, newest, last=1) == messages[1:]
        assert saver.store.messages(transaction, newest, last=0) == []
        assert saver.store.messages(transaction, newest, last=9) == messages
    assert state == {"cart": {"items": ["a"]}, "empty": []}
    assert [message["type"] for message in messages] == ["human", "ai"]


def test_the_conversation_is_found_in_another_channel(saver):
    for thread, held in (("a", {"x": [1], "talk": [HumanMessage("hi")]}), ("b", {"messages": ["text"], "log": []})):
        put(saver, thread, held)
    with saver.database.reading() as transaction:
        a, b = (saver.store.newest(transaction, thread) for thread in "ab")
        assert (a.message_count, b.message_count) == (1, 0)
        assert saver.store.read_state(transaction, "a", a.key.checkpoint_id)[0] == {"x": [1]}
        assert saver.store.read_state(transaction, "b", b.key.checkpoint_id) == ({"messages": ["text"], "log": []}, [])


def test_a_damaged_value_or_row_is_corrupt_when_read(saver):
    config = put(saver, "t", {"a": "some text"})
    fresh = SQLModelSaver(saver.database)
    row = "graph_checkpoint t//" + config["configurable"]["checkpoint_id"]
    for table, damage, named in ((BLOB, {"data": b'"other"'}, "blob "), (GRAPH_CHECKPOINT, {"header": b"{"}, row)):
        backend.change(saver.database, table.name, **damage)
        with pytest.raises(Corrupt) as caught:
            fresh.get_tuple(config)
        assert caught.value.row.startswith(named)


def test_delete_for_runs_also_deletes_writes(saver):
    for thread in ("a", "b"):
        for run in ("r1", "r2"):
            saver.put_writes(put(saver, thread, {"run": run}, meta={"run_id": run}), [("x", 1)], "task")
    saver.delete_for_runs(["r1"])
    assert [found.metadata["run_id"] for found in saver.list(None)] == ["r2", "r2"]
    assert count(saver.database, GRAPH_WRITE) == 2
