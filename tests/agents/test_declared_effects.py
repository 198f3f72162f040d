"""Precedence, validation and recording of declared effects, and repeated calls of a tool."""

import asyncio
import hashlib
import sys
from datetime import date
from typing import Annotated

import backend
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel, Field
from pydantic.v1 import BaseModel as OldModel
from pydantic.v1 import Field as OldField
from scripted import call, calls, functional_graph, nested_graph, scripted, tool_node_graph

import agentgit
from agentgit import InvalidInput, NotDone, NotFound, RollbackBlocked, compensable, effect, reversible


def undo(args, result): ...


def was_made(invocation): ...


def wrapped(repo, *tools, session="s", replies=("ok",), **more):
    return repo.wrap(tool_node_graph(scripted(*replies), tools), session, **more)


def the_runner(agent, name: str):
    """Return the function that repeats a call of an agent's tool."""
    return backend.runner(agent.session, name)


# -- precedence


def test_the_most_specific_declaration_wins(database, world):
    """Wrap overrides a tool's decorator, which overrides the repository's entry, which overrides `*`."""

    @tool
    @effect("idempotent")
    def own() -> str:
        """Do something."""
        return "done"

    named = {"own": "read_only", "note": "irreversible", "look": "read_only", "*": "irreversible"}
    with agentgit.open(database.url, effects=named) as repo:
        tools = [own, *(world.tool(name) for name in ("note", "look", "send", "charge"))]
        checkpoint_tools = wrapped(repo, *tools).checkpoint_tools()  # have no effect
        effects = {"note": "idempotent", "charge": compensable(world.refund)}
        agent = wrapped(repo, *tools, *checkpoint_tools, effects=effects)
        assert agent.effects == {
            "charge": "compensable", "look": "read_only", "note": "idempotent", "own": "idempotent",
            "send": "irreversible",
        }  # fmt: skip
        assert "undeclared" not in repr(agent)


def test_repository_defaults_are_recorded_and_undone(database, world):
    """A repository default counts as a declaration, also for tools the graph does not expose."""
    defaults = {"add": reversible(world.remove), "look": "read_only", "*": "irreversible"}
    with agentgit.open(database.url, effects=defaults) as repo:
        graph = functional_graph(scripted(call("add", item="a"), "ok", call("send", text="b"), "ok"), world.tools())
        agent = repo.wrap(graph, "s")
        agent.run("one")
        agent.run("two")
        assert [c.effect for c in agent.tool_track()] == ["reversible", "irreversible"]
        with pytest.raises(RollbackBlocked, match="cannot be undone"):
            agent.rollback("main#1")
        agent.rollback("main#1", force=True)
        assert (world.items, world.sent) == ([], ["b"])


def test_invalid_defaults_are_refused_before_a_file_is_made(tmp_path):
    with pytest.raises(InvalidInput, match="not an effect"):
        agentgit.open(tmp_path / "x.db", effects={"*": "harmless"})
    assert not (tmp_path / "x.db").exists()


def test_undeclared_tools_are_listed(repo, world):
    effects = {name: declared for name, declared in world.effects().items() if name != "send"}
    agent = wrapped(repo, *world.tools(), replies=[call("note", text="x"), "ok"], effects=effects)
    agent.run("go")
    assert {name for name, kind in agent.effects.items() if kind == "undeclared"} == {"note", "send"}
    assert "undeclared=['note', 'send']" in repr(agent)
    assert "not declared when it was called" in str(agent.plan_rollback("main#1"))


def test_a_decorated_namesake_does_not_declare_a_graphs_tool(repo):
    @effect("read_only")
    def store(what: str) -> str:
        """Look into the store."""
        return what

    @tool("store")
    def really_stores(what: str) -> str:
        """Store."""
        return what

    agent = wrapped(repo, really_stores, replies=[call("store", what="x"), "ok"])
    agent.run("go")
    assert [c.effect for c in agent.tool_track()] == ["undeclared"]


# -- refused declarations


@pytest.mark.parametrize(
    ("effects", "error", "says"),
    [
        ({"charge": effect("irreversible", identity_args=["amont"])}, InvalidInput, "no argument amont; it has amount"),
        ({"charge": reversible("no.such:undo")}, NotFound, r"charge.*no\.such:undo"),
        ({"charge": reversible("agentgit:nothing")}, NotFound, "charge.*agentgit:nothing"),
        ({"charge": reversible("agentgit:__version__")}, InvalidInput, "charge.*not a function"),
        ({"charge": reversible(f"{__name__}:was_made")}, InvalidInput, "charge.*args, result"),
        ({"charge": reversible(undo, verify="no.such:look")}, NotFound, r"verify"),
        ({"charge": reversible(undo, precheck="no.such:look")}, NotFound, r"precheck"),
        ({"*": "irreversible"}, InvalidInput, r"agentgit\.open"),
        ({"chrage": "irreversible"}, InvalidInput, "has no tool chrage"),
        ([], InvalidInput, "must be a mapping"),
    ],
)
def test_declarations_that_do_not_fit_are_refused_at_wrap(repo, world, effects, error, says):
    with pytest.raises(error, match=says):
        wrapped(repo, world.tool("charge"), effects=effects)
    assert repo.sessions() == []


