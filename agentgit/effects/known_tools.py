"""The effects of tools that packages for LangGraph bring along, by the functions of these tools. Pure: no imports.

A tool is known by the code of its function, never by its name: another tool with the same name stays undeclared, and
so does a function that wraps the known one.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from agentgit.closures import variables_of
from agentgit.effects.effects import Effect
from agentgit.effects.kinds import READ_ONLY, STATE, WORKSPACE

BY_BACKEND = "by backend"
"""The effect of a tool that changes a file of deepagents: it depends on the backend that has the file."""

BY_SHELL = "by shell"
"""The effect of the tool that runs a command of deepagents: most backends have no shell, so it does nothing."""

BY_SUBAGENT = "by subagent"
"""The effect of the tool that runs a subagent of deepagents: the tools of a local graph are recorded themselves."""

BY_STORE = "by store"
"""The effect of the tool that writes memories of langmem: the store of the graph records its writes itself."""

TOOL_CLASSES = ("langchain_core.tools.structured:StructuredTool", "langmem.knowledge.tools:_ToolWithRequired")
"""The classes of all known tools. A subclass may do something else."""

STATE_BACKEND = "deepagents.backends.state:StateBackend"
STORE_BACKEND = "deepagents.backends.store:StoreBackend"
COMPOSITE_BACKEND = "deepagents.backends.composite:CompositeBackend"
FILE_BACKEND = "deepagents.backends.filesystem:FilesystemBackend"
LOCAL_SHELL_BACKEND = "deepagents.backends.local_shell:LocalShellBackend"
BACKENDS_ON_DISK = (FILE_BACKEND, LOCAL_SHELL_BACKEND)
BACKENDS_WITHOUT_SHELL = (STATE_BACKEND, STORE_BACKEND, FILE_BACKEND)

LOCAL_GRAPHS = ("langgraph.graph.state:CompiledStateGraph", "langgraph.pregel.main:Pregel")
"""The classes of graphs that run in this process. A subclass may run elsewhere, where its tools are not recorded."""

Holds = Callable[[str], bool]
"""A function that returns whether the workspace of the session has a path."""


class KnownTool(NamedTuple):
    """A tool of a package."""

    name: str
    module: str
    functions: Sequence[str]
    effect: str

    @property
    def package(self) -> str:
        """The package that brings the tool along."""
        return self.module.partition(".")[0].replace("_", "-")


def _local(function: str, *names: str) -> list[str]:
    """Return the qualified names of functions that a function defines."""
    return [f"{function}.<locals>.{name}" for name in names]


def _file_tool(name: str, effect: str) -> KnownTool:
    functions = _local(f"FilesystemMiddleware._create_{name}_tool", f"sync_{name}", f"async_{name}")
    return KnownTool(name, "deepagents.middleware.filesystem", functions, effect)


_FILE_SEARCH, _SEARCHING = "langchain.agents.middleware.file_search", "FilesystemFileSearchMiddleware.__init__"
_TODOS = ("_write_todos", "_awrite_todos", "write_todos")
_TASKS = _local("_build_task_tool", "task", "atask")
_COMPACTIONS = _local("SummarizationToolMiddleware._create_compact_tool", "sync_compact", "async_compact")
_HANDOFFS = _local("create_handoff_tool", "handoff_to_agent")
_FORWARDS = _local("create_forward_message_tool", "forward_message")
_RETRIEVALS = _local("get_default_retrieval_tool", "retrieve_tools", "aretrieve_tools")
_WRITES_OF_MEMORIES = _local("create_manage_memory_tool", "manage_memory", "amanage_memory")
_SEARCHES_OF_MEMORIES = _local("create_search_memory_tool", "search_memory", "asearch_memory")

KNOWN_TOOLS = (
    KnownTool("write_todos", "langchain.agents.middleware.todo", _TODOS, STATE),
    KnownTool("glob_search", _FILE_SEARCH, _local(_SEARCHING, "glob_search"), READ_ONLY),
    KnownTool("grep_search", _FILE_SEARCH, _local(_SEARCHING, "grep_search"), READ_ONLY),
    *(_file_tool(name, READ_ONLY) for name in ("ls", "read_file", "glob", "grep")),
    *(_file_tool(name, BY_BACKEND) for name in ("write_file", "edit_file", "delete")),
    _file_tool("execute", BY_SHELL),
    KnownTool("task", "deepagents.middleware.subagents", _TASKS, BY_SUBAGENT),
    KnownTool("compact_conversation", "deepagents.middleware.summarization", _COMPACTIONS, BY_BACKEND),
    KnownTool("transfer_to_*", "langgraph_supervisor.handoff", _HANDOFFS, STATE),
    KnownTool("forward_message", "langgraph_supervisor.handoff", _FORWARDS, STATE),
    KnownTool("transfer_to_*", "langgraph_swarm.handoff", _HANDOFFS, STATE),
    KnownTool("retrieve_tools", "langgraph_bigtool.tools", _RETRIEVALS, READ_ONLY),
    KnownTool("manage_memory", "langmem.knowledge.tools", _WRITES_OF_MEMORIES, BY_STORE),
    KnownTool("search_memory", "langmem.knowledge.tools", _SEARCHES_OF_MEMORIES, READ_ONLY),
)
"""The tools whose effects are known. All others are undeclared: a shell, or a tool that starts work elsewhere."""

_BY_FUNCTION = {(known.module, function): known for known in KNOWN_TOOLS for function in known.functions}


@dataclass(frozen=True)
class ToolProfile:
    """A known tool of a graph."""

    known: KnownTool
    variables: Mapping[str, Any]

    def effect(self, args: Mapping[str, Any] | None, holds: Holds) -> Effect | None:
        """Return the effect of a call; None if it is not known."""
        if self.known.effect == BY_BACKEND:
            path = None if args is None else args.get("file_path")
            if path is not None:  # in the form in which the tools pass it to their backend
                path = posixpath.normpath("/" + str(path).replace("\\", "/").lstrip("/"))
            kind = _kind_in_backend(self._backend, path, holds)
        elif self.known.effect == BY_SHELL:
            backend = self._backend
            backend = backend.default if _class_path(backend) == COMPOSITE_BACKEND else backend
            kind = READ_ONLY if _class_path(backend) in BACKENDS_WITHOUT_SHELL else None
        elif self.known.effect == BY_SUBAGENT:
            kind = STATE if self._runs_local_graphs(None if args is None else args.get("subagent_type")) else None
        elif self.known.effect == BY_STORE:
            kind = STATE if self.variables.get("initial_store", self) is None else None
        else:
            kind = self.known.effect
        return None if kind is None else Effect(kind)

    @property
    def _backend(self) -> Any:
        middleware = self.variables.get("self")
        if middleware is not None:
            return getattr(middleware, "backend", None)
        return getattr(getattr(self.variables.get("mw"), "_summarization", None), "_backend", None)

    def _runs_local_graphs(self, name: Any) -> bool:
        graphs = self.variables.get("subagent_graphs")
        if not isinstance(graphs, Mapping):
            return False
        chosen = graphs.values() if name is None else [graphs[name]] if name in graphs else []
        return all(_is_exactly(graph, LOCAL_GRAPHS) for graph in chosen)


def profile_of(tool: Any) -> ToolProfile | None:
    """Return the profile of a tool; None if the tool is not known."""
    functions = [function for name in ("func", "coroutine") if (function := getattr(tool, name, None)) is not None]
    if not functions or not _is_exactly(tool, TOOL_CLASSES):
        return None
    known = [_BY_FUNCTION.get(_code_name(function)) for function in functions]
    if known[0] is None or any(other is not known[0] for other in known):
        return None
    return ToolProfile(known[0], variables_of(functions[0]))


def _code_name(function: Any) -> tuple[str, str]:
    """Return the module and the qualified name of a function's code. `functools.wraps` does not copy these."""
    if not isinstance(function, FunctionType):
        return "", ""
    return str(function.__globals__.get("__name__")), function.__code__.co_qualname


