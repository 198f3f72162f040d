"""The beginning and the end of the turns of a graph on a branch, on a thread or on an event loop."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs, var_child_runnable_config

from agentgit.agents import inputs
from agentgit.agents.branch_context import BranchContext, ClientThread, Graph, TurnSettings
from agentgit.agents.inputs import TurnInput
from agentgit.agents.instrumentation import instrumented_copy
from agentgit.agents.isolation import detached, detached_config, turn_context
from agentgit.agents.memory import RecordedStore, is_wrappable, plain_store
from agentgit.agents.node_cache import HarmlessCache, cache_of
from agentgit.agents.tools.unanswered_calls import UndoNeeded
from agentgit.agents.turn.calls import Calls
from agentgit.agents.turn.fence_errors import as_bubble_up
from agentgit.agents.turn.recorder import find_recorder
from agentgit.agents.turn.turn import Turn
from agentgit.async_api import LOOP
from agentgit.errors import (
    AgentGitError,
    BranchMoved,
    Conflict,
    InvalidInput,
    RollbackBlocked,
    RollbackIncomplete,
    WorkspaceChanged,
    WorldDiverged,
    warn_caller,
)
from agentgit.handles.context import Context
from agentgit.handles.rollbacks import Rollbacks
from agentgit.langgraph_internals import CONFIG_KEY_CACHE, TURN
from agentgit.next_steps import Next
from agentgit.rollback.request import RollbackOptions
from agentgit.saver.config import RESTORE_POINT
from agentgit.store.queries.graph_points import BranchHead
from agentgit.store.sql.process import is_interrupt
from agentgit.tracing import NO_SPAN, TracedSpan, turn_span

Options = Mapping[str, Any]
"""The keyword arguments of a method of the graph."""

NO_OPTIONS: Options = {}

END = object()
"""The sentinel for the end of a stream."""

CLOSING_POLLS = 40
"""How often a new turn polls, every 5 ms, for a previous turn that shows no sign of ending."""

ENDING_TIMEOUT = 30.0
"""How long, in seconds, a new turn waits for a previous turn that is known to be starting or ending.

On a busy machine the thread of that turn may take this long."""


def is_nested(config: RunnableConfig | None) -> bool:
    """Return whether a turn of another wrapped graph runs here."""
    return any(find_recorder((one or {}).get("callbacks")) for one in (var_child_runnable_config.get(), config))


def require_not_nested(config: RunnableConfig | None) -> None:
    """Check that a turn does not begin inside a turn of another wrapped graph."""
    if is_nested(config):
        raise as_bubble_up(
            InvalidInput(
                "This agent was called inside a turn of another wrapped graph, so nothing was run: its effects would "
                "be recorded only in its own session, and a rollback of that turn would miss them. Call agent.graph "
                "instead: its calls are then recorded with that turn. Or leave one of the two graphs unwrapped."
            )
        )


def current_reader() -> object:
    """Return the task or, outside an event loop, the id of the thread that calls this."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return get_ident()


