"""Checkpoints built by hand, and their plain JSON, become sessions without a graph."""

import io
import json
from datetime import UTC, datetime, timedelta, timezone

import backend
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from scripted import World, obedient, tool_node_graph
from sqlalchemy import func, select

from agentgit import Checkpoint, Conflict, InvalidInput, NotAllowed, NotFound

AT = datetime(2025, 5, 1, 12, tzinfo=UTC)
CONTENT = ("checkpoint_name", "session_state", "conversation_history", "is_auto", "created_at")


def content(checkpoint):
    return {name: getattr(checkpoint, name) for name in CONTENT}


def wrap(repo, session="s"):
    world = World()
    return repo.wrap(tool_node_graph(obedient(), world.tools()), session, effects=world.effects())


def plain(session):
    return json.dumps([checkpoint.to_dict() for checkpoint in session.checkpoints()]).encode()


def message(role, text, **more):
    return {"role": role, "content": text, "id": None, "tool_calls": [], "tool_call_id": None, **more}


def built(**fields):
    return Checkpoint(**{"checkpoint_name": "before payment", "created_at": AT, **fields})


def test_a_checkpoint_built_by_hand_is_stored_and_read_back_without_a_graph(repo):
    call = {"tool_name": "order", "args": {"n": 2}, "result": {"id": "o1"}, "tool_call_id": "c1"}
    made = built(
        session_state={"cart": ["chair", {"n": 2}], "total": 80.5, "done": None},
        conversation_history=[
            message("user", "order two chairs", id="m1"),
            message("assistant", "", id="m2", tool_calls=[{"id": "c1", "name": "order", "args": {"n": 2}}]),
            message("tool", "ordered", id="m3", tool_call_id="c1"),
        ],
        tool_invocations=[call],
        metadata={"ticket": 7, "description": "the cart is full", "tags": ["v1"]},
    )
    summary = repo.import_([made], session="by hand")
    assert (summary.checkpoints, summary.tool_calls, summary.session.session_name) == (1, 1, "by hand")
    session = repo.session("by hand")
    read = session.get_checkpoint("before payment")
    assert content(read) == content(made)
    assert {name: read.tool_invocations[0][name] for name in call} == call
    former = {"ticket": 7, "description": "the cart is full", "tags": ["v1"], "id": None}
    assert (read.metadata["data"], read.metadata["description"]) == ({"imported": former}, "the cart is full")
    assert read.id == session.get_checkpoint("main#1").id
    assert [hit.reference for hit in session.search("chairs")] == ["main#1"]
    assert repo.maintenance.fsck(3).is_sound


def test_a_graph_continues_from_an_imported_checkpoint(repo):
    made = built(conversation_history=[message("user", "hm", id="m1"), message("assistant", "done", id="m2")])
    repo.import_([built(checkpoint_name="empty", created_at=AT - timedelta(1)), made], session="s")
    agent = wrap(repo)
    agent.run("add table")
    assert [one["content"] for one in agent.history()][:3] == ["hm", "done", "add table"]
    assert [one["id"] for one in agent.history()][:2] == ["m1", "m2"]
    back = agent.rollback("before payment")
    assert [one["content"] for one in back.history()] == ["hm", "done"]
    assert agent.session.diff("empty", "before payment").to_dict()
    assert back.rollback("empty").history() == []
    assert repo.maintenance.fsck(3).is_sound


def test_stored_messages_have_the_bytes_that_a_graph_writes(repo):
    """An imported message is stored as LangChain would store it, so that a later turn does not change it."""
    agent = wrap(repo)
    agent.run("add chair")
    repo.import_([built(conversation_history=agent.history())], session="copy")
    other = wrap(repo, "copy")
    other.run("hm")
    diff = repo.session("copy").diff("main#1", "HEAD").to_dict()
    assert (diff["common_messages"], diff["removed_messages"]) == (len(agent.history()), [])
    assert len(other.history()) == len(agent.history()) + 2


