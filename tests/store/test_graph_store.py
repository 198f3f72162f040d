"""Graph checkpoints in the database: what is stored, what it costs, what is read back and what is refused."""

import gc

import backend
import pytest
from delta_graphs import chat, delta, said
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from puts import BLOB, Cart, blob_bytes, count, on, put, values
from sqlalchemy import update

from agentgit import SQLModelSaver
from agentgit.errors import Corrupt
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.threads.graph_store import GraphKey


@pytest.fixture
def saver(database):
    """A saver on a ready, empty database."""
    return SQLModelSaver(database)


# -- checkpoints


def test_a_value_that_did_not_change_is_taken_from_the_parent(saver):
    """What `new_versions` does not name is neither encoded nor stored again, and is read back."""
    first = put(saver, "t", {"a": "1", "b": object.__name__})
    before = count(saver.database, BLOB)
    parent = first["configurable"]["checkpoint_id"]
    second = put(saver, "t", {"a": "2", "b": object.__name__}, parent=parent, changed=["a"])
    assert count(saver.database, BLOB) == before + 1
    assert values(saver, second) == {"a": "2", "b": "object"}


@pytest.mark.parametrize("parent", [None, "gone"])
def test_without_the_parent_everything_is_stored(saver, parent):
    """A checkpoint whose parent is not there is complete all the same."""
    assert values(saver, put(saver, "t", {"a": 1, "b": [2]}, parent=parent, changed=[])) == {"a": 1, "b": [2]}


def test_a_version_that_the_parent_does_not_have_is_stored(saver):
    """A channel whose version differs from the parent's is stored although `new_versions` forgot it."""
    first = put(saver, "t", {"a": 1})
    second = put(saver, "t", {"a": 2}, parent=first["configurable"]["checkpoint_id"], changed=[], version=2)
    assert values(saver, second) == {"a": 2}


def test_putting_again_replaces_and_keeps_the_order(saver):
    """The same checkpoint id put twice is one checkpoint, with the second values, at its old place."""
    first = put(saver, "t", {"a": 1}, id="1")
    put(saver, "t", {"a": 2}, id="2")
    assert put(saver, "t", {"a": 3}, id="1") == first
    assert values(saver, on("t", checkpoint_id="1")) == {"a": 3}
    assert values(saver, on("t")) == {"a": 2}
    assert len(list(saver.list(on("t")))) == 2


def test_the_newest_is_the_last_that_came(saver):
    """A host whose clock is behind loses no turn: newest is what came last, in `get_tuple`, `list` and `head`."""
    for id in ("5", "9", "3"):
        put(saver, "t", {"id": id}, id=id)
    assert saver.get_tuple(on("t")).checkpoint["id"] == "3"
    listed = saver.list(on("t", checkpoint_ns=""))
    assert [found.checkpoint["id"] for found in listed] == ["3", "9", "5"]
    older = saver.list(on("t", checkpoint_ns=""), before=on("t", checkpoint_id="9"))
    assert [found.checkpoint["id"] for found in older] == ["5"]
    with saver.database.reading() as connection:
        assert saver.store.head(connection, "t").checkpoint_id == "3"


def test_siblings_keep_their_own_values(saver):
    """Two checkpoints made from the same one never see each other's values, though their versions are equal."""
    root = put(saver, "t", {"a": 0})["configurable"]["checkpoint_id"]
    one, two = (put(saver, "t", {"a": value}, parent=root, version=2) for value in ("one", "two"))
    three = put(saver, "t", {"a": "one", "b": 1}, parent=one["configurable"]["checkpoint_id"], changed=["b"], version=2)
    assert [values(saver, config)["a"] for config in (one, two, three)] == ["one", "two", "one"]


def test_versions_only_rise():
    """Each version is greater than the one before and unlike its siblings, also on a thread of another saver."""
    with SQLModelSaver.from_conn_string(":memory:") as saver:
        version, foreign = None, InMemorySaver().get_next_version(None, None)
        for _ in range(50):
            for current in (version, foreign):
                following = {saver.get_next_version(current, None) for _ in range(3)}
                assert len(following) > 1
                assert current is None or all(each > current for each in following)
            version, foreign = saver.get_next_version(version, None), saver.get_next_version(foreign, None)


