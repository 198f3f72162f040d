"""Model calls are stored like messages, once and encrypted; forks, exports and collections keep them."""

import backend
import pytest
from exports import carried
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from scripted import World, obeying, tool_node_graph
from sqlalchemy import delete

import agentgit
from agentgit import Keyring
from agentgit.demo import ScriptedModel
from agentgit.store.objects.blobs import BlobStore, NewValues, leaf
from agentgit.store.objects.content import Content
from agentgit.store.sql.tables import BLOB
from agentgit.store.threads import model_calls
from agentgit.store.threads.graph_rows import NewModelCall, NewModelCalls
from agentgit.testing import RecordedModel

PROMPT = "You are a zebrafish. " * 200
TOOL = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Open the door of the aquarium.",
        "parameters": {"type": "object", "properties": {"api_key": {"type": "string", "default": "sk-default"}}},
    },
}
REMOTE = {"type": "mcp", "server_url": "https://tools.example", "headers": {"X-Any": "sk-header"}, "api_key": "sk-tool"}


def chatting(model, prompt=PROMPT):
    return one_step(lambda state: [model.invoke([SystemMessage(prompt), *state["messages"]])])


def one_step(say):
    """Build a graph with one step, which calls a function with the state and adds the messages that it returns."""
    step = StateGraph(MessagesState).add_node("say", lambda state: {"messages": say(state)})
    return step.add_edge(START, "say").compile()


def answering():
    return ScriptedModel(rule=lambda messages: AIMessage(f"re: {messages[-1].content}"))


def talked(repo, turns=3, name="s", model=None):
    agent = repo.wrap(chatting(model or answering().bind(tools=[TOOL])), session=name)
    for number in range(turns):
        agent.run(f"message {number}")
    return agent


def blob_bytes(repo):
    with backend.reading(repo) as transaction:
        return transaction.connection.exec_driver_sql("SELECT sum(length(data) + 100) FROM blob").scalar_one()


def test_a_prompt_and_its_tools_are_stored_once(repo):
    agent = talked(repo, 1)
    grown = []
    for part in range(3):
        before = blob_bytes(repo)
        for number in range(30):
            agent.run(f"message {part} {number}")
        grown.append(blob_bytes(repo) - before)
    assert max(grown) < 1.2 * min(grown)
    assert max(grown) < 30 * 2_500
    with backend.reading(repo) as transaction:
        prompts = transaction.connection.exec_driver_sql("SELECT count(*) FROM blob WHERE size > 4000").scalar_one()
    assert prompts == 1


def test_a_checkpoint_comes_back_as_it_was_put(repo):
    model = answering()
    graph = one_step(lambda state: [AIMessage(interrupt(model.invoke(state["messages"]).content))])
    agent = repo.wrap(graph, session="s")
    agent.invoke({"messages": [("user", "hi")]})
    assert RecordedModel(agent).remaining == 1
    names = {"messages", "__start__", "branch:to:say"}
    for thread in backend.threads(repo):
        for found in backend.saver(repo).list({"configurable": {"thread_id": thread}}):
            assert set(found.checkpoint["channel_values"]) <= names
            assert {channel for _, channel, _ in found.pending_writes or ()} <= {*names, "__interrupt__"}
    agent.invoke(Command(resume="yes"))
    assert RecordedModel(agent).remaining == 2


def test_secrets_of_a_request_are_not_stored(repo):
    model = answering().bind(
        tools=[TOOL, REMOTE],
        tool_choice="auto",
        api_key="sk-param",
        extra_headers={"Authorization": "Bearer sk-extra"},
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    )
    agent = repo.wrap(chatting(model), session="s")
    agent.run("hi")
    text = backend.as_stored(repo)
    assert "open_door" in text
    assert "https://tools.example" in text
    assert "sk-" not in text
    asked = RecordedModel(agent).bind_tools(
        [TOOL, REMOTE], response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    )
    assert asked.invoke([SystemMessage(PROMPT), HumanMessage("hi")]).content == "re: hi"


def test_a_reply_is_stored_as_a_middleware_left_it(repo):
    def redact(state):
        return [model.invoke(state["messages"]).model_copy(update={"content": "[redacted]"})]

    model = ScriptedModel(replies=["my number is 12345"])
    agent = repo.wrap(one_step(redact), session="s")
    agent.run("hi")
    assert "12345" not in backend.as_stored(repo)
    assert RecordedModel(agent).invoke([HumanMessage("hi")]).content == "[redacted]"


