"""Encrypted payloads and secrets in the configuration are not readable in a database."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from cryptography.fernet import Fernet
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, ToolRuntime, tools_condition
from langgraph.types import Command, interrupt
from saver_checkpoints import on, total
from scripted import call, calls, scripted
from sqlalchemy import select

from agentgit import SQLModelSaver
from agentgit.demo import ScriptedModel
from agentgit.store.objects.blobs import BlobStore
from agentgit.store.sql.tables import BLOB, METADATA

HUSH, SECRET = "hush-hush", Fernet.generate_key()


def everything(database) -> bytes:
    """Return all values of all tables, with blobs also unpacked, and on SQLite also the bytes of the files."""
    with database.reading() as transaction:
        found = [
            value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
            for table in METADATA.sorted_tables
            for row in transaction.execute(select(table))
            for value in row
        ]
        keys = select(BLOB.c.hash, BLOB.c.external_session_id)
        for key, session in transaction.execute(keys).all():
            found.append(BlobStore().of(session).get_many(transaction, [key])[key].data)
    if database.is_sqlite:
        path = Path(database.url.database)
        found += [file.read_bytes() for file in path.parent.glob(f"{path.name}*")]
    return b"\0".join(found)


class Cipher:
    """A cipher for LangGraph's `EncryptedSerializer`."""

    def __init__(self) -> None:
        self.fernet = Fernet(SECRET)

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "fernet", self.fernet.encrypt(plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "fernet"
        return self.fernet.decrypt(ciphertext)


def encrypted() -> EncryptedSerializer:
    return EncryptedSerializer(Cipher(), JsonPlusSerializer(allowed_msgpack_modules=None))


class Full(TypedDict):
    """A state with a value of every shape."""

    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], DeltaChannel(total, snapshot_frequency=3)]
    facts: dict[str, Any]
    notes: list[str]


@tool
def whisper(text: str) -> str:
    """Ask a question and return its answer, or fail."""
    if text.startswith("fail"):
        raise RuntimeError(f"{HUSH} failure")
    return f"{HUSH} {interrupt(f'{HUSH} question')}"


def secretive(saver):
    model = scripted(call("whisper", text=f"{HUSH} 1"), f"{HUSH} answer", call("whisper", text=f"fail {HUSH}"))

    def ask(state):
        said = model.invoke(state["messages"])
        return {"messages": [said], "log": [f"{HUSH} log"], "facts": {HUSH: {HUSH}, "b": HUSH}, "notes": [HUSH] * 3}

    builder = StateGraph(Full).add_node("model", ask).add_node("tools", ToolNode([whisper], handle_tool_errors=False))
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def talk(saver):
    """Run graphs that store the secret in every way, and return the stored states."""
    graph, said = secretive(saver), {"messages": [("user", f"{HUSH} please")]}
    graph.invoke(said, on("t"))
    assert [asked.value for asked in graph.get_state(on("t")).interrupts] == [f"{HUSH} question"]
    graph.invoke(Command(resume=f"{HUSH} reply"), on("t"))
    with pytest.raises(RuntimeError):
        graph.invoke(said, on("t"))
    assert HUSH in str(graph.get_state(on("t")).tasks[0].error)
    graph.update_state(on("t"), {"messages": [HumanMessage(f"{HUSH} edit")]}, as_node="tools")
    saver.copy_thread("t", "copy")

    @entrypoint(checkpointer=saver)
    def remember(text, *, previous=None):
        return entrypoint.final(value=text, save={"messages": [HumanMessage(text)], "more": previous})

    remember.invoke(f"{HUSH} one", on("f"))
    remember.invoke(f"{HUSH} two", on("f"))
    return [[state.values for state in graph.get_state_history(on(thread))] for thread in ("t", "copy")]


def test_an_encrypted_payload_is_stored_nowhere_in_clear_text(database):
    states = talk(SQLModelSaver(database, serde=encrypted(), compression="none"))
    stored = everything(database)
    assert b"fernet" in stored
    assert HUSH.encode() not in stored
    fresh = secretive(SQLModelSaver(database, serde=encrypted()))
    found = [[state.values for state in fresh.get_state_history(on(thread))] for thread in ("t", "copy")]
    assert found == states


def test_without_encryption_the_same_values_are_in_clear_text(database):
    """So the test above looks in the right places."""
    talk(SQLModelSaver(database, compression="none"))
    assert everything(database).count(HUSH.encode()) > 20


@dataclass
class Access:
    """The context of a graph."""

    token: str


@tool
def use_config(item: str, config: RunnableConfig) -> str:
    """Use what the caller configured."""
    assert config["configurable"]["api_key"] == HUSH
    return f"used for {item}"


@tool
def use_runtime(item: str, runtime: ToolRuntime[Access, Any]) -> str:
    """Use the runtime, which has the config and the context."""
    assert runtime.context.token == HUSH
    return f"used for {item}"


def using(checkpointer=None):
    """Build a graph whose tools use secrets of the caller, with a subgraph."""

    def rule(messages):
        asks = isinstance(messages[-1], HumanMessage)
        return calls(call("use_config", item="a"), call("use_runtime", item="b")) if asks else AIMessage("done")

    model = ScriptedModel(rule=rule)
    inner = StateGraph(Full).add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder = StateGraph(Full, context_schema=Access)
    builder.add_node("model", inner.add_edge(START, "model").compile())
    builder.add_node("tools", ToolNode([use_config, use_runtime], handle_tool_errors=False))
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    return builder.compile(checkpointer=checkpointer)


CONFIG = {
    "configurable": {"api_key": HUSH, "openai_api_key": HUSH, "token": HUSH, "headers": {"Authorization": HUSH}},
    "tags": ["mine"],
}
HOW = {"context": Access(HUSH)}
SAID = {"messages": [("user", "go")]}


@pytest.mark.filterwarnings("ignore::agentgit.errors.UnownedCall")  # a worker thread of the turn runs the plain graph
async def test_secrets_in_the_config_are_stored_in_no_table(repo, database):
    agent = repo.wrap(using(), "s")
    agent.invoke(SAID, CONFIG, **HOW)
    list(agent.stream(SAID, CONFIG, **HOW))
    agent.update_state(CONFIG, {"notes": ["x"]})
    back = await agent.arollback("main#1")
    await back.ainvoke(SAID, CONFIG, **HOW)
    assert {each.tool_name for each in back.tool_track()} == {"use_config", "use_runtime"}
    graph = using(SQLModelSaver(database, compression="none"))
    alone = {**CONFIG, "configurable": {**CONFIG["configurable"], **on("alone")["configurable"]}}
    for durability in ("sync", "async", "exit"):
        await graph.ainvoke(SAID, alone, durability=durability, **HOW)
    graph.update_state(alone, {"notes": ["x"]})
    stored = everything(database)
    assert b"used for a" in stored
    assert HUSH.encode() not in stored
