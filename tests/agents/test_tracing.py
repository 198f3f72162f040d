"""Turns, calls, checkpoints and rollbacks have OpenTelemetry spans, and nothing is traced without it."""

import asyncio
import os
import subprocess
import sys

import faults
import points
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted import call, calls, obedient, scripted, tool_node_graph

from agentgit import RollbackIncomplete

SECRET = "nobody-may-read-this"  # noqa: S105  # the content that spans must not have


@pytest.fixture(scope="module")
def exporter():
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    yield found
    provider.shutdown()  # it cannot be replaced, but records nothing of other tests after this


@pytest.fixture
def told(exporter):
    """Return a function that returns the ended spans in the order in which they began."""
    exporter.clear()
    return lambda: sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)


def tree(found):
    """Return the name of each span with the name of its parent."""
    names = {span.context.span_id: span.name for span in found}
    return [(span.name, names.get(span.parent.span_id) if span.parent else None) for span in found]


@pytest.fixture
def agent(repo, world):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())


TURN = "invoke_agent LangGraph"
OF_A_TURN = [
    (TURN, None), ("agentgit.checkpoint", TURN), ("execute_tool add", TURN), ("agentgit.checkpoint", TURN),
]  # fmt: skip


def test_the_spans_of_a_served_graph_name_the_thread_and_the_branch(repo, world, told):
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    app.invoke({"messages": [("user", "add chair")]}, {"configurable": {"thread_id": "thread-7"}})
    (turn,) = [span for span in told() if span.name == TURN]
    assert turn.attributes["gen_ai.conversation.id"] == "thread-7"
    assert (turn.attributes["agentgit.session.name"], turn.attributes["agentgit.branch.name"]) == ("thread-7", "main")


def test_a_turn_is_a_span_with_its_calls_and_checkpoints(repo, agent, told):
    agent.run(f"add {SECRET}")
    found = told()
    assert tree(found) == OF_A_TURN
    turn, before, tool, _ = found
    assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert turn.attributes["gen_ai.conversation.id"] == str(agent.session.id)
    assert (turn.attributes["agentgit.session.name"], turn.attributes["agentgit.branch.name"]) == ("s", "main")
    said = [tool.attributes[name] for name in ("gen_ai.operation.name", "gen_ai.tool.name", "agentgit.effect")]
    assert said == ["execute_tool", "add", "reversible"]
    assert tool.attributes["agentgit.call.status"] == "done"
    assert before.attributes["agentgit.checkpoint.kind"] == "before"
    assert SECRET not in "".join(span.to_json() for span in found)


@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke", "astream"])
def test_every_way_to_run_produces_the_same_spans(agent, told, how):
    given = {"messages": [("user", "add chair")]}

    async def each():
        return [chunk async for chunk in agent.astream(given)]

    ways = {
        "invoke": lambda: agent.invoke(given), "stream": lambda: list(agent.stream(given)),
        "ainvoke": lambda: asyncio.run(agent.ainvoke(given)), "astream": lambda: asyncio.run(each()),
    }  # fmt: skip
    ways[how]()
    assert tree(told()) == OF_A_TURN


def test_spans_made_by_a_tool_are_children_of_its_call(repo, told, world):
    tracer = trace.get_tracer("mine")
    add, remove = world._put, world.remove

    def put(name, item):
        with tracer.start_as_current_span(f"put {item}"):
            return add(name, item)

    def take(args, result):
        with tracer.start_as_current_span(f"take {args['item']}"):
            remove(args, result)

    world._put, world.remove = put, take
    model = scripted(calls(call("add", item="a"), call("add_later", item="b")), "done")
    agent = repo.wrap(tool_node_graph(model, world.tools()), "s", effects=world.effects())
    asyncio.run(agent.arun("go"))
    agent.undo()
    pairs = tree(told())
    assert ("put a", "execute_tool add") in pairs
    assert ("put b", "execute_tool add_later") in pairs
    assert sorted(pair for pair in pairs if pair[0].startswith(("take", "agentgit.re"))) == [
        ("agentgit.reverse", "agentgit.rollback"), ("agentgit.reverse", "agentgit.rollback"),
        ("take a", "agentgit.reverse"), ("take b", "agentgit.reverse"),
    ]  # fmt: skip


