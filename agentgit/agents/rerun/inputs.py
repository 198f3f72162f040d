"""Check of what was recorded against the schema of the graph that is to run it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from langgraph.channels import LastValue
from langgraph.graph import StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from agentgit.agents.branch_context import Graph
from agentgit.agents.rerun.recording import Recording
from agentgit.errors import InvalidInput
from agentgit.store.queries.recorded_turns import INPUT


def require_inputs(recording: Recording, recorded_graph: Graph, graph: Graph) -> None:
    """Check that a graph takes everything that was recorded: inputs, updates of the state, and commands."""
    for number, is_input, problem in _problems_of_turns(recording, recorded_graph, graph):
        theirs, ours = (_describe(one, is_input=is_input) for one in (recorded_graph, graph))
        recorded = "It" if recorded_graph is graph else f"The recorded graph takes {theirs}; this one"
        raise InvalidInput(
            f"The graph does not take what was recorded in turn {number}, so nothing was run: {problem}. "
            f"{recorded} takes {ours}."
        )


def find_misfit(recording: Recording, graph: Graph) -> str | None:
    """Return a sentence about the first recorded value that has not the type that a graph declares; None if all have.

    LangGraph does not check types, so such a value need not be the reason if the graph fails.
    """
    found = next(_problems_of_turns(recording, None, graph), None)
    return f"In turn {found[0]}, {found[2]}." if found is not None else None


def _problems_of_turns(
    recording: Recording, recorded_graph: Graph | None, graph: Graph
) -> Iterator[tuple[int, bool, str]]:
    """Yield what a graph does not take: the number of the turn, whether it is an input, and the problem."""
    if _builder(graph) is None:
        return
    for number, turn in enumerate(recording.turns, 1):
        value = recording.input(turn)
        # An update or a command may write to any channel; an input, to those of the input schema.
        is_input = turn.kind == INPUT and not isinstance(value, Command)
        for problem in _problems(recorded_graph, graph, value, is_input=is_input):
            yield number, is_input, problem


def _problems(recorded_graph: Graph | None, graph: Graph, value: Any, *, is_input: bool) -> Iterator[str]:
    """Yield why a graph does not take what a turn was given."""
    builder: StateGraph[Any, Any, Any, Any] = graph.builder  # type: ignore[attr-defined]  # it has one
    if isinstance(value, Command):
        goto = value.goto if isinstance(value.goto, list | tuple) else [value.goto]
        nodes = [one.node if isinstance(one, Send) else one for one in goto]
        yield from (f"it has no node {node}" for node in nodes if node not in graph.nodes)
        value = dict(value.update) if isinstance(value.update, list | tuple) else value.update
    if not isinstance(value, Mapping):
        return
    known = builder.schemas[builder.input_schema] if is_input else builder.channels
    if unknown := sorted(value.keys() - known.keys()):
        yield f"it has no {', '.join(unknown)}"
    if is_input and isinstance(builder.input_schema, type) and issubclass(builder.input_schema, BaseModel):
        try:
            builder.input_schema.model_validate(value)
        except ValidationError as error:
            yield str(error)
    old_types, types = (_types(one, is_input=is_input) for one in (recorded_graph, graph))
    for name in value:
        # LangGraph does not check types, so only a type that changed counts; a reducer may take another one.
        is_changed = str(old_types.get(name)) != str(types.get(name))
        if is_changed and isinstance(builder.channels.get(name), LastValue) and not _fits(types[name], value[name]):
            yield f"{name} is {value[name]!r:.80}, which is not {_name(types[name])}"


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value has a type, also after a conversion; True if pydantic does not know the type."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    except (PydanticUserError, PydanticUndefinedAnnotation):
        return True
    return True


def _builder(graph: Graph | None) -> StateGraph[Any, Any, Any, Any] | None:
    builder = getattr(graph, "builder", None)
    return builder if isinstance(builder, StateGraph) else None


def _types(graph: Graph | None, *, is_input: bool) -> dict[str, Any]:
    """Return the types of what a graph takes, by name."""
    builder = _builder(graph)
    if builder is None:
        return {}
    schemas = [builder.input_schema] if is_input else [*builder.schemas]
    return {
        name: kind for schema in schemas if isinstance(schema, type) for name, kind in get_type_hints(schema).items()
    }


def _describe(graph: Graph, *, is_input: bool) -> str:
    """Return the names and types of what a graph takes, as text."""
    builder = _builder(graph)
    if builder is None:
        return f"what {graph.name} takes"
    schema = builder.input_schema if is_input else builder.state_schema
    types = (f"{name}: {_name(kind)}" for name, kind in _types(graph, is_input=is_input).items())
    return f"{_name(schema)}({', '.join(types)}) and has the nodes {', '.join(builder.nodes)}"


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