@pytest.mark.parametrize(
    "original",
    [
        HumanMessage("hi", id="1"),
        SystemMessage("be kind"),
        AIMessage("ok", id="2", tool_calls=[{"name": "a", "args": {"n": 1}, "id": "c", "type": "tool_call"}]),
        ToolMessage("done", tool_call_id="c"),
    ],
)
def test_the_stored_form_of_a_message_is_that_of_langchain(original):
    """The fields of a stored message are those of LangChain, in its order; this fails if LangChain adds one."""
    from agentgit.saver.leaf_codec import stored_form
    from agentgit.sessions.messages import from_stored, to_stored

    stored = stored_form(original)
    assert json.dumps(to_stored(from_stored(stored))) == json.dumps(stored)


def test_the_checkpoints_of_a_session_go_back_into_its_database(repo):
    agent = wrap(repo)
    agent.run("add chair")
    agent.checkpoint("chair", description="one chair", data={"reward": 1.0})
    agent.run("add table")
    agent.rollback("chair").run("add lamp")
    session = repo.session("s")
    for branch in ("main", "main-2"):
        originals = session.checkpoints(branch=branch)
        file = io.BytesIO(json.dumps([one.to_dict() for one in originals]).encode())
        there = repo.session(repo.import_(file).session.session_name)
        assert there.name == ("imported" if branch == "main" else "imported-2")
        copies = there.checkpoints()
        assert [copy.metadata["data"]["imported"]["id"] for copy in copies] == [one.id for one in originals]
        assert not {copy.id for copy in copies} & {one.id for one in originals}
        for copy, one in zip(copies, originals, strict=True):
            assert content(copy) == content(one)
            for name in ("tool_name", "args", "result", "status", "effect", "started_at", "ended_at"):
                assert [call[name] for call in copy.tool_invocations] == [call[name] for call in one.tool_invocations]
            for name in ("description", "restore_point", "message_count", "tool_track_position"):
                assert copy.metadata[name] == one.metadata[name]
        if branch == "main":
            assert there.get_checkpoint("chair").metadata["data"]["reward"] == 1.0
        plan = there.plan_rollback("main#1")
        assert "\n  reverse " not in str(plan)
        assert "it was imported" in str(plan)
        there.export(io.BytesIO())
    assert repo.maintenance.fsck(3).is_sound


def test_an_import_of_an_import_names_the_newest_former_ids(repo):
    repo.import_([built(id=7, metadata={"data": 5})], session="a")
    repo.import_(repo.session("a").checkpoints(), session="b")
    (first,), (second,) = repo.session("a").checkpoints(), repo.session("b").checkpoints()
    assert (first.metadata["data"]["imported"]["id"], first.metadata["data"]["data"]) == (7, 5)
    assert second.metadata["data"]["imported"]["id"] == first.id
    assert "imported" not in second.metadata["data"]["imported"]


def test_an_id_of_another_users_session_says_nothing(repo):
    """An id that a checkpoint of a session has which the user cannot see is only a number in the metadata."""
    wrap(repo).run("add chair")
    ids = [one.id for one in repo.session("s").checkpoints()]
    bob = repo.as_user(repo.users.add("bob"))
    assert bob.import_([built(id=ids[0])]).checkpoints == 1
    assert [one.id for one in repo.session("s").checkpoints()] == ids


def test_checkpoints_are_sorted_by_time(repo):
    zone = timezone(timedelta(hours=5))
    made = [
        built(checkpoint_name=str(n), created_at=(AT + timedelta(hours=n)).astimezone(zone), session_state={"n": n})
        for n in (3, 1, 2)
    ]
    repo.import_(made, session="s")
    read = repo.session("s").checkpoints()
    assert [one.checkpoint_name for one in read] == ["1", "2", "3"]
    assert [one.session_state["n"] for one in read] == [1, 2, 3]
    assert read[0].created_at == AT + timedelta(hours=1)
    assert [one.checkpoint_name for one in repo.session("s").log().since(AT + timedelta(hours=2))] == ["3", "2"]


def rows(repo, table):
    with backend.reading(repo) as transaction:
        return transaction.execute(select(func.count()).select_from(backend.table(table))).scalar_one()