class TurnRunner:
    """Begins and ends the turns of a graph on one branch."""

    def __init__(
        self,
        context: Context,
        graph: Graph,
        settings: TurnSettings,
        branch: int | BranchHead,
        client: ClientThread | None = None,
    ) -> None:
        self.graph = graph
        """The graph that runs, with the config of `with_config`."""
        self.branch = BranchContext(context, graph, settings, branch, client)
        self._instrument()
        self._known_current_branch = self.branch.served.moved_to
        self.turn: Turn | None = None
        self.rollback_error: AgentGitError | None = None
        """The error of the last rollback that the model requested; None if it succeeded or none was requested."""
        self.moved_at = monotonic()
        """The value of `time.monotonic()` when this object was created or last began a turn."""
        self._begun: Future[tuple[Turn, RunnableConfig]] | None = None
        """The last turn that began on an event loop."""
        self._is_ending = False
        """True while a turn on an event loop releases its branch."""
        self._left_turn: Turn | None = None
        """The turn that was ended for the verb that begins, because the reader of its stream called it."""

    @property
    def branch_id(self) -> int:
        """The id of the branch that this object runs on."""
        return self.branch.branch_id

    def _move_to(self, branch_id: int) -> None:
        """Continue on another branch of the session."""
        branch = self.branch
        self.branch = BranchContext(branch.context, self.graph, branch.settings, branch_id, branch.client)
        self._known_current_branch = branch_id
        self._instrument()

    def with_graph(self, graph: Graph) -> Self:
        """Return a runner of another form of the graph on the same branch, which shares what is known of the branch."""
        runner = copy.copy(self)
        runner.graph = graph
        runner.turn, runner._begun, runner._is_ending = None, None, False
        runner._instrument()
        return runner

    def _instrument(self) -> None:
        """Copy the graph with the saver of the branch."""
        graph, simulation = self.graph, self.branch.settings.simulation
        self.instrumented_graph: Graph = instrumented_copy(
            graph,
            simulation.wrap_channel if simulation is not None else None,
            checkpointer=self.branch.saver,
            store=self._recorded_store(graph.store),
        )
        cache = cache_of(graph)
        if cache is not None:
            cache = HarmlessCache(simulation.cache if simulation is not None else cache, lambda: self.turn)
        # LangGraph passes it on to every graph that a node or a tool runs, which then ignores a cache of its own.
        self._cache_config = {CONFIG_KEY_CACHE: cache}

    def _recorded_store(self, store: Any) -> Any:
        """Return a store whose writes the turns of this object record; a store that cannot be wrapped stays as it is"""
        if not is_wrappable(store):
            return store
        declared = self.branch.settings.effects.tools
        locks = self.branch.store.database.named_locks
        return RecordedStore(plain_store(store), self._current_calls, locks, declared)

    def _current_calls(self) -> Calls | None:
        """Return the calls of the turn of the caller's task, cancelled or not, or else of the one that runs."""
        recorder = find_recorder((var_child_runnable_config.get() or {}).get("callbacks"))
        if recorder is not None and recorder.turn.context is self.branch and not recorder.turn.is_completed:
            return recorder.calls
        return self.turn.calls if self.turn is not None else None

    # -- configs and options

    def require_own_thread(self, config: RunnableConfig) -> None:
        thread = self.branch.client_thread
        if config.get("configurable", {}).get("thread_id", thread) != thread:
            raise InvalidInput("This agent runs on its branch's own thread; leave thread_id out of the config.")

    def fill_config(self, config: RunnableConfig | None) -> RunnableConfig:
        """Fill in the branch's thread id, and remove the keys of an outer graph that calls this one."""
        config = detached_config(config)
        self.require_own_thread(config)
        with detached():  # else LangChain merges the surrounding config into it
            return merge_configs(
                config, {"configurable": {"thread_id": self.branch.client_thread, **self._cache_config}}
            )

    @property
    def _conversation_id(self) -> str:
        return str(self.branch.session_id)

    def _start_span(self) -> TracedSpan:
        return turn_span(
            self.graph.name,
            gen__ai_conversation_id=self._conversation_id,
            agentgit_branch_id=self.branch_id,
        )

    def _begin(
        self,
        resources: ExitStack,
        value: Any,
        config: RunnableConfig | None,
        span: TracedSpan = NO_SPAN,
        options: Options = NO_OPTIONS,
    ) -> tuple[Turn, RunnableConfig]:
        """Begin a turn: acquire the branch, and build the config that records the turn."""
        with span.current():
            return self._start_turn(resources, value, config, span, options)

    def _start_turn(
        self, resources: ExitStack, value: Any, config: RunnableConfig | None, span: TracedSpan, options: Options
    ) -> tuple[Turn, RunnableConfig]:
        require_not_nested(config)
        self.branch.store.database.require_open()  # before the files are read
        self._warn_if_moved()
        run_config, self.moved_at = self.fill_config(config), monotonic()
        if not self._is_at_head(run_config["configurable"]):
            raise InvalidInput("A branch runs only from its head.", Next("rollback"), Next("fork"))
        if not run_config["configurable"].get("checkpoint_ns"):
            run_config["configurable"].pop("checkpoint_id", None)
        durability = self._durability(options)
        saves_each_step = durability == "sync" or (durability == "exit" and self.branch.settings.effects.has_effects)
        given = inputs.parse(self.instrumented_graph, value)
        if given.is_answer_alone:
            self._require_waiting(run_config)
        turn = Turn(self.branch, self._going_on(given, run_config), span, saves_each_step=saves_each_step)
        resources.push(partial(self._leave, turn))
        resources.enter_context(turn.resources)
        interrupted_turn = self.branch.interrupted_turn
        if interrupted_turn is not None and not turn.turn_input.is_new:
            turn.requested_checkpoints = interrupted_turn.requested_checkpoints
            turn.after_turn = interrupted_turn.after_turn
        try:
            turn.begin()
        except UndoNeeded as error:
            rollbacks = Rollbacks(self.branch.context, self.branch.session_id)
            target = rollbacks.find_answered(self.branch_id)
            if target is None:
                text = f"{error.message} Nothing was run: no checkpoint stands before them."
                raise Conflict(text, Next("continue"), Next("answer_calls")) from None
            try:
                plan = rollbacks.plan(target, self.branch_id, RollbackOptions())
                rollbacks.require_own(plan, self.branch_id)
                restored = rollbacks.run(target, self.branch_id, RollbackOptions(plan=plan))
            except (RollbackBlocked, WorldDiverged, WorkspaceChanged) as refused:
                # No message takes the options that it names.
                undo = Next("undo_planned" if isinstance(refused, WorldDiverged) else "undo")
                refused.message, refused.next = f"{error.message} {refused.message}", (undo, Next("answer_calls"))
                raise
            self._move_to(restored)
            return self._start_turn(resources, value, config, span, options)
        self.turn = self.branch.saver.turn = turn
        run_config["configurable"][TURN] = turn.owner
        if turn.replayed_ids:
            run_config["configurable"].update(checkpoint_id=turn.replayed_ids[""], checkpoint_map=turn.replayed_ids)
        message_id = turn.turn_input.message_id
        metadata = {RESTORE_POINT: message_id} if message_id is not None else {}
        with detached():
            return turn, merge_configs(run_config, {"callbacks": [turn.recorder], "metadata": metadata})

    def _going_on(self, turn_input: TurnInput, config: RunnableConfig) -> TurnInput:
        """Return an input as LangGraph takes it, which drops one that has the run id of the step that it found."""
        one_config = merge_configs(self.graph.config, config)
        run_id = {**one_config.get("configurable", {}), **one_config.get("metadata", {})}.get("run_id")
        if run_id is None or not turn_input.is_new:
            return turn_input
        with self.branch.reading() as transaction:
            newest = self.branch.store.graphs.newest(transaction, self.branch.thread_id)
        if newest is None or newest.meta.get("run_id") != run_id:
            return turn_input
        with detached():
            state = self.instrumented_graph.get_state(config)
        if not state.next or not inputs.is_last_message(turn_input, state.values):
            raise InvalidInput(
                f"Nothing was run: run_id {run_id!r} is that of the last run, so LangGraph would drop this input. "
                "Give each run a run_id of its own, or none."
            )
        return TurnInput(turn_input.value, is_new=False, goes_on=True)

    def _require_waiting(self, config: RunnableConfig) -> None:
        """Check that something waits for an answer; LangGraph would drop it without a word."""
        with self.branch.reading() as transaction:
            newest = self.branch.store.graphs.newest(transaction, self.branch.thread_id)
            if newest is not None and (newest.is_imported or self.branch.store.asked(transaction, newest)):
                return  # an imported run is refused with its own reason
        with detached():
            if newest is None or not self.instrumented_graph.get_state(config).next:
                raise Conflict("Nothing was run: no question waits for this answer.")

    def _is_at_head(self, configurable: Mapping[str, Any]) -> bool:
        """Return whether a config names no checkpoint, or the newest one of the graph or of a subgraph."""
        checkpoint_id, ns = configurable.get("checkpoint_id"), configurable.get("checkpoint_ns")
        if checkpoint_id is None:
            return True
        if not ns:
            return bool(checkpoint_id == self.branch.seen_checkpoint_id)
        root_id = (configurable.get("checkpoint_map") or {}).get("")
        with self.branch.reading() as transaction:
            newest = self.branch.store.graphs.newest(transaction, self.branch.thread_id, ns)
        newest_id = newest.key.checkpoint_id if newest is not None else None
        return bool(root_id == self.branch.seen_checkpoint_id and checkpoint_id == newest_id)

    def _warn_if_moved(self) -> None:
        """Warn once if a rollback or switch in this process has since moved the session to another branch."""
        branch, current_id = self.branch, self.branch.served.moved_to
        if current_id in (None, self._known_current_branch, branch.branch_id):
            return
        self._known_current_branch = current_id
        with branch.reading() as transaction:
            current_name, own_name = (
                branch.store.sessions.branch(transaction, one).name for one in (current_id, branch.branch_id)
            )
            session_name = branch.session(transaction).reference
        warn_caller(
            BranchMoved(
                f"Session {session_name} is now on branch {current_name!r}, but this agent runs on {own_name!r}.",
                Next("switch", branch=current_name),
            )
        )

    def _end(self, turn: Turn, *, completed: bool) -> None:
        if turn.has_ended:  # inside its stream
            self._is_ending = False
            return
        try:
            with turn.span.current():
                self.branch.seen_checkpoint_id = turn.end(completed=completed)
            self.branch.end_checkpoint_id = turn.end_checkpoint_id
            self.branch.interrupted_heads = () if completed else (turn.head_id,)
        finally:
            self._forget(turn)
        # If a tool waits for an answer, the requests of the others are done when the answered turn has ended.
        self.branch.interrupted_turn = turn if completed and not turn.is_settled else None
        if completed and turn.is_settled and turn.after_turn is not None:
            self.rollback_error = None
            try:
                turn.after_turn()
            except AgentGitError as error:  # the turn itself succeeded, and its answer must not be lost
                self.rollback_error = error

    def _forget(self, turn: Turn) -> None:
        """Forget a turn that no longer holds the branch."""
        self.turn = None
        if self.branch.saver.turn is turn:
            self.branch.saver.turn = None
        self._is_ending = False

    def _leave(self, turn: Turn, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Forget a turn that was interrupted, perhaps as it ended: then it is not known here how it has ended."""
        if is_interrupt(error) and (self.turn is turn or turn.has_ended):
            self._forget(turn)
            with suppress(AgentGitError):  # the next turn finds what is wrong
                self.branch.read_anew()

    @contextmanager
    def _turn_context(
        self, resources: ExitStack, value: Any, config: RunnableConfig | None, options: Options = NO_OPTIONS
    ) -> Iterator[tuple[Any, RunnableConfig]]:
        """Hold the branch for one turn, and yield the input and the config to run the graph with."""
        # The caller opens the resources, because Ctrl-C may come before this ends the turn.
        with self._start_span() as span:
            turn, run_config = self._begin(resources, value, config, span, options)
            is_completed = False
            try:
                yield turn.turn_input.value, run_config
                is_completed = True
            finally:
                self._end(turn, completed=is_completed)

    async def _aturn(
        self, stack: AsyncExitStack, value: Any, config: RunnableConfig | None, options: Options = NO_OPTIONS
    ) -> tuple[Any, RunnableConfig]:
        """Hold the branch for one turn until the stack ends, without blocking the event loop, even if cancelled."""
        # No generator, because a loop that ends closes all of them at once, those inside others too.
        span = stack.enter_context(self._start_span())
        await self.await_previous_turn()
        LOOP.set(asyncio.get_running_loop())  # the async callbacks of this turn run on this loop
        loop, begun = asyncio.get_running_loop(), Future[tuple[Turn, RunnableConfig]]()

        def begin() -> None:
            try:
                begun.set_result(self._begin(ExitStack(), value, config, span, options))
            except BaseException as error:  # noqa: BLE001  # the task that awaits the turn raises it
                begun.set_exception(error)

        self._begun = begun
        try:
            await asyncio.shield(loop.run_in_executor(None, copy_context().run, begin))
        except asyncio.CancelledError:
            # In the thread, because the loop may end or block before the thread has acquired the branch.
            begun.add_done_callback(self._release)
            raise
        turn, run_config = begun.result()

        async def end(kind: type[BaseException] | None, *_: object) -> None:
            self._is_ending = True
            # The thread begins at once, so that the branch is released even if a cancelled task is not resumed.
            run = partial(copy_context().run, self._end, turn, completed=kind is None)
            await asyncio.shield(loop.run_in_executor(None, run))

        stack.push_async_exit(end)
        return turn.turn_input.value, run_config

    def _release(self, begun: Future[tuple[Turn, RunnableConfig]]) -> None:
        """Release the branch that a turn has acquired whose caller has left in the meantime."""
        if begun.exception() is None:
            self._end(begun.result()[0], completed=False)

    def _read_turn(self) -> Turn | None:
        """Return the turn whose stream the caller reads."""
        turn = self.turn
        return turn if turn is not None and turn.reader is not None and turn.reader == current_reader() else None

    def leave_stream(self) -> None:
        """End the turn whose stream the caller reads, so that it can go back from inside its loop."""
        if (turn := self._read_turn()) is not None:
            if turn.calls.by_run:
                raise Conflict("Nothing was done: a tool of this turn is running. Read its stream until it has ended.")
            self._end(turn, completed=False)
            self._left_turn = turn

    @contextmanager
    def outside_stream(self) -> Iterator[int | None]:
        """End the turn whose stream the caller reads, and yield the id of its first checkpoint.

        A refusal of what follows says that the turn has ended.
        """
        self.leave_stream()
        left_turn, self._left_turn = self._left_turn, None
        try:
            yield left_turn.before_id if left_turn is not None else None
        except AgentGitError as error:
            if left_turn is not None and not isinstance(error, RollbackIncomplete):
                error.message = f"{error.message} The turn whose stream was read has ended."
                error.next = *error.next, Next("continue")
            raise

    async def aleave_stream(self) -> None:
        """End the turn whose stream the caller reads, as `leave_stream`, or wait for one that was abandoned."""
        if (turn := self._read_turn()) is not None and not turn.calls.by_run:
            await asyncio.to_thread(self._end, turn, completed=False)
            self._left_turn = turn
        await self.await_previous_turn()
        self.leave_stream()

    async def await_previous_turn(self) -> None:
        """Wait briefly for a turn of this agent that was cancelled, or whose stream was not read to its end."""
        # Python closes an abandoned stream only in a later round of the loop.
        polls, deadline = 0, monotonic() + ENDING_TIMEOUT
        while self.turn is not None or self._is_beginning():
            is_progressing = self._is_ending or self._is_beginning()
            if monotonic() > deadline or (polls >= CLOSING_POLLS and not is_progressing):
                return
            polls += 1
            await asyncio.sleep(0.005)

    def _is_beginning(self) -> bool:
        """Return whether a thread is still acquiring the branch for a turn, perhaps a cancelled one."""
        return self._begun is not None and not self._begun.done()

    @contextmanager
    def _marking_end(self) -> Iterator[None]:
        """Mark the turn as ending as soon as its stream is closed, because the graph may take long to stop."""
        try:
            yield
        finally:
            self._is_ending = True

    @staticmethod
    def _durability(options: Options) -> str:
        return options.get("durability") or ("exit" if options.get("checkpoint_during") is False else "async")

    def _durable_options(self, options: Options, *, is_async: bool = False) -> Options:
        """Return the options of a run, changed so that each step is saved before the next one can have an effect."""
        # On a loop LangGraph must wait, because a tool called without `await` blocks it; elsewhere the call waits.
        durability, effects = self._durability(options), self.branch.settings.effects
        if not effects.has_effects or (durability != "exit" and not is_async):
            return options
        kept = {name: value for name, value in options.items() if name != "checkpoint_during"}
        return {**kept, "durability": "async" if effects.has_unsaved_graph else "sync"}

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run a part of the graph in the turn, and outside of a graph that calls this agent."""
        turn = self.turn
        if turn is None:
            with detached():
                yield
            return
        turn.reader = None
        with detached(), turn.span.current(), turn.unit_of_work.current(), turn_context(turn.calls):
            yield
        turn.reader = current_reader()