def test_writes_are_kept_by_task_and_index(saver):
    """Storing a write again changes nothing, a special one replaces, and they come in the order of path and index."""
    config = put(saver, "t", {})
    saver.put_writes(config, [("a", 1), ("b", 2)], "task2", "~p, 2")
    saver.put_writes(config, [("a", "other")], "task2", "~p, 2")
    saver.put_writes(config, [("__interrupt__", ["first"])], "task1", "~p, 1")
    saver.put_writes(config, [("__interrupt__", ["second"])], "task1", "~p, 1")
    saver.put_writes(config, [("c", 3)], "task0", "~p, 3")
    assert saver.get_tuple(config).pending_writes == [
        ("task1", "__interrupt__", ["second"]),
        ("task2", "a", 1),
        ("task2", "b", 2),
        ("task0", "c", 3),
    ]


@pytest.mark.parametrize("name", ["'; DROP TABLE checkpoint; --", 'a"b', "a\\u0000", "\x00", "\ud800", "%_", "ü" * 300])
def test_hostile_names_are_only_names(saver, name):
    """A thread, namespace, channel, task path or metadata key may be any text, and is bound, never pasted."""
    config = put(saver, name, {name: name}, ns=name, meta={name: 1})
    saver.put_writes(config, [(name, name)], "task", name)
    put(saver, "other", {"a": 1}, ns="x")
    found = saver.get_tuple(on(name, checkpoint_ns=name))
    assert found.config["configurable"]["thread_id"] == name
    assert found.checkpoint["channel_values"] == {name: name}
    assert found.pending_writes == [("task", name, name)]
    if name != "\x00":  # LangGraph takes U+0000 out of metadata
        assert [each.config for each in saver.list(None, filter={name: 1})] == [found.config]
    saver.copy_thread(name, name + "2")
    saver.prune([name])
    saver.delete_thread(name)
    assert [each.config["configurable"]["thread_id"] for each in saver.list(None)] in (
        [name + "2", "other"],
        ["other", name + "2"],
    )


def test_list_filters_by_all_of_the_metadata(saver):
    """Filters join, compare values of any kind exactly, and find nothing that is missing."""
    for step in range(4):
        put(saver, "t", {}, meta={"step": step, "tags": ["a", step], "mine": {"deep": step % 2 == 0}})
    assert [found.metadata["step"] for found in saver.list(None, filter={"mine": {"deep": True}})] == [2, 0]
    assert [found.metadata["step"] for found in saver.list(on("t"), filter={"tags": ("a", 3)})] == [3]
    assert [found.metadata["step"] for found in saver.list(None, filter={"mine": {"deep": True}, "step": 0})] == [0]
    assert list(saver.list(None, filter={"nothing": 1})) == []
    assert list(saver.list(None, filter={"step": "1"})) == []


def test_list_pages_through_many(saver):
    """More than a page comes whole, in order, once each, with filter and limit across pages."""
    for n in range(150):
        put(saver, f"t{n % 2}", {}, id=f"{n:03}", meta={"third": n % 3})
    assert [found.checkpoint["id"] for found in saver.list(None)] == [f"{n:03}" for n in reversed(range(150))]
    thirds = saver.list(None, filter={"third": 0}, limit=40)
    assert [found.checkpoint["id"] for found in thirds] == [f"{n:03}" for n in reversed(range(0, 150, 3))][:40]
    assert len(list(saver.list(on("t1", checkpoint_ns="")))) == 75
    assert list(saver.list(None, limit=0)) == []


def test_a_list_may_be_left_and_written_during(saver):
    """Going through a list holds no lock: the saver writes meanwhile."""
    for n in range(3):
        put(saver, "t", {"n": n})
    for found in saver.list(on("t")):
        put(saver, "other", found.checkpoint["channel_values"])
        break
    gc.collect()


# -- what it costs


def test_storage_is_linear(saver):
    """A conversation of twice the length takes about twice the room, and each message is stored once."""
    talk, sizes, parent = [], [], None
    for n in range(400):
        talk.append(HumanMessage(f"message {n} " + "x" * 200, id=str(n)))
        config = put(saver, "t", {"messages": list(talk)}, parent=parent, version=n + 1)
        parent = config["configurable"]["checkpoint_id"]
        if n + 1 in (200, 400):
            sizes.append(blob_bytes(saver.database))
    assert sizes[1] < 2.3 * sizes[0]
    assert sizes[1] < 400 * 600
    assert values(saver, config)["messages"] == talk