DEEP = "[" * 100_000 + "]" * 100_000
CALL = {"tool_name": "order", "args": {}}
LATER = AT + timedelta(seconds=1)
HOSTILE = {
    "empty": "[]",
    "not json": "[{",
    "not utf-8": b"[\xff]",
    "deep": DEEP,
    "deep state": '[{"session_state": {"a": ' + '{"a":' * 400 + "1" + "}" * 400 + "}}]",
    "numbers": "[1, 2]",
    "lists": "[[]]",
    "unknown": [{"name": "x", "data": {}}],
    "id as text": [{"id": "s:1"}],
    "flag as id": [{"id": True}],
    "no zone": [{"created_at": "2025-01-01T00:00:00"}],
    "no time": [{"created_at": "yesterday"}],
    "year 1": [{"created_at": "0001-01-01T00:00:00+00:00"}],
    "year 9999": [{"created_at": "9999-12-31T23:59:59-12:00"}],
    "empty name": [{"checkpoint_name": " "}],
    "long name": [{"checkpoint_name": "x" * 201}],
    "bad description": [{"metadata": {"description": ["x"]}}],
    "messages in state": [{"session_state": {"messages": []}}],
    "hidden channel": [{"session_state": {"__pregel_tasks": []}}],
    "branch channel": [{"session_state": {"branch:to:tools": None}}],
    "no role": [{"conversation_history": [{"content": "hi"}]}],
    "bad role": [{"conversation_history": [{"role": "root", "content": "hi"}]}],
    "role is no text": [{"conversation_history": [{"role": ["user"], "content": "hi"}]}],
    "bad content": [{"conversation_history": [{"role": "user", "content": 7}]}],
    "bad message id": [{"conversation_history": [{"role": "user", "content": "hi", "id": 7}]}],
    "bad calls": [{"conversation_history": [{"role": "assistant", "content": "", "tool_calls": ["order"]}]}],
    "calls are text": [{"conversation_history": [{"role": "assistant", "content": "", "tool_calls": "order"}]}],
    "call without args": [
        {"conversation_history": [{"role": "assistant", "content": "", "tool_calls": [{"name": "a", "args": 7}]}]}
    ],
    "result of nothing": [{"conversation_history": [{"role": "tool", "content": "x"}]}],
    "bad usage": [{"conversation_history": [{"role": "assistant", "content": "", "usage_metadata": "many"}]}],
    "call without name": [{"tool_invocations": [{"args": {}}]}],
    "call with list": [{"tool_invocations": [{**CALL, "args": [1]}]}],
    "bad status": [{"tool_invocations": [{**CALL, "status": "maybe"}]}],
    "status is no text": [{"tool_invocations": [{**CALL, "status": ["done"]}]}],
    "bad start": [{"tool_invocations": [{**CALL, "started_at": "noon"}]}],
    "start is a number": [{"tool_invocations": [{**CALL, "started_at": 5}]}],
    "lost calls": [
        {"created_at": AT.isoformat(), "tool_invocations": [CALL]},
        {"created_at": LATER.isoformat(), "tool_invocations": []},
    ],
    "other calls": [
        {"created_at": AT.isoformat(), "tool_invocations": [CALL]},
        {"created_at": LATER.isoformat(), "tool_invocations": [{**CALL, "tool_name": "pay"}]},
    ],
}


def test_tool_calls_of_a_users_message_are_ignored(repo):
    """Only an assistant's message requests calls; what another one has under that name is not read."""
    for calls in ([1], 5, "order", {"id": "c"}):
        history = [{"role": "user", "content": "a", "tool_calls": calls}]
        summary = repo.import_(io.BytesIO(json.dumps([{"conversation_history": history}]).encode()))
        assert (summary.checkpoints, summary.tool_calls) == (1, 0)


def refusal(repo, made):
    """Return the error of importing a bad file, which changes nothing."""
    data = made if isinstance(made, bytes) else made.encode() if isinstance(made, str) else json.dumps(made).encode()
    tables = ("external_session", "internal_session", "checkpoint", "blob", "tool_invocation", "graph_checkpoint")
    before = [rows(repo, table) for table in tables]
    try:
        repo.import_(io.BytesIO(data), session="s")
    except InvalidInput as refused:
        assert repo.sessions() == []
        assert [rows(repo, table) for table in tables] == before
        return str(refused)
    return "it was imported"