def test_identity_arguments_are_checked_in_every_schema(repo):
    """The names are those under which the tool gets its arguments; an open schema accepts any argument."""

    class Sent(BaseModel):
        to: str = Field(alias="recipient")

    aliased = tool("aliased", args_schema=Sent, description="d")(lambda to: to)
    closed = {"type": "object", "properties": {"id": {"type": "string"}}}
    shut = tool("shut", args_schema=closed, description="d")(lambda id: id)
    free = tool("free", args_schema=closed | {"additionalProperties": True}, description="d")(lambda **all: all)

    class Old(OldModel):
        to: str = OldField(alias="recipient")

    class OldFree(OldModel, extra="allow"):
        to: str

    old = tool("old", args_schema=Old, description="d")(lambda to: to)
    old_free = tool("old_free", args_schema=OldFree, description="d")(lambda **all: all)
    once = effect("irreversible", identity_args=["recipient"])
    for accepted in (free, old_free):
        assert wrapped(repo, accepted, effects={accepted.name: once}).effects == {accepted.name: "irreversible"}
    for refused, names in ((shut, "id"), (aliased, "to"), (old, "to")):
        with pytest.raises(InvalidInput, match=f"no argument recipient; it has {names}"):
            wrapped(repo, refused, session="t", effects={refused.name: once})


def test_two_different_tools_of_one_name_are_declared_by_their_places(repo):
    @tool("send")
    @reversible(undo)
    def one(to: str) -> str:
        """Send."""
        return to

    @tool("send")
    def two(to: str) -> str:
        """Send."""
        return to

    first, second = (tool_node_graph(scripted("ok"), [made]) for made in (one, two))
    builder = StateGraph(MessagesState).add_node("first", first).add_node("second", second)
    builder.add_edge(START, "first").add_edge("first", "second")
    graph = builder.compile()
    with pytest.raises(InvalidInput, match=r"several tools called send: first\.send, second\.send"):
        repo.wrap(graph, "s", effects={"send": "irreversible"})
    assert repo.wrap(graph, "s").effects == {"first.send": "reversible", "second.send": "undeclared"}
    for effects in ({"second.send": "irreversible"}, {"second.send": "read_only", two.func: "read_only"}):
        with_effects = repo.wrap(graph, "s", effects=effects).effects
        assert with_effects == {"first.send": "reversible", "second.send": effects["second.send"]}
    agent = repo.wrap(graph, "s", effects={"second.send": "irreversible", "send": "idempotent"})
    assert agent.effects == {"first.send": "idempotent", "second.send": "irreversible"}
    with pytest.raises(NotFound, match="which one"):
        the_runner(agent, "send")


# -- recorded fields


def test_identity_verify_and_precheck_are_recorded(repo, world):
    pay = compensable(f"{__name__}:undo", identity_args=["amount"], verify=f"{__name__}:was_made", precheck=was_made)
    replies = [calls(call("charge", amount=5), call("add", item="x")), "ok"]
    agent = wrapped(repo, *world.tools(), replies=replies, effects=world.effects(charge=pay))
    agent.run("go")
    charge, add = agent.tool_track()
    assert charge.identity == hashlib.sha256(b'["charge",[["amount",5]]]').hexdigest()
    assert (charge.undo, charge.verify, charge.precheck) == (
        f"{__name__}:undo", f"{__name__}:was_made", f"{__name__}:was_made",
    )  # fmt: skip
    assert (add.identity, add.verify, add.precheck) == (None, None, None)


# -- repeated calls


def test_a_call_is_repeated_outside_and_inside_a_turn_and_not_recorded(repo, world):
    """A repeated call returns the same kind of value as in a turn."""
    agent = None

    @tool
    def again() -> str:
        """Call `add` again."""
        the_runner(agent, "add")({"item": "x"})
        return "done"

    model = scripted(call("add", item="a"), call("again"), "ok")
    agent = repo.wrap(nested_graph(model, [*world.tools(), again]), "s", effects=world.effects())
    agent.run("go")
    made, again_made = agent.tool_track()
    assert (again_made.tool_name, world.items) == ("again", ["a", "x"])
    assert the_runner(agent, "add")(made.args) == {"item": "a", "number": 3}
    assert asyncio.run(the_runner(agent, "add_later")({"item": "b"})) == {"item": "b", "number": 4}
    assert len(agent.tool_track()) == 2


