"""Reruns: the recorded inputs of a branch go into a graph, on a branch of its own, and no tool acts on the world."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.cache.memory import InMemoryCache
from langgraph.types import Command, StateSnapshot

from agentgit.agents.branch_context import BranchContext, Graph, Simulation, TurnSettings
from agentgit.agents.branch_graph import BranchGraph
from agentgit.agents.memory import is_wrappable, plain_store
from agentgit.agents.rerun.answers import STOP, TELL, Answers, OnMiss
from agentgit.agents.rerun.interceptor import RerunInterceptor
from agentgit.agents.rerun.isolated_memory import IsolatedStore, memory_before
from agentgit.agents.rerun.recording import (
    Question,
    RecordedIds,
    Recording,
    content_of,
    named_messages,
    read_values_of,
    with_ids_of,
)
from agentgit.agents.rerun_guard import guarding
from agentgit.agents.session_graph import is_plain
from agentgit.agents.tools.graph_tools import GraphTools
from agentgit.agents.tools.reachable_tools import reachable_tools, search
from agentgit.auth.principal import EDITOR
from agentgit.checkpoints.references import free_name
from agentgit.effects import Effect
from agentgit.effects.declarations import as_effects
from agentgit.effects.kinds import kind_of
from agentgit.errors import AgentGitError, InvalidInput, OutsideRerun, PromptChanged, RerunDiverged
from agentgit.langgraph_internals import task_path_str
from agentgit.rollback.fork import Fork
from agentgit.saver.data_types import add_types
from agentgit.sessions.rerun import DIVERGED, DONE, FAILED, RECORD, RUNNING, RerunReport
from agentgit.sessions.session import RERUN, SIMULATED
from agentgit.sessions.stats import Prices, require_prices
from agentgit.store.queries.explorations import RerunMarks
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.queries.recorded_turns import (
    CONTINUE,
    FIRST_STEP,
    INPUT,
    UPDATE,
    TurnRecord,
    first_id,
    task_place,
)
from agentgit.store.queries.token_usage import TokenUsage
from agentgit.store.records.operations import NewOperation
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads import model_calls
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey
from agentgit.values import FAILURES, portable

EXTRA = 25
"""The number of calls that a rerun may make, and of steps that a turn may take, beyond twice the recorded ones."""

DIVERGENCES = (RerunDiverged, PromptChanged, OutsideRerun)
"""The errors that stop a rerun where it leaves the recording."""

END = object()
"""The sentinel for the end of a rerun."""

ENTRIES = ("invoke", "ainvoke", "run", "arun")
"""The methods with which a tool is called; they call `_run` or `_arun`, in whose place the record answers."""


@dataclass(frozen=True, kw_only=True)
class RerunOptions:
    """The choices of a rerun, which answers calls and runs turns; see `RollbackAgent.rerun`."""

    tools: Any = RECORD
    on_miss: OnMiss = TELL
    effects: Mapping[str, Effect | str] | None = None
    config: RunnableConfig | None = None
    context: Any = None
    max_calls: int | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if not (callable(self.on_miss) or self.on_miss in (TELL, STOP)):
            raise InvalidInput(f"on_miss must be 'tell', 'stop' or a function, not {self.on_miss!r}.")
        if not isinstance(self.config, Mapping | None):
            raise InvalidInput(f"config must be a mapping, as invoke takes it, not {self.config!r}.")
        if self.prices is not None:
            require_prices(self.prices)


class Rerun:
    """One rerun of a branch."""

    def __init__(
        self,
        branch: BranchContext,
        graph: Graph | None,
        options: RerunOptions,
        *,
        start: CheckpointRef | None = None,
        end: CheckpointRef | None = None,
        name: str | None = None,
        group: str | None = None,
    ) -> None:
        self._branch, self._options, self._group = branch, options, group
        self._run_context = {"context": options.context} if options.context is not None else {}
        with branch.reading(EDITOR) as transaction:
            row = branch.row(transaction)
            start_row = branch.target(transaction, start)[0] if start is not None else self._begin(transaction, row)
            end_row = branch.target(transaction, end)[0] if end is not None else None
        self._recording = Recording(branch, row, start_row, end_row)
        if graph is not None and not is_plain(graph):
            raise InvalidInput(f"graph must be a compiled LangGraph graph of your own, not {type(graph).__name__}.")
        self.graph = branch.graph if graph is None else graph
        is_known = graph is None and options.effects is None
        settings = branch.settings if is_known else self._settings_of(self.graph, options.effects)
        max_calls = options.max_calls
        if max_calls is None:
            max_calls = 2 * len(self._recording.calls) + EXTRA
        self._answers = Answers(self._recording, settings, options.tools, options.on_miss, max_calls)
        _require_answerable(self.graph, settings, self._answers.acting)
        self.settings = settings
        """The settings of turns of the graph whose tools run."""
        create_interceptor = partial(RerunInterceptor, answers=self._answers)
        ids = RecordedIds(self._recording.messages())
        simulation = Simulation(create_interceptor, ids.wrap_channel, InMemoryCache())
        self._settings = replace(settings, workspace=None, simulation=simulation)
        self._questions = list(self._recording.questions)
        self._unanswered: list[Any] = []
        self._open: set[str] = set()
        self._turns = self._first_step = 0
        self._turn: TurnRecord | None = None
        self._error: BaseException | None = None
        self.branch_id = branch.store.database.write(lambda c: self._create_branch(c, name), durable=True)
        """The id of the branch of the rerun."""
        self._runner = BranchGraph(branch.context, self._isolated(self.graph), self._settings, self.branch_id)

    # -- preparation

    def _begin(self, transaction: Reading, row: StoredRow) -> StoredRow | None:
        """Return the checkpoint with the state that the session began with; None if that was not saved."""
        store = self._branch.store
        lineage = store.sessions.lineage(transaction, row)
        path = store.checkpoints.on_path(transaction, lineage)
        if not path or path[0].graph_checkpoint_id is None:
            return path[0] if path else None
        first = store.graphs.find(transaction, GraphKey(lineage[0].branch.thread_id, "", path[0].graph_checkpoint_id))
        is_first = path[0].graph_checkpoint_id == first_id(transaction, lineage[0].branch)
        return path[0] if is_first and first is not None and first.meta.get("source") != "input" else None

    def _settings_of(self, graph: Graph, effects: Mapping[str, Effect | str] | None) -> TurnSettings:
        """Return the settings of turns of another graph, whose tools are declared as those of the recorded one."""
        settings, new = self._branch.settings, as_effects(effects)
        declared = {name: effect for name, effect in settings.effects.tools.items() if effect is not None}
        if changed := sorted(name for name, effect in new.items() if declared.get(name, effect) != effect):
            raise InvalidInput(
                f"effects declares {', '.join(changed)}, which the agent has declared otherwise. Nothing was run. "
                "Declare only tools that the other graph adds; to change an effect, wrap the graph with it first."
            )
        found = GraphTools(graph, {**settings.effects.user_effects, **new}, settings.effects.defaults)
        add_types(*found.hints)
        return replace(settings, effects=found)

    def _isolated(self, graph: Graph) -> Graph:
        if not is_wrappable(graph.store):
            return graph
        own_store = IsolatedStore(plain_store(graph.store), memory_before(self._recording.memory_writes))
        return graph.copy({"store": own_store})

    def _create_branch(self, transaction: Writing, name: str | None) -> int:
        branch, sessions, start = self._branch, self._branch.store.sessions, self._recording.start
        session_id = branch.session_id
        branch.authorize(transaction)
        sessions.lock(transaction, session_id)
        source = sessions.require_branch(transaction, session_id, branch.branch_id)
        if name is None:
            name = free_name(self._group or RERUN, {row.name for row in sessions.branches(transaction, session_id)})
        if start is None:  # nothing was saved before the first turn
            name = sessions.choose_branch_name(transaction, session_id, name, source.name)
            branch_id = int(sessions.create_branch(transaction, session_id, name).id)
        else:
            point = branch.context.lookup.checkpoint(transaction, source, start.id)
            branch_id = Fork(branch.planner, transaction, source, point).make(name).head.row.id
        self._name = f"{name!r} of session {sessions.load_row(transaction, session_id).session_name}"
        self._mark(transaction, branch_id, RUNNING)
        sessions.set_status(transaction, branch_id, SIMULATED)
        return branch_id

    def _mark(self, transaction: Writing, branch_id: int, status: str) -> None:
        mark = {"of": self._recording.row.id, "status": status, "group": self._group}
        RerunMarks(self._branch.store).update(transaction, branch_id, mark)

    # -- running

    def run(self) -> RerunReport:
        with guarding(self._name, self._answers.stop):
            for value in self._inputs():
                with self._catching():
                    if isinstance(value, _Update):
                        self._runner.update_state({}, value.values, value.as_node)
                    else:
                        self._runner.invoke(value, self._turn_config(), **self._run_context)
        return self._finish()

    async def arun(self) -> RerunReport:
        inputs = self._inputs()
        with guarding(self._name, self._answers.stop):
            while (value := await asyncio.to_thread(next, inputs, END)) is not END:
                with self._catching():
                    if isinstance(value, _Update):
                        await self._runner.aupdate_state({}, value.values, value.as_node)
                    else:
                        await self._runner.ainvoke(value, self._turn_config(), **self._run_context)
        return await asyncio.to_thread(self._finish)

    @contextmanager
    def _catching(self) -> Iterator[None]:
        """Keep the error that ends a turn for the report. Ctrl-C ends the rerun without one."""
        try:
            yield
        except FAILURES as error:  # any error is part of the report
            self._error = error
        self._error = self._answers.stopped or self._error  # the graph may have caught it

    def _inputs(self) -> Iterator[Any]:
        """Yield what to run the graph with, one after the other; each has run when the next one is requested."""
        self._began = time.monotonic()
        yield from self._continuations(TurnRecord(CONTINUE, []))
        if self._error is not None:
            return
        for number, turn in enumerate(self._recording.turns, 1):
            self._answers.turn, self._turn = number, turn
            self._first_step = self._step() if self._may_stop(turn) else 0
            if turn.kind != CONTINUE:
                yield self._input(turn)
            yield from self._continuations(turn)
            self._turns = number
            if turn.has_failed and not isinstance(self._error, AgentGitError):
                self._error = None  # it raised in the recording, too
            if self._error is not None:
                return

    def _input(self, turn: TurnRecord) -> Any:
        value = self._recording.input(turn)
        if next(named_messages(value), None) is not None:
            value = with_ids_of(value, self._recording.state_before(turn), self._runner.get_state().values)
        return _Update(value, turn.as_node) if turn.kind == UPDATE else value

    def _continuations(self, turn: TurnRecord) -> Iterator[Any]:
        """Yield what a turn goes on with when it waits or has raised: recorded answers, or nothing."""
        progress: set[Any] = set()
        for _ in range(2 * len(turn.times) + EXTRA):
            if self._error is not None:
                if not self._is_repeated(turn, progress):
                    return
                self._error = None
                yield None
                continue
            # To read the state after each turn would take too long.
            if not (self._runner._branch.interrupted_turn or self._may_stop(turn)):
                return
            state = self._runner.get_state()
            if state.interrupts:
                answers = self._answers_for(state)
                if not answers:
                    return
                yield Command(resume=answers)
            elif state.next and self._goes_on(turn):
                yield None
            else:
                return

    def _is_repeated(self, turn: TurnRecord, progress: set[Any]) -> bool:
        """Return whether the caller continued a turn that raised, as far as the record has more of it."""
        if isinstance(self._error, AgentGitError) or not turn.has_raised:
            return False
        has_more = self._answers.has_more_of_step()
        now = (self._step(), self._answers.matched_count)
        if now in progress or (turn.has_failed and not has_more):
            return False
        progress.add(now)
        return True

    def _may_stop(self, turn: TurnRecord) -> bool:
        """Return whether a turn may stop before the graph has ended, without a question."""
        has_breakpoints = self.graph.interrupt_before_nodes or self.graph.interrupt_after_nodes
        return bool(has_breakpoints) or turn.kind in (UPDATE, CONTINUE)

    def _goes_on(self, turn: TurnRecord) -> bool:
        """Return whether a turn goes on at a breakpoint: it ran to its end, or further than the rerun has come."""
        if not turn.times or self._recording.has_ended(turn):
            return bool(turn.times)
        return self._step() - self._first_step - (turn.kind == INPUT) < len(turn.times)

    def _step(self) -> int:
        return int((self._runner.get_state().metadata or {}).get("step", FIRST_STEP - 1))

    def _answers_for(self, state: StateSnapshot) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for task in state.tasks:
            for asked in task.interrupts:
                if asked.id in self._open:
                    continue
                value = portable(asked.value)
                question = self._take_question(value, task_place(task_path_str(task.path)))
                if question is None:
                    with self._catching():
                        answer = self._answers.ask(value)
                        if answer is None:
                            self._unanswered.append(value)
                        else:
                            answers[asked.id] = answer.future.result()
                elif not question.is_open:
                    answers[asked.id] = question.answer
                if asked.id not in answers:
                    self._open.add(asked.id)
        return answers if self._error is None else {}

    def _take_question(self, value: Any, place: str) -> Question | None:
        """Take the earliest recorded question with a value, if possible that of the same task of the graph."""
        same = [question for question in self._questions if question.value == value]
        question = next((one for one in same if one.place == place), same[0] if same else None)
        if question is not None:
            self._questions.remove(question)
        return question

    def _turn_config(self) -> RunnableConfig:
        steps = len(self._turn.times) if self._turn is not None else 0
        return merge_configs({"recursion_limit": 2 * steps + EXTRA}, self._options.config)

    # -- the report

    def _finish(self) -> RerunReport:
        error, seconds = self._answers.stopped or self._error, time.monotonic() - self._began
        status = DONE if error is None else DIVERGED if isinstance(error, DIVERGENCES) else FAILED
        store, branch, turns = self._branch.store, self._branch, self._recording.turns
        with branch.reading() as transaction:
            row = store.sessions.branch(transaction, self.branch_id)
            newest = store.graphs.newest(transaction, row.thread_id)
            recorded = self._recording.end_state
            usage, first = TokenUsage(transaction, store), self._first_state(transaction)
            tokens, recorded_tokens = (usage.between(first, one) for one in (newest, recorded))
            calls, recorded_calls = (self._model_calls(transaction, one) for one in (newest, recorded))
            is_same_state = (
                newest is not None
                and recorded is not None
                and (
                    newest.state_hash == recorded.state_hash
                    or content_of(read_values_of(branch, transaction, newest)) == content_of(self._recording.state)
                )
            )
        report = RerunReport(
            branch=row.name,
            source=self._recording.row.name,
            status=status,
            reason=f"{type(error).__name__}: {error}" if error is not None else None,
            turns=self._turns,
            recorded_turns=len(turns),
            calls=self._answers.calls,
            not_made=self._answers.not_made,
            unanswered=self._unanswered,
            is_same_state=is_same_state,
            end=recorded.key.checkpoint_id if recorded is not None else None,
            seconds=seconds,
            recorded_seconds=sum((turn.times[-1] - turn.times[0]).total_seconds() for turn in turns if turn.times),
            tokens=tokens,
            recorded_tokens=recorded_tokens,
            model_calls=calls or 0,
            recorded_model_calls=recorded_calls,
        )
        if self._options.prices is not None:
            recorded_cost, cost = report.costs(self._options.prices)
            report = replace(report, recorded_cost=recorded_cost, cost=cost)
        self._branch.store.database.write(lambda c: self._record(c, report), durable=True)
        if isinstance(error, DIVERGENCES):
            error.report = report
        if isinstance(error, AgentGitError):
            raise error
        return report

    def _model_calls(self, transaction: Reading, state: GraphCheckpoint | None) -> int | None:
        """Return the number of model calls from the start to a state; None if they were not recorded."""
        if state is None or state.model_calls is None:
            return None
        first, content = self._first_state(transaction), self._branch.store.graphs.content(state.session_id)
        earlier = first.model_calls if first is not None else None
        calls_before = model_calls.count(transaction, content, earlier) if earlier is not None else 0
        return model_calls.count(transaction, content, state.model_calls) - calls_before

    def _first_state(self, transaction: Reading) -> GraphCheckpoint | None:
        start = self._recording.start
        if start is None or start.graph_checkpoint_id is None:
            return None
        return self._branch.store.graphs.find(transaction, GraphKey(start.thread_id, "", start.graph_checkpoint_id))

    def _record(self, transaction: Writing, report: RerunReport) -> None:
        operation = NewOperation(
            kind=RERUN,
            external_session_id=self._branch.session_id,
            user_id=self._branch.settings.user_id,
            source_id=self._recording.row.id,
            target_id=self._recording.start.id if self._recording.start is not None else None,
            internal_session_id=self.branch_id,
            request_id=None,
            request={"steps": []},
        )
        self._branch.store.operations.record_done(transaction, operation, report.to_dict())
        self._mark(transaction, self.branch_id, report.status)


class _Update(NamedTuple):
    """An update of the state, which is repeated with `update_state`."""

    values: Any
    as_node: str | None


def _require_answerable(graph: Graph, settings: TurnSettings, acting: Container[str]) -> None:
    """Check that the record can answer the calls of each tool of a graph that acts."""
    for tool, enclosing, _ in reachable_tools(search(graph)):
        effect = settings.effects.declaration_of(tool, enclosing).effect
        if effect is not None and kind_of(effect.kind).is_neutral and tool.name not in acting:
            continue
        for name in ENTRIES:
            owner = next(kind for kind in type(tool).__mro__ if name in vars(kind))
            if not owner.__module__.startswith("langchain_core."):
                raise InvalidInput(
                    f"{owner.__name__}, the class of the tool {tool.name}, overrides the method {name}, which a "
                    "rerun would run. Nothing was run. Put the work into the methods _run and _arun; if the tool only "
                    "reads, record a session in which it is declared read_only."
                )
