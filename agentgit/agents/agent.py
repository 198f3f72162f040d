"""The `RollbackAgent`: a compiled graph on one branch of a session, with the operations of agentgit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self, Unpack, overload

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph

from agentgit.agents import inputs
from agentgit.agents.branch_context import Graph
from agentgit.agents.branch_graph import BranchGraph
from agentgit.agents.explore.explorer import Choices, Explorer, Score, Steps, plan_variants
from agentgit.agents.explore.scheduler import Factory, arun_exploration, run_exploration
from agentgit.agents.merge import Merger
from agentgit.agents.rerun.answers import OnMiss
from agentgit.agents.rerun.rerun import Rerun, RerunOptions
from agentgit.agents.tools.checkpoint_tools import checkpoint_tools
from agentgit.async_api import async_twin, twin_of
from agentgit.auth.principal import EDITOR
from agentgit.checkpoints import Checkpoint, references
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.effects import Effect, RollbackPlan
from agentgit.effects.files import FileChanges
from agentgit.effects.kinds import UNDECLARED
from agentgit.errors import Conflict
from agentgit.handles.context import BranchRef
from agentgit.next_steps import Next
from agentgit.render import html, svg
from agentgit.render.text import waiting_text
from agentgit.render.view import Medium
from agentgit.render.views import lists
from agentgit.rollback.planner import is_in_place
from agentgit.rollback.request import ConfirmedPlan, FilesOption, RollbackKeywords, RollbackOptions
from agentgit.sessions.messages import with_text
from agentgit.sessions.tree import Exploration, ExploredBranch
from agentgit.store.queries.graph_points import BranchHead
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import named_label
from agentgit.store.sql.ids import new_id


async def _await_previous_turn(agent: RollbackAgent) -> None:
    await agent._runner.await_previous_turn()


async def _aleave_stream(agent: RollbackAgent) -> None:
    await agent._runner.aleave_stream()


class RollbackAgent(BranchGraph):
    """A compiled graph on one branch of a session. `Repository.wrap` creates it.

    It runs like the graph, with the branch's thread id filled in. An agent never changes its branch: `rollback`,
    `undo`, `redo`, `fork` and `switch` return a new agent on another branch. Operations that need no graph are on
    its `session`.

    Example:
        >>> import agentgit
        >>> from agentgit.demo import EFFECTS, build, open_shop
        >>> repo = agentgit.open(":memory:")
        >>> agent = repo.wrap(build(open_shop("shop.db")), session="s", effects=EFFECTS)
        >>> agent.run("order two chairs")
        'Ordered 2 chairs for 80 euros (chair-1).'
        >>> agent.undo().history()
        []
    """

    def __new__(cls, context: Any = None, graph: Any = None, *_: Any) -> Self:
        """Create an agent that is a `CompiledStateGraph` where its graph is one."""
        is_state_graph = cls is RollbackAgent and isinstance(graph, CompiledStateGraph)
        return object.__new__(RollbackStateAgent if is_state_graph else cls)  # type: ignore[return-value]

    def __repr__(self) -> str:
        if self._branch.store.database.is_closed:
            return f"RollbackAgent(branch_id={self.branch_id}, closed)"
        names = [name for name, kind in self.effects.items() if kind == UNDECLARED]
        branch, undeclared = self.branch, f", undeclared={names}" if names else ""
        waits = f", {waiting_text(branch.questions)}" if branch.questions else ""
        return f"RollbackAgent(session={self.session.name!r}, branch={branch.name!r}{undeclared}{waits})"

    def _repr_html_(self) -> str:
        status = html.pre(Medium().lines(lists.status(self.session.info, self.branch, self.head)))
        return f"<div>{status}{svg.page(self.tree())}</div>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def at(self, branch: BranchRef = None) -> RollbackAgent:
        """Return an agent on another branch, without changing this agent or the session's current branch.

        Args:
            branch: The name or id of the branch; None is the session's current branch.

        Raises:
            NotFound: The session has no such branch.
        """
        return self._on_branch(self.session.branch(branch).id)

    def checkpoint(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        data: Any = None,
        metadata: Mapping[str, Any] | None = None,
        files: bool = True,
    ) -> Checkpoint:
        """Save the current point of the branch as a checkpoint.

        If the last turn stopped inside a batch of tool calls, the checkpoint is placed before that batch, because a
        checkpoint never lies between a tool call and its result.

        The arguments and errors are those of [`Session.checkpoint`][agentgit.handles.session.Session.checkpoint].
        """
        label = named_label(self._branch.settings.user_id, name, description, data, metadata)
        snapshot = self._branch.take_snapshot(f"checkpoint {name}" if name else "checkpoint") if files else None
        return self._branching.save(self.branch_id, label, snapshot)

    def rollback(self, to: CheckpointRef, **options: Unpack[RollbackKeywords]) -> RollbackAgent:
        """Roll back to an earlier point: create a new branch there and reverse the effects of later tool calls.

        This branch does not change.

        Args:
            to: A Checkpoint, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`, or
                `message:<id>` for the point before a user's message.
            **options: `tools`, `files`, `conversation`, `replay`, `name`, `force`, `on_error`, `on_drift`, `request_id`
                and `plan`, as [`Session.rollback`][agentgit.handles.session.Session.rollback] describes them.

        Raises:
            PlanChanged, RollbackBlocked, WorkspaceChanged, Unavailable, RollbackIncomplete: As `Session.rollback`.
            Conflict: The branch is running. A turn whose stream the caller reads is ended first, unless a tool runs;
                the errors say so.
        """
        with self._runner.outside_stream():
            return self._on_branch(self._rollbacks.run(to, self.branch_id, RollbackOptions(**options)))

    def undo(
        self, steps: int = 1, *, files: FilesOption = True, force: bool = False, plan: ConfirmedPlan = None
    ) -> RollbackAgent:
        """Roll back to the newest checkpoint that differs from the current state of the branch, as `Session.undo`.

        Args:
            steps: The number of such checkpoints to go back, at least 1.
            files: As `rollback` takes it.
            force: As `rollback` takes it.
            plan: As `rollback` takes it.

        Raises:
            NotFound, InvalidInput: As `Session.undo`.
            Conflict: Without a plan: somebody else has moved the branch or restored its files since this agent last saw
                it. Or as `rollback`.
            WorldDiverged: Without a plan: effects or files of other branches would be taken back, too.
            PlanChanged, RollbackBlocked, WorkspaceChanged, Unavailable, RollbackIncomplete: As `rollback`.
        """
        with self._runner.outside_stream() as began_at:
            began_at = began_at if plan is None else None  # a plan counts from the state
            to = self._rollbacks.find_previous(self.branch_id, steps, files, began_at=began_at)[1]
            if plan is None:
                plan = self._require_own(self.plan_rollback(to, files=files), Next("undo_planned"))
            return self.rollback(to, files=files, force=force, plan=plan)

    def _require_idle(self) -> None:
        if self._runner.turn is not None:
            raise Conflict("This agent is running. Try again when its turn has ended.")

    def _on_branch(self, branch: int | BranchHead) -> RollbackAgent:
        """Return an agent with the same graph on another branch of the session."""
        agent, own = RollbackAgent(self._branch.context, self.graph, self._branch.settings, branch), self._branch
        if agent.branch_id == own.branch_id:  # the requests of a waiting turn belong to its branch
            agent._branch.interrupted_turn, own.seen_id = own.interrupted_turn, agent._branch.seen_id
        return agent

    def _require_own(self, plan: RollbackPlan, planned: Next) -> RollbackPlan:
        """Return a plan that takes back only what this agent has seen, and nothing that others have done."""
        if self._runner.turn is None:  # while a turn runs, the rollback is refused
            self._require_unmoved()
        self._rollbacks.require_own(plan, self.branch_id, planned)
        return plan

    def _require_unmoved(self) -> None:
        """Check that nobody has moved the branch since this agent last saw it."""
        branch = self._branch
        with branch.reading(EDITOR) as transaction:
            row, newest = branch.row(transaction), branch.store.graphs.newest(transaction, branch.thread_id)
            operations = branch.store.operations.of_branch(transaction, branch.branch_id)
        unseen = [one.ended_at for one in operations if one.id > branch.seen_id and is_in_place(one) and one.ended_at]
        is_rewound = bool(unseen) and (newest is None or newest.made_at <= max(unseen))
        newest_id = newest.key.checkpoint_id if newest is not None else None
        branch.require_unmoved(row, newest_id, is_rewound=is_rewound)

    def redo(self, *, force: bool = False, plan: ConfirmedPlan = None) -> RollbackAgent:
        """Undo the last rollback: return to the branch that it left, and run again the calls that it reversed.

        If only files were rewound since the last turn, the rewind is undone and the new agent is on this branch.

        Args:
            force: As `switch` takes it.
            plan: As `rollback` takes it.

        Raises:
            NotFound: There is nothing to redo.
            Conflict: Without a plan: somebody else has moved the branch or restored its files since this agent last saw
                it. Or as `switch`.
            WorldDiverged: Without a plan: effects or files of other branches would be taken back, too.
            PlanChanged, RollbackBlocked, WorkspaceChanged, RollbackIncomplete: As `switch`.
        """
        rewind_request = self._rollbacks.undo_rewind_request(self.branch_id)
        if plan is None:
            plan = self._require_own(self.plan_redo(), Next("redo_planned"))
        if rewind_request is not None:  # only files were rewound, so no tool runs
            self._rollbacks.rewind(rewind_request, force=force, plan=plan)
            return self._on_branch(self.branch_id)
        return self.switch(self._rollbacks.rollback_source_id(self.branch_id), "world", force=force, plan=plan)

    def switch(
        self,
        branch: BranchRef,
        sync: str | None = None,
        *,
        force: bool = False,
        on_error: str = "stop",
        plan: ConfirmedPlan = None,
    ) -> RollbackAgent:
        """Make another branch the session's current branch, and return an agent on it.

        This agent stays on its branch. If somebody else has moved this branch, switch to it again to continue from
        its new head.

        Args:
            branch: The name or id of the branch.
            sync: `world`, `note` or `ignore`, as [`Session.switch`][agentgit.handles.session.Session.switch] describes
                them; with None, the next turn raises `WorldDiverged` if another branch has changed the world and the
                change matters.
            force: As `Session.switch` takes it.
            on_error: As `Session.switch` takes it.
            plan: As `Session.switch` takes it.

        Raises:
            NotFound, InvalidInput, RollbackBlocked, WorkspaceChanged, RollbackIncomplete: As `Session.switch`.
            Conflict: This agent is running, or the rollback of that branch is incomplete.
        """
        if self._runner.turn is not None:
            raise Conflict("This agent is running. Switch when its turn has ended.")
        if sync is None and plan is None:
            return self._on_branch(self._rollbacks.set_current_branch(branch).id)
        result = self._rollbacks.switch(
            branch, self.branch_id, sync=sync or "world", force=force, on_error=on_error, plan=plan
        )
        return self._on_branch(result[0])

    def fork(self, to: CheckpointRef | None = None, *, name: str | None = None, files: bool = True) -> RollbackAgent:
        """Create a branch without changing the world.

        Args:
            to: The point at which the branch starts: a Checkpoint or any reference that `rollback` accepts; None is
                the current point of this branch.
            name: The name of the new branch; None for the next free name, like `main-2`.
            files: False to fork without a snapshot of the workspace's current files.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `plan_rollback`.
            Conflict: A branch of that name exists.
            Unavailable: The workspace is not available here, or its files cannot be saved.
        """
        snapshot = self._branch.take_snapshot("fork") if files and to is None and self._runner.turn is None else None
        return self._on_branch(self._branching.fork(self.branch_id, to, name, snapshot))

    def rewind_files(
        self,
        restore_point: CheckpointRef,
        *,
        files: FilesOption = True,
        force: bool = False,
        plan: ConfirmedPlan = None,
    ) -> FileChanges:
        """Restore the files to their state when the user sent a message; the conversation does not change.

        Args:
            restore_point: The id of the user's message, or any reference that `rollback` accepts.
            files: As [`Session.rewind_files`][agentgit.handles.session.Session.rewind_files] takes it.
            force: As `Session.rewind_files` takes it.
            plan: As `rollback` takes it.

        Raises:
            NotFound, WorkspaceChanged, RollbackIncomplete: As `Session.rewind_files`.
            Conflict: The branch is running. A turn whose stream the caller reads is ended first, unless a tool runs;
                the errors say so.
        """
        with self._runner.outside_stream():
            changes = self.session.rewind_files(
                restore_point, branch=self.branch_id, files=files, force=force, plan=plan
            )
            self._branch.seen_id = new_id()
            return changes

    def edit(
        self, message_id: str, text: str, *, name: str | None = None, force: bool = False, plan: ConfirmedPlan = None
    ) -> RollbackAgent:
        """Roll back to the point before a user's message, and run a turn with another text in its place.

        Images and other parts of the message that are not text stay. This branch does not change.

        Args:
            message_id: The id of the message, as `history` lists it.
            text: The new text.
            name: The name of the new branch; None for the next free name, like `main-2`.
            force: True to leave effects in the world that cannot be reversed, and files in conflict.
            plan: As `rollback` takes it; the plan of a rollback to `message:<id>`.

        Returns:
            An agent on the new branch, whose conversation ends with the new answer.

        Raises:
            NotFound: The session has no user message with that id.
            PlanChanged, RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `rollback`; no turn ran.
            Exception: The error of the turn. A note on it names the new branch, where the turn can continue.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> agent = agentgit.open(":memory:").wrap(build(open_shop("edited.db")), session="s", effects=EFFECTS)
            >>> answer = agent.run("order two chairs")
            >>> agent.edit(agent.history()[0]["id"], "order a sofa").history()[-1]["content"]
            'Ordered 1 sofa for 300 euros (sofa-1).'
        """
        ref, value = f"{references.MESSAGE_PREFIX}{message_id}", self._edited_input(message_id, text)
        new_agent = self.rollback(ref, name=name, force=force, plan=plan)
        with _note_on_error(new_agent):
            new_agent.invoke(value)
        return new_agent

    @twin_of(edit)
    async def aedit(self, message_id: str, text: str, **options: Any) -> RollbackAgent:
        value = await asyncio.to_thread(self._edited_input, message_id, text)
        new_agent = await self.arollback(f"{references.MESSAGE_PREFIX}{message_id}", **options)
        with _note_on_error(new_agent):
            await new_agent.ainvoke(value)
        return new_agent

    def _edited_input(self, message_id: str, text: str) -> dict[str, Any]:
        """Return the input of a turn whose message is that of another turn with another text."""
        self._branch.authorize_now(EDITOR)
        branch = self.get_checkpoint(f"{references.MESSAGE_PREFIX}{message_id}").metadata["branch"]
        messages = self.session.branch(branch).conversation_history
        content = next((message["content"] for message in messages if message["id"] == message_id), text)
        return {inputs.MESSAGES: [{"role": "user", "content": with_text(content, text)}]}

    @overload
    def merge(self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None) -> Checkpoint: ...

    @overload
    def merge(self, source: CheckpointRef, *, resolve: Resolve = None, dry_run: Literal[True]) -> MergePlan: ...

    def merge(
        self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None, dry_run: bool = False
    ) -> Checkpoint | MergePlan:
        """Merge the messages and the changed values of another branch, since the two diverged, into this one.

        If only one of the branches changed a value, its value is taken; if both only added to a list or a dict that has
        a reducer, both additions are kept. The new messages of the other branch are appended to those of this branch,
        tool calls only together with their results. No tool runs and no file changes, so the world stays the same.
        Merging again adds only what is new.

        Args:
            source: The branch, or any reference that `rollback` accepts; a branch means its newest checkpoint.
            resolve: Which side to keep where both branches changed a value: `ours` or `theirs`, or a mapping from keys
                to these, where `*` stands for every other key.
            name: The name of the new checkpoint.
            dry_run: Only return the plan: what would be added, the conflicts, and what is left out.

        Returns:
            The new checkpoint, the head if there is nothing to add, or the plan of a dry run.

        Raises:
            MergeConflict: Both branches changed a value that `resolve` does not cover; the error's `plan` lists the
                conflicts.
            Conflict: This branch is running, is in the middle of a turn, or was moved.
            NotFound, Ambiguous: As `rollback`.
            InvalidInput: `resolve` is not valid, or the two have no common history.
        """
        self._require_idle()
        if dry_run:
            return Merger(self._branch).compute(source, resolve).plan
        return self.session.get_checkpoint(Merger(self._branch).merge(source, resolve, name))

    @overload
    def cherry_pick(self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None) -> Checkpoint: ...

    @overload
    def cherry_pick(self, source: CheckpointRef, *, resolve: Resolve = None, dry_run: Literal[True]) -> MergePlan: ...

    def cherry_pick(
        self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None, dry_run: bool = False
    ) -> Checkpoint | MergePlan:
        """Add what one checkpoint of another branch changed to this branch: its messages and values.

        It is a merge with the checkpoint before the picked one as the base. No tool runs: a picked tool call keeps its
        recorded result.

        Args:
            source: The checkpoint, or any reference that `rollback` accepts; a branch means its newest checkpoint.
            resolve: As `merge` takes it.
            name: As `merge` takes it.
            dry_run: As `merge` takes it.

        Raises:
            MergeConflict, NotFound, Ambiguous, InvalidInput: As `merge`.
            Conflict: As `merge`, or nothing of the checkpoint can be added.
        """
        self._require_idle()
        if dry_run:
            return Merger(self._branch).compute(source, resolve, picks=True).plan
        return self.session.get_checkpoint(Merger(self._branch).merge(source, resolve, name, picks=True))

    def explore(
        self,
        steps: Steps,
        choices: Choices = 2,
        *,
        score: Score | None = None,
        parallel: bool | int = False,
        executor: Executor | None = None,
        factory: Factory | None = None,
        name: str | None = None,
        config: RunnableConfig | None = None,
    ) -> Exploration:
        """Run the same steps from here in several variants, each on its own branches, and compare the results.

        Each step is one turn, on a branch forked from the end of the step before: n steps with α choices are
        α + α² + … + αⁿ turns. This branch and the session's current branch do not change. If a tool changes the world,
        the variants run one after the other, and the effects of each are reversed before the next one and at the end.
        A turn that raises is a leaf with the status `failed`.

        Args:
            steps: The text or input of each step, as a list of texts or of the graph's inputs; or the number of steps.
            choices: How many times each step is run; or a list with one choice for each variant of a step. A choice is
                a config, or a function that receives the input of the step and returns the input to use. If `steps` is
                a number, a choice is an input, or a function that receives the number of the step, from 1, and returns
                the input.
            score: A function that rates each leaf as soon as it ends, while the world is as the leaf left it. Higher
                is better.
            parallel: True, or the number of turns that may run at the same time. Only if no tool changes the world.
            executor: Run the turns in the processes of an executor, like `ProcessPoolExecutor(4)` or the
                `get_executor()` of a Dask client. Each process opens this database by its URL. Only if no tool changes
                the world. `parallel` is then the number of turns that are sent ahead.
            factory: With `executor`, a function of a module that builds the graph in the process of a turn: it takes
                the name of the branch, and returns a compiled graph.
            name: The prefix of the branch names: `name/1`, `name/1/2`, …; None for `explore`, `explore-2`, …. With the
                name and the steps of an interrupted exploration, that exploration continues.
            config: The config for all turns, as `invoke` takes it.

        Raises:
            InvalidInput: `steps` or `choices` are not valid, the tools do not allow `parallel` or `executor`, or
                something cannot be sent to another process.
            Unavailable: A process of the executor was killed, or could not begin a turn. `explore` with the same name
                and a new executor continues.
            WorldDiverged: The world is not as this branch left it.
            RollbackBlocked: The effects of a variant cannot be reversed. `exploration(name)` returns the results so
                far.
            RollbackIncomplete: An undo function raised. Call `repo.resume(operation)`, then `explore` with the same
                name.
            Conflict: This agent is running, or the name is taken.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> agent = agentgit.open(":memory:").wrap(build(open_shop("explored.db")), session="s", effects=EFFECTS)
            >>> print(agent.explore(1, ["order a chair", "order a sofa"]))
            explore, from main: 2 turns, 2 leaves
              explore/1  1 call  Ordered 1 chair for 40 euros (chair-1).
              explore/2  1 call  Ordered 1 sofa for 300 euros (sofa-1).
        """
        options = {"score": score, "name": name, "config": config}
        explorer = self._explorer(steps, choices, parallel, executor, factory, **options)
        run_exploration(explorer, parallel, executor, factory)
        return self.exploration(explorer.name)

    @twin_of(explore)
    async def aexplore(
        self,
        steps: Steps,
        choices: Choices = 2,
        *,
        parallel: bool | int = False,
        executor: Executor | None = None,
        factory: Factory | None = None,
        **options: Any,
    ) -> Exploration:
        await self._runner.await_previous_turn()
        explorer = self._explorer(steps, choices, parallel, executor, factory, **options)
        await arun_exploration(explorer, parallel, executor, factory)
        return await self.aexploration(explorer.name)

    def _explorer(
        self, steps: Steps, choices: Choices, parallel: bool | int, executor: Any, factory: Any, **options: Any
    ) -> Explorer:
        if self._runner.turn is not None:
            raise Conflict("This agent is running. Explore when its turn has ended.")
        variants, elsewhere = plan_variants(steps, choices), executor is not None or factory is not None
        create_runner, together = partial(RollbackAgent, self._branch.context, self.graph), bool(parallel) or elsewhere
        return Explorer(self._branch, create_runner, variants, together=together, elsewhere=elsewhere, **options)

    def promote(
        self, branch: ExploredBranch | BranchRef, *, force: bool = False, plan: ConfirmedPlan = None
    ) -> RollbackAgent:
        """Switch to an explored branch, run its tool calls again, and return an agent on it.

        The same as `switch(branch, sync="world")`. The new agent's `report` lists the calls that ran, and those that
        returned something else than before.

        Args:
            branch: The branch as `explore` returned it, its name, or its id.
            force: True to leave effects in the world that cannot be reversed or run again.
            plan: As `rollback` takes it; the plan of `plan_switch`.

        Raises:
            NotFound, PlanChanged, RollbackBlocked, RollbackIncomplete, Conflict: As `switch`.
        """
        branch_ref = branch.id if isinstance(branch, ExploredBranch) else branch
        return self.switch(branch_ref, sync="world", force=force, plan=plan)

    def rerun(
        self,
        graph: Graph | None = None,
        *,
        start: CheckpointRef | None = None,
        end: CheckpointRef | None = None,
        tools: Any = "record",
        on_miss: OnMiss = "tell",
        name: str | None = None,
        effects: Mapping[str, Effect | str] | None = None,
        config: RunnableConfig | None = None,
        context: Any = None,
        max_calls: int | None = None,
    ) -> RollbackAgent:
        """Run the recorded inputs of this branch again, in this graph or another one, without acting on the world.

        The recorded inputs, commands and answers of a person go into the graph in order, on a new branch. Its tools do
        not run: the record answers their calls. No tool changes the world, the files or the memory; the code of nodes
        runs as it is, and what it writes to the store of the graph stays in the rerun. The session stays on its branch.

        Args:
            graph: A compiled graph, such as this one with another model, prompt or tool; None for this one.
            start: The checkpoint after which the inputs are taken; None for the beginning of the session.
            end: The checkpoint up to which they are taken; None for the head of this branch.
            tools: How calls are answered: `record` (by the earliest unused recorded call with the same tool and
                identity arguments), `live` (the tool runs; only if it is declared, and was recorded, as `read_only` or
                `state`), a value, or a function that receives the call as a `ToolInvocation`. Or a mapping from the
                names of tools to these, where `*` stands for all others.
            on_miss: What to do about a call that is not in the record: `tell` the model so, `stop`, or a function that
                receives the call and returns its answer. A question to a person that was not answered then is a miss,
                too: it stays open, stops the rerun, or is a call of `interrupt` with the argument `value`.
            name: The name of the new branch; None for `rerun`, `rerun-2`, …
            effects: The effects of tools that only `graph` has.
            config: The config for all turns, as `invoke` takes it.
            context: The context for all turns, if the graph has a `context_schema`; it is not recorded.
            max_calls: The most calls that the rerun may make; None for twice the recorded ones and 25 more.

        Returns:
            An agent on the new branch. Its `report` says which calls matched. Its calls did not happen: before the
            branch can go on, `switch(branch, sync="world")` runs them.

        Raises:
            InvalidInput: An argument is not valid, or `graph` does not take the recorded inputs; nothing was run.
            RerunDiverged: `on_miss` is `stop` and a call is not in the record, or there were more than `max_calls`. The
                error has the `report`. It is raised also if the graph catches it, and so is `PromptChanged`.
            PromptChanged: A `RecordedModel` in `graph` was asked something else. The error has the `report`.
            OutsideRerun: Meanwhile a tool was called outside every turn. The error has the `report`.
            NotFound, Ambiguous: As `rollback`.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> agent = agentgit.open(":memory:").wrap(build(open_shop("again.db")), session="s", effects=EFFECTS)
            >>> answer = agent.run("order two chairs")
            >>> agent.rerun().report.match_rate
            1.0
        """
        rerun = self._prepare_rerun(
            graph,
            start=start,
            end=end,
            name=name,
            tools=tools,
            on_miss=on_miss,
            effects=effects,
            config=config,
            context=context,
            max_calls=max_calls,
        )
        rerun.run()
        return RollbackAgent(self._branch.context, rerun.graph, rerun.settings, rerun.branch_id)

    @twin_of(rerun)
    async def arerun(self, *args: Any, **options: Any) -> RollbackAgent:
        rerun = await asyncio.to_thread(self._prepare_rerun, *args, **options)
        await rerun.arun()
        return RollbackAgent(self._branch.context, rerun.graph, rerun.settings, rerun.branch_id)

    def _prepare_rerun(
        self, graph: Graph | None = None, *, start: Any = None, end: Any = None, name: str | None = None, **options: Any
    ) -> Rerun:
        return Rerun(self._branch, graph, RerunOptions(**options), start=start, end=end, name=name)

    def checkpoint_tools(self) -> list[BaseTool]:
        """Return the tools with which an agent manages its own history.

        They are bound to this branch; inside a turn they act on the branch of that turn.
        """
        return checkpoint_tools(self.session, self.branch_id)

    aat = async_twin(at)
    acheckpoint = async_twin(checkpoint, prepare=_await_previous_turn)
    arollback = async_twin(rollback, prepare=_aleave_stream)
    aundo = async_twin(undo, prepare=_aleave_stream)
    aredo = async_twin(redo, prepare=_await_previous_turn)
    aswitch = async_twin(switch, prepare=_await_previous_turn)
    afork = async_twin(fork)
    arewind_files = async_twin(rewind_files, prepare=_aleave_stream)
    amerge = async_twin(merge, prepare=_await_previous_turn)
    acherry_pick = async_twin(cherry_pick, prepare=_await_previous_turn)
    apromote = async_twin(promote, prepare=_await_previous_turn)


class RollbackStateAgent(RollbackAgent, CompiledStateGraph[Any, Any, Any, Any]):
    """A `RollbackAgent` made from a compiled `StateGraph`."""


@contextmanager
def _note_on_error(agent: RollbackAgent) -> Iterator[None]:
    """Add a note to an error that ends the turn of an edited message: the branch on which it can continue."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"The conversation was rolled back to branch {agent.branch.name!r}. agent.at() continues there.")
        raise