def test_an_encrypted_database_stores_no_prompt_in_plain_text(database):
    with agentgit.open(database.url, keyring=Keyring({"one": Keyring.new_key()})) as repo:
        agent = talked(repo)
        text = backend.as_stored(repo)
        for secret in ("zebrafish", "aquarium", "open_door", "message 1"):
            assert secret not in text
        model = RecordedModel(agent)
        again, messages = chatting(model.bind_tools([TOOL])), []
        for number in range(3):
            messages = again.invoke({"messages": [*messages, ("user", f"message {number}")]})["messages"]
            assert messages[-1].content == f"re: message {number}"
        model.check_complete()


def test_model_calls_survive_a_collection_and_an_export(repo, tmp_path):
    agent = obeying(repo)
    texts = ("add chair; charge 5", "look", "thanks")
    for text in texts:
        agent.run(text)
    calls = RecordedModel(agent).remaining
    repo.maintenance.gc()
    assert repo.maintenance.fsck(level=3).findings == ()

    def check(session):
        model = RecordedModel(session)
        assert model.remaining == calls == 5
        again, messages = tool_node_graph(model, World().tools()), []
        for text in texts:
            messages = again.invoke({"messages": [*messages, ("user", text)]})["messages"]
        model.check_complete()

    check(agent)
    check(agent.fork(name="other"))
    with agentgit.open(tmp_path / "other.db") as target:
        carried(repo, "s", target)
        check(target.session("s"))
        assert target.maintenance.fsck(level=3).findings == ()
    copied = repo.session("copy", create=True, template=agent.head)
    check(copied)
    repo.session("s").delete(force=True)
    check(copied)


def test_calls_of_an_unfinished_step_survive_an_export(repo, tmp_path):
    def ask(state):
        plan = model.invoke([SystemMessage("Plan."), *state["messages"]])
        return [AIMessage(f"{plan.content} {interrupt('go?')}", id="a")]

    model = answering()
    graph = one_step(ask)
    agent = repo.wrap(graph, session="s")
    agent.invoke({"messages": [("user", "hi")]})
    with agentgit.open(tmp_path / "other.db") as target:
        carried(repo, "s", target)
        assert RecordedModel(target.session("s")).remaining == 1
        assert target.maintenance.fsck(level=3).findings == ()
        imported = target.wrap(graph, session="s")
        imported.invoke({"messages": [("user", "hi again")]})
        assert RecordedModel(imported).remaining == 2


def test_an_erased_session_leaves_no_prompt(repo):
    talked(repo)
    talked(repo, name="kept", model=answering())
    assert "open_door" in backend.as_stored(repo)
    repo.session("s").delete(force=True)
    repo.maintenance.gc()
    assert "open_door" not in backend.as_stored(repo)


def test_a_lost_prompt_is_found(lived_through):
    repo = lived_through(talked)
    with backend.reading(repo) as transaction:
        key = transaction.connection.exec_driver_sql("SELECT hash FROM blob WHERE size > 4000").scalar_one()
    backend.write(repo, lambda transaction: transaction.execute(delete(BLOB).where(BLOB.c.hash == key)))
    assert any(key.hex() in str(finding) for finding in repo.maintenance.fsck().findings)
    with pytest.raises(agentgit.Corrupt):
        RecordedModel(repo.session("s"))


def test_tools_that_run_again_keep_the_calls(repo, world):
    agent = obeying(repo, world)
    agent.run("look")
    world.items.append("news")
    retry = agent.rollback(agent.head, replay="execute", on_drift="continue")
    assert "news" in str(retry.messages())
    assert RecordedModel(retry).remaining == 2


@pytest.fixture(scope="module")
def memory():
    with agentgit.open(":memory:") as repo:
        yield repo


words = st.integers(0, 6)


@given(st.lists(st.tuples(st.lists(words, max_size=8), st.none() | words, words, st.booleans()), max_size=6), st.data())
def test_calls_are_read_as_they_were_stored(memory, plan, data):
    """Whatever is repeated, reordered or left out, and however the calls are cut into steps."""
    database = memory.context.store.database
    content = Content(BlobStore().of(1))
    texts = [leaf("message", b'{"type":"human","data":{"content":"%d"}}' % number) for number in range(7)]
    calls = [
        NewModelCall([texts[n] for n in messages], texts[options] if options is not None else None, texts[reply], is_in)
        for messages, options, reply, is_in in plan
    ]

    def work(transaction):
        hashes, position, step = None, 0, 0
        while position < len(calls):
            count = data.draw(st.integers(1, len(calls) - position))
            values = NewValues()
            part = NewModelCalls(step, calls[position : position + count])
            hashes = model_calls.encode(transaction, content, part, hashes, None, values)
            content.blobs.insert(transaction, values)
            position, step = position + count, step + 1
        return model_calls.read(transaction, content, hashes) if hashes is not None else []

    read = database.write(work)
    assert [one[1:] for one in read] == [([*m], o, r, t) for m, o, r, t in calls]