def test_a_bad_file_is_refused_and_changes_nothing(repo):
    refusals = {case: refusal(repo, made) for case, made in HOSTILE.items()}
    assert {case: text for case, text in refusals.items() if len(text) >= 600} == {}
    assert [case for case, text in refusals.items() if "Nothing was imported" not in text and case != "empty"] == []
    assert refusals["empty"] != "it was imported"
    repo.import_(io.BytesIO(json.dumps([built().to_dict()]).encode()), session="s")


def test_odd_but_valid_values_are_read_back(repo):
    """Lone surrogates, NUL, huge numbers, many calls of one message and unknown keys of messages survive."""
    calls = [{"id": f"c{n}", "name": "a", "args": {"n": n}} for n in range(3)]
    odd = "\ud800\0\u202e"
    made = [
        built(
            checkpoint_name=odd,
            session_state={odd: [2**80, -(2**70), 1e308], "": {"": []}},
            conversation_history=[
                message("user", [{"type": "text", "text": odd}, "x"], mine={"a": 1}),
                message("assistant", None, tool_calls=calls, usage_metadata={"input_tokens": 3}),
                *(message("tool", odd, tool_call_id=f"c{n}") for n in range(3)),
            ],
            tool_invocations=[
                {"tool_name": odd, "args": {"n": n}, "tool_call_id": f"c{n}", "effect": "from space", "result": odd}
                for n in range(3)
            ],
            metadata={"data": {"merged": {"checkpoint": 1}, "a": 1}, odd: odd},
        )
    ]
    data = json.dumps([one.to_dict() for one in made]).encode()
    repo.import_(io.BytesIO(b"\xef\xbb\xbf \n" + data), session="s")
    read = repo.session("s").get_checkpoint("main#1")
    assert read.session_state == made[0].session_state
    assert read.conversation_history[0]["content"] == made[0].conversation_history[0]["content"]
    assert [one["effect"] for one in read.tool_invocations] == ["undeclared"] * 3
    assert (read.metadata["data"]["a"], "merged" in read.metadata["data"]) == (1, False)
    assert read.metadata["data"]["imported"] == {odd: odd, "id": None}
    assert repo.maintenance.fsck(3).is_sound
    wrap(repo).run("hm")


def test_an_existing_session_and_foreign_rights_are_respected(repo):
    wrap(repo)
    with pytest.raises(Conflict, match="already exists"):
        repo.import_([built()], session="s")
    bob = repo.as_user(repo.users.add("bob"))
    bob.import_([built()], session="s")
    with pytest.raises(NotFound):
        bob.session(repo.session("s").id)
    reader = bob.authenticate(bob.keys.create("reading", scopes=["read"]).secret)
    with pytest.raises(NotAllowed):
        reader.import_([built()], session="other")
    with pytest.raises(InvalidInput):
        repo.import_(["not a checkpoint"])


def test_a_file_is_limited_in_size(repo, monkeypatch):
    from agentgit.store.transfer import plain_checkpoints

    monkeypatch.setattr(plain_checkpoints, "MAX_BYTES", 2**20)
    with pytest.raises(InvalidInput, match="larger than 1 MiB"):
        repo.import_(io.BytesIO(b"[" + b" " * 2**20 + b"]"))


def test_many_checkpoints_of_a_long_conversation_are_stored_once(repo):
    history = [message("user" if n % 2 else "assistant", f"text {n}", id=str(n)) for n in range(300)]
    made = [
        built(checkpoint_name=None, created_at=AT + timedelta(seconds=n), conversation_history=history[:n])
        for n in range(0, 300, 3)
    ]
    summary = repo.import_(made, session="s")
    assert (summary.checkpoints, summary.values) == (100, 297)
    assert [len(one.conversation_history) for one in repo.session("s").checkpoints()] == list(range(0, 300, 3))
    assert repo.maintenance.fsck(3).is_sound