def test_failed_spans_have_the_error_class_but_not_its_text(repo, agent, world, told):
    with pytest.raises(RuntimeError):
        agent.invoke({"messages": [("user", f"add chair; fail {SECRET}")]})
    world.broken.add("chair")
    with pytest.raises(RollbackIncomplete):
        agent.undo()
    found = told()
    failed = {span.name: span.attributes["error.type"] for span in found if not span.status.is_ok}
    assert failed == {
        TURN: "RuntimeError", "execute_tool fail": "RuntimeError", "agentgit.rollback": "RollbackIncomplete",
        "agentgit.reverse": "RuntimeError",
    }  # fmt: skip
    text = "".join(span.to_json() for span in found)
    assert SECRET not in text
    assert "stuck" not in text


def test_a_stream_closed_early_ends_its_span_without_error(repo, agent, told):
    chunks = agent.stream({"messages": [("user", "add chair")]})
    next(chunks)
    chunks.close()
    assert (told()[0].name, told()[0].status.is_ok) == (TURN, True)


def test_without_opentelemetry_or_with_tracing_off_nothing_is_traced(agent, told, monkeypatch):
    with faults.setting(points.OPENTELEMETRY, None):
        agent.run("add chair")
        agent = agent.undo()
    monkeypatch.setenv("AGENTGIT_TRACING", "off")
    agent.run("add chair")
    agent.undo()
    assert told() == []


TRACED_TURN = """
import sys
from importlib import import_module

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
module, _, name = sys.argv[1].partition(":")
getattr(import_module(module), name)().instrument(tracer_provider=provider)

import agentgit
from langgraph.checkpoint.memory import InMemorySaver
from scripted import World, obedient, tool_node_graph


def spans(run):
    exporter.clear()
    run()
    found = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)
    names = {span.context.span_id: span.name for span in found}
    return [(span.name, names.get(span.parent.span_id) if span.parent else None) for span in found]


world, said = World(), {"messages": [("user", "add chair")]}
plain = tool_node_graph(obedient(), world.tools(), InMemorySaver())
expected = spans(lambda: plain.invoke(said, {"configurable": {"thread_id": "t"}}))
with agentgit.open(":memory:") as repo:
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    found = spans(lambda: agent.invoke(said))
root = "agentgit.turn" if "agentgit.turn" in dict(found) else None
own = [name for name, _ in found if name.startswith("agentgit.")]
others = [(name, None if parent == root else parent) for name, parent in found if not name.startswith("agentgit.")]
assert others == expected, (expected, found)
assert len([name for name, _ in found if name.endswith("add")]) == 1, found
print(*own)
"""
"""A program that runs a graph with and without agentgit, while another library traces LangChain."""


@pytest.mark.long
@pytest.mark.parametrize(
    "tracer",
    [
        "openinference.instrumentation.langchain:LangChainInstrumentor",
        "opentelemetry.instrumentation.langchain:LangchainInstrumentor",
    ],
    ids=["OpenInference", "Traceloop"],
)
@pytest.mark.parametrize("switch", ["on", "off"])
def test_beside_another_tracer_no_span_appears_twice(tracer, switch):
    """The other library's spans and their parents are those of the plain graph; a switch turns agentgit's off."""
    program = [sys.executable, "-c", TRACED_TURN, tracer]
    environment = {**os.environ, "AGENTGIT_TRACING": switch, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)  # noqa: S603  # our own program
    assert result.returncode == 0, result.stderr
    turn = ["agentgit.turn", "agentgit.checkpoint", "agentgit.checkpoint"]
    assert result.stdout.split() == (turn if switch == "on" else [])