def test_a_repeated_call_parses_arguments_and_returns_artifacts(repo):
    @tool(response_format="content_and_artifact")
    def book(on: date, seats: int = 2) -> tuple[str, dict]:
        """Book."""
        return "booked", {"on": on, "seats": seats}

    class Ask(BaseTool):
        name: str = "ask"
        description: str = "Ask."

        def _run(self, what: str) -> str:
            raise NotImplementedError

        async def _arun(self, what: str) -> str:
            return what.upper()

    agent = wrapped(repo, book, Ask())
    assert the_runner(agent, "book")({"on": "2026-01-02"}) == ["booked", {"on": "2026-01-02", "seats": 2}]
    assert asyncio.run(the_runner(agent, "ask")({"what": "who"})) == "WHO"


def test_a_repeated_call_raises_its_error(repo):
    @tool
    def refuse(n: int) -> str:
        """Refuse."""
        raise ToolException("no")

    refuse.handle_tool_error = refuse.handle_validation_error = True
    agent = wrapped(repo, refuse)
    with pytest.raises(ToolException, match="no"):
        the_runner(agent, "refuse")({"n": 1})
    with pytest.raises(NotDone, match="its tool was not called: ValidationError"):
        the_runner(agent, "refuse")({"n": "x"})
    assert refuse.handle_tool_error is True


def test_a_tool_that_needs_graph_state_cannot_be_repeated(repo):
    """An injected state is not in the record, so the call is refused; an injected call id is new each time."""

    @tool
    def with_state(x: int, state: Annotated[dict, InjectedState]) -> int:
        """Look at the state."""
        return x

    @tool
    def with_id(x: int, call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Return the id of the call."""
        return call_id

    agent = wrapped(repo, with_state, with_id)
    with pytest.raises(NotFound, match="gets state from its graph"):
        the_runner(agent, "with_state")
    first, second = (the_runner(agent, "with_id")({"x": 1}) for _ in range(2))
    assert first != second


# -- MCP


def test_mcp_annotations_make_effects_stricter(repo, world):
    """They override `read_only` and `state`, and never make an effect less strict."""
    note, look, send, add = (world.tool(name) for name in ("note", "look", "send", "add"))
    note.metadata, look.metadata = {"destructiveHint": True}, {"readOnlyHint": False}
    send.metadata = {"annotations": {"readOnlyHint": True}}
    agent = wrapped(repo, note, look, send, effects={"look": "read_only"})
    assert agent.effects == {"note": "irreversible", "look": "undeclared", "send": "undeclared"}
    for hints, kind in (
        ({"readOnlyHint": False}, "undeclared"),
        ({"readOnlyHint": True}, "state"),
        ({"destructiveHint": True}, "irreversible"),
    ):
        add.metadata = hints
        assert wrapped(repo, add, session=kind, effects={"add": "state"}).effects == {"add": kind}


def test_mcp_annotations_apply_to_tools_the_graph_does_not_expose(repo, world):
    note = world.tool("note")
    note.metadata = {"mcp": {"tool": {"annotations": {"destructive_hint": True}}}}
    agent = repo.wrap(functional_graph(scripted(call("note", text="x"), "ok"), [note]), "s")
    agent.run("go")
    assert [c.effect for c in agent.tool_track()] == ["irreversible"]


SERVER = '''
from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations

server, files = FastMCP("files", log_level="ERROR"), {"a.txt": "A"}


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def read(name: str) -> str:
    """Read a file."""
    return files[name]


@server.tool(annotations=ToolAnnotations(readOnlyHint=False, destructiveHint=True))
def wipe(name: str) -> dict:
    """Wipe a file."""
    return {"wiped": files.pop(name)}


@server.tool()
def touch(name: str) -> str:
    """Make a file."""
    return files.setdefault(name, "")


server.run("stdio")
'''


@pytest.mark.long
async def test_tools_of_a_real_mcp_server_are_recorded_and_repeated(repo):
    client = pytest.importorskip("langchain_mcp_adapters.client", reason="langchain-mcp-adapters is not installed")
    server = {"transport": "stdio", "command": sys.executable, "args": ["-c", SERVER]}
    tools = await client.MultiServerMCPClient({"files": server}).get_tools()
    wanted = AIMessage("", tool_calls=[call("read", "1", name="a.txt"), call("wipe", "2", name="a.txt")])
    agent = wrapped(repo, *tools, replies=[wanted, "ok"], effects={"read": "read_only", "wipe": "read_only"})
    assert agent.effects == {"read": "read_only", "touch": "undeclared", "wipe": "irreversible"}
    await agent.arun("read and wipe")
    read, wipe = agent.tool_track()
    assert (read.effect, wipe.effect, wipe.status) == ("read_only", "irreversible", "done")
    content, _ = await the_runner(agent, "wipe")(wipe.args)  # a new server process, which has the file again
    assert "wiped" in content[0]["text"]
    with pytest.raises(RollbackBlocked, match="cannot be undone"):
        await agent.arollback("main#1")