def _class_path(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _is_exactly(value: Any, class_paths: Collection[str]) -> bool:
    """Return whether a value is of one of these classes, with the methods of its class."""
    if _class_path(value) not in class_paths:
        return False
    return not any(callable(getattr(type(value), name, None)) for name in vars(value))


# -- the backends of deepagents


def _kind_in_backend(backend: Any, path: str | None, holds: Holds) -> str | None:
    """Return the kind of effect of a change to a file; None if it is not known."""
    backend_class = _class_path(backend)
    if backend_class == STATE_BACKEND:
        return STATE
    if backend_class == STORE_BACKEND:  # the store of the graph records its writes itself; another store does not
        return STATE if getattr(backend, "_store", backend) is None else None
    if backend_class in BACKENDS_ON_DISK:
        return WORKSPACE if _is_on_disk_in(backend, path, holds) else None
    if backend_class == COMPOSITE_BACKEND:
        return _kind_in_routes(backend, path, holds)
    return None


def _is_on_disk_in(backend: Any, path: str | None, holds: Holds) -> bool:
    if getattr(backend, "virtual_mode", None) is True:
        return holds(f"{str(getattr(backend, 'cwd', '')).rstrip('/')}{path or ''}")
    return path is not None and holds(path)  # any path of the machine


def _kind_in_routes(backend: Any, path: str | None, holds: Holds) -> str | None:
    if path is None:
        kinds = {_kind_in_backend(one, None, holds) for one in (backend.default, *backend.routes.values())}
        return None if None in kinds else WORKSPACE if WORKSPACE in kinds else STATE
    for prefix in sorted(backend.routes, key=len, reverse=True):
        root = prefix.rstrip("/")
        if path == root or path.startswith(f"{root}/"):
            return _kind_in_backend(backend.routes[prefix], path[len(root) :] or "/", holds)
    return _kind_in_backend(backend.default, path, holds)