def test_equal_states_have_equal_hashes(saver):
    """The state hash depends on what people see and on nothing else: not on the thread, the order or the way there."""
    talk = [HumanMessage("hi", id="1"), AIMessage("yes", id="2")]
    first = put(saver, "a", {"messages": talk[:1], "x": 1})["configurable"]["checkpoint_id"]
    put(saver, "a", {"messages": talk, "x": 1, "branch:to:n": None}, parent=first, changed=["messages"], version=1)
    put(saver, "b", {"x": 1, "messages": talk, "__start__": {"x": 1}})
    put(saver, "c", {"x": 2, "messages": talk})
    with saver.database.reading() as connection:
        a, b, c = (saver.store.head(connection, thread) for thread in "abc")
    assert (a.state_hash, a.message_count) == (b.state_hash, 2)
    assert a.state_hash != c.state_hash


# -- reading without LangGraph


def test_state_and_messages_are_read_apart(saver):
    """`read_state` gives JSON-like values without the messages and LangGraph's channels; `messages` only the last."""
    talk = [HumanMessage("hi", id="1"), AIMessage("yes", id="2")]
    config = put(saver, "t", {"messages": talk, "cart": Cart(["a"]), "empty": [], "__start__": 1, "branch:to:x": None})
    id = config["configurable"]["checkpoint_id"]
    with saver.database.reading() as connection:
        state, messages = saver.store.read_state(connection, "t", id)
        assert saver.store.messages(connection, "t", id) == messages
        assert saver.store.messages(connection, "t", id, last=1) == messages[1:]
        assert saver.store.messages(connection, "t", id, last=0) == []
        assert saver.store.messages(connection, "t", id, last=9) == messages
    assert state == {"cart": {"items": ["a"]}, "empty": []}
    assert [message["type"] for message in messages] == ["human", "ai"]


def test_the_conversation_is_found_under_another_name(saver):
    """Where no channel is called `messages`, the first list of messages is the conversation; no list is, if none is."""
    for thread, held in (("a", {"x": [1], "talk": [HumanMessage("hi")]}), ("b", {"messages": ["text"], "log": []})):
        put(saver, thread, held)
    with saver.database.reading() as connection:
        a, b = (saver.store.head(connection, thread) for thread in "ab")
        assert (a.message_count, b.message_count) == (1, 0)
        assert saver.store.read_state(connection, "a", a.checkpoint_id)[0] == {"x": [1]}
        assert saver.store.read_state(connection, "b", b.checkpoint_id) == ({"messages": ["text"], "log": []}, [])


def test_damage_is_found_when_it_is_read(saver):
    """A value or a row that was changed behind the library's back is Corrupt, and the error names it."""
    config = put(saver, "t", {"a": "some text"})
    fresh = SQLModelSaver(saver.database)
    saver.database.write(lambda connection: connection.execute(update(BLOB).values(data=b'"other"')))
    with pytest.raises(Corrupt) as caught:
        fresh.get_tuple(config)
    assert caught.value.row.startswith("blob ")
    saver.database.write(lambda connection: connection.execute(update(GRAPH_CHECKPOINT).values(header=b"{")))
    with pytest.raises(Corrupt) as caught:
        fresh.get_tuple(config)
    assert caught.value.row == "graph_checkpoint t//" + config["configurable"]["checkpoint_id"]


def test_delete_for_runs_takes_writes_along(saver):
    """Deleting a run takes its checkpoints and their writes in every thread, and nothing else."""
    for thread in ("a", "b"):
        for run in ("r1", "r2"):
            saver.put_writes(put(saver, thread, {"run": run}, meta={"run_id": run}), [("x", 1)], "task")
    saver.delete_for_runs(["r1"])
    assert [found.metadata["run_id"] for found in saver.list(None)] == ["r2", "r2"]
    assert count(saver.database, GRAPH_WRITE) == 2


def test_the_store_reads_the_end_of_a_spread_conversation(repo):
    """`messages(last=…)` gives the newest ones, at any graph checkpoint."""
    agent = repo.wrap(chat(delta(100)), "s")
    agent.invoke(said("q", "h"))
    with backend.reading(repo) as connection:
        graphs = repo.context.store.graphs
        head = graphs.head(connection, agent.branch.langgraph_session_id)
        at = graphs.find(connection, GraphKey(agent.branch.langgraph_session_id, "", head.checkpoint_id))
        assert "messages" in at.folded
        assert [one["data"]["id"] for one in graphs.messages_at(connection, at, 1)] == ["a1"]
