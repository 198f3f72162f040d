"""The RollbackAgent: a compiled graph on a branch of a session, with the verbs of agentgit on top."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from agentgit.agents.branch_context import Graph, TurnSettings
from agentgit.agents.branch_reader import BranchReader
from agentgit.agents.branch_runner import BranchRunner
from agentgit.agents.checkpoint_tools import checkpoint_tools
from agentgit.agents.explore.explorer import Explorer, Score, arun_exploration, run_exploration, turns_at_once
from agentgit.agents.explore.variants import Choices, Steps, ways
from agentgit.agents.merge.cherry_pick import What
from agentgit.async_api import async_twin
from agentgit.checkpoints import Checkpoint, references
from agentgit.checkpoints.merge import Resolve
from agentgit.checkpoints.queries import Tag
from agentgit.effects.effects import UNDECLARED
from agentgit.effects.files import FileChanges
from agentgit.errors import Conflict
from agentgit.handles.branching import Branching
from agentgit.handles.context import BranchRef, Context
from agentgit.handles.rollbacks import RollbackOptions
from agentgit.render.views import lists
from agentgit.sessions.tree import Exploration, ExploredBranch
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import named


class RollbackAgent(BranchReader):
    """A compiled graph on one branch of a session. Made by `Repository.wrap`.

    It runs as the graph does, with the branch's thread filled in. It stays on its branch: `rollback`, `undo`, `redo`,
    `fork` and `switch` return a new agent on another branch. What needs no graph is on its `session`.

    Args:
        context: The store and the principal.
        graph: The user's graph; it stays as it is.
        settings: The settings that apply to every turn.
        branch_id: The branch.

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

    def __init__(self, context: Context, graph: Graph, settings: TurnSettings, branch_id: int) -> None:
        super().__init__(context, graph, settings, branch_id)
        self._branching = Branching(context, self.session.id)

    def __repr__(self) -> str:
        if self._branch.store.database.is_closed:
            return f"RollbackAgent(branch_id={self.branch_id}, closed)"
        unsaid = [name for name, kind in self.effects.items() if kind == UNDECLARED]
        undeclared = f", undeclared={unsaid}" if unsaid else ""
        return f"RollbackAgent(session={self.session.name!r}, branch={self.branch.name!r}{undeclared})"

    def _repr_html_(self) -> str:
        return lists.status_page(self.session.info, self.branch, self.head, self.tree())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def at(self, branch: BranchRef = None) -> RollbackAgent:
        """Return an agent on another branch; this one stays where it is, and so does the session.

        Args:
            branch: The name or id of the branch; None is the one that the session continues on.

        Raises:
            NotFound: The session has no such branch.
        """
        return self._on(self.session.branch(branch).id)

    def checkpoint(self, name: str | None = None, *, description: str | None = None, data: Any = None) -> Checkpoint:
        """Save this point of the branch.

        If the last turn broke off inside a batch of tool calls, the point is before that batch: a checkpoint never lies
        between a tool call and its result.

        Args:
            name: The name of the checkpoint; names may repeat.
            description: A sentence about it.
            data: Any JSON-like data to keep with it.

        Raises:
            Conflict: The branch is running.
            InvalidInput: The name is empty or too long.
        """
        label = named(self._branch.settings.user_id, name, description, data)
        files = self._branch.files(f"checkpoint {name}" if name else "checkpoint")
        return self._branching.save(self.branch_id, label, files)

    def tag(self, ref: CheckpointRef, name: str, *, description: str | None = None) -> Tag:
        """Tag a checkpoint with a name that is unique in the session, as `Session.tag`.

        The tag keeps the checkpoint.

        Args:
            ref: A Checkpoint or any place, as `plan_rollback` takes it.
            name: The name of the tag.
            description: A sentence about it.

        Raises:
            InvalidInput, Conflict, NotFound, Ambiguous: As `Session.tag`.
        """
        return self.session.tag(ref, name, branch=self.branch_id, description=description)

    def rollback(
        self,
        to: CheckpointRef,
        *,
        tools: str = "reverse",
        files: bool = True,
        conversation: bool = True,
        replay: str = "record",
        name: str | None = None,
        force: bool = False,
        on_error: str = "stop",
        on_drift: str = "stop",
        request_id: str | None = None,
    ) -> RollbackAgent:
        """Go back: a new branch at an earlier point, with the later effects reversed. This branch stays as it is.

        Args:
            to: The target, as `plan_rollback` takes it.
            tools: As `plan_rollback` takes it.
            files: True to bring the files of the workspace back, if one is attached; what was there before is kept in
                a safety snapshot.
            conversation: False to take back only what the tools did and the files, and stay on this branch.
            replay: How the tool calls before that point come to the new branch. `record`: from the record, no tool
                runs. `redo`: those that were reversed since run again. `execute`: what stands is reversed, then all
                of them run again; refused with `tools="keep"`, because their effects would happen twice.
            name: The name of the new branch; None for the next one like `main-2`.
            force: True to keep in the world what cannot be reversed, and to bring back files that others have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.
            on_drift: `stop` at the first tool that runs again and returns something else, or `continue`.
            request_id: Your own name for this rollback: the same one twice gives the same branch.

        Raises:
            RollbackBlocked: An effect that cannot be reversed stands in the way; nothing was done.
            WorkspaceChanged: Somebody else has changed the files since the last turn; nothing was done.
            Unavailable: The files are to come back, and the workspace or the snapshot is gone; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` goes on from there.
            Conflict: The branch is running.
        """
        options = RollbackOptions(
            tools=tools,
            files=files,
            conversation=conversation,
            replay=replay,
            name=name,
            force=force,
            on_error=on_error,
            on_drift=on_drift,
            request_id=request_id,
        )
        return self._on(self._rollbacks.run(to, self.branch_id, options))

    def undo(self, steps: int = 1, *, force: bool = False) -> RollbackAgent:
        """Roll back to the newest checkpoint that differs from where the branch stands now.

        Args:
            steps: The number of such points to go back, at least 1.
            force: As `rollback` takes it.

        Raises:
            NotFound: There are not so many.
            InvalidInput: `steps` is less than 1.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `rollback`.
        """
        return self.rollback(self._rollbacks.previous(self.branch_id, steps)[1], force=force)

    def redo(self, *, force: bool = False) -> RollbackAgent:
        """Take back the last rollback: go on where the branch was that it left, with what it reversed run again.

        If files alone were brought back since the last turn, these are as before that again, and the new agent is on
        this branch.

        Args:
            force: As `switch` takes it.

        Raises:
            NotFound: There is nothing to take back.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `switch`.
        """
        rewound = self._rollbacks.rewound(self.branch_id, force=force)
        if rewound is not None:  # of files alone: no tool runs
            self._rollbacks.rewind(rewound)
            return self._on(self.branch_id)
        left = self._rollbacks.left_by(self.branch_id)
        return self._on(self._rollbacks.switch(left, self.branch_id, sync="world", force=force)[0])

    def switch(
        self, branch: BranchRef, sync: str | None = None, *, force: bool = False, on_error: str = "stop"
    ) -> RollbackAgent:
        """Return an agent on another branch, and make that branch the one that the session continues on.

        This agent stays on its branch. To go on from where somebody else has moved this branch, switch to it again.

        Args:
            branch: The name or id of the branch.
            sync: What to do about a world that another branch has changed. None: nothing; the next turn says so if it
                matters. `world`: reverse what is not of that branch, and run again what of it was reversed. `note`:
                leave the world, and tell the model with the next message. `ignore`: leave it, and record that.
            force: True to keep in the world what cannot be reversed or run again, and to bring back files that others
                have changed.
            on_error: `stop` at the first undo or tool that fails, or `continue` with the others.

        Raises:
            NotFound: The session has no such branch.
            InvalidInput: `sync` is none of these.
            RollbackBlocked: Something stands in the way of `sync="world"`; nothing was done.
            WorkspaceChanged: Somebody else has changed the files; nothing was done.
            RollbackIncomplete: An undo function or a tool raised; `repo.resume(operation)` goes on from there.
            Conflict: This agent is running, or the rollback of that branch is half done.
        """
        if self._turn is not None:
            raise Conflict("This agent is running. Switch when its turn has ended.")
        if sync is None:
            return self._on(self._rollbacks.enter(branch).id)
        entered = self._rollbacks.switch(branch, self.branch_id, sync=sync, force=force, on_error=on_error)
        return self._on(entered[0])

    def fork(self, to: CheckpointRef | None = None, name: str | None = None) -> RollbackAgent:
        """Make a branch without touching the world.

        Args:
            to: The point where it leaves, as `rollback` takes it; None is where this branch stands now.
            name: The name of the new branch; None for the next one like `main-2`.

        Raises:
            NotFound, Ambiguous, InvalidInput: As `plan_rollback`.
            Conflict: There is a branch of that name.
        """
        files = self._branch.files("fork") if to is None and self._turn is None else None
        return self._on(self._branching.fork(self.branch_id, to, name, files))

    def rewind_files(self, restore_point: CheckpointRef, *, force: bool = False) -> FileChanges:
        """Bring the files back to what they were when the user said something; the conversation stays as it is.

        Args:
            restore_point: The id of the user's message, or any place that `rollback` takes.
            force: True to bring back files that others have changed since the last turn too.

        Raises:
            NotFound: No workspace is attached, or there is no such restore point.
            WorkspaceChanged: Somebody else has changed the files since the last turn; none was touched.
            RollbackIncomplete: They could not be brought back; `repo.resume(operation)` goes on from there.
            Conflict: The branch is running.
        """
        return self.session.rewind_files(restore_point, branch=self.branch_id, force=force)

    def edit(self, message_id: str, text: str, *, name: str | None = None, force: bool = False) -> RollbackAgent:
        """Go back to before a user's message, and run with another text in its place; this branch stays as it is.

        Args:
            message_id: The id of the message, as `history` lists it.
            text: The new text.
            name: The name of the new branch; None for the next one like `main-2`.
            force: As `rollback` takes it.

        Returns:
            An agent on the new branch, which has the answer.

        Raises:
            NotFound: There is no such message of a user.
            RollbackBlocked, WorkspaceChanged, RollbackIncomplete, Conflict: As `rollback`; nothing ran.
            Exception: What the turn raises; a note of it names the new branch, on which it can go on.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build, open_shop
            >>> agent = agentgit.open(":memory:").wrap(build(open_shop("edited.db")), session="s", effects=EFFECTS)
            >>> answer = agent.run("order two chairs")
            >>> agent.edit(agent.history()[0]["id"], "order a sofa").history()[-1]["content"]
            'Ordered 1 sofa for 300 euros (sofa-1).'
        """
        edited = self.rollback(f"{references.MESSAGE}{message_id}", name=name, force=force)
        with _naming(edited):
            edited.run(text)
        return edited

    async def aedit(self, message_id: str, text: str, *, name: str | None = None, force: bool = False) -> RollbackAgent:
        """Go back to before a user's message, and run with another text, as `edit`."""
        edited = await self.arollback(f"{references.MESSAGE}{message_id}", name=name, force=force)
        with _naming(edited):
            await edited.arun(text)
        return edited

    def merge(self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None) -> Checkpoint:
        """Bring what another branch did since the two parted into this one: its messages, and the values it changed.

        A value that only one of them changed is taken from that one. Their new messages come behind ours, tool calls
        only with their results. No tool runs, and the files stay as they are: the world does not change. Merged again,
        only what is new comes.

        Args:
            source: The branch, or any place on it as `rollback` takes it; of a branch its newest checkpoint counts.
            resolve: What to do about values that both changed: `ours`, `theirs`, or a function that gets a `Clash` with
                `key`, `base`, `ours` and `theirs` and gives the value; or a mapping from keys to one of these, where
                `*` is every other key.
            name: The name of the checkpoint that is made.

        Returns:
            The checkpoint that is made; the head, if everything is here already.

        Raises:
            MergeConflict: Both changed a value, and `resolve` says nothing about it; its `plan` has them.
            Conflict: This branch is running, or in the middle of a turn, or was moved.
            NotFound, Ambiguous: As `rollback`.
            InvalidInput: `resolve` means nothing, or its function gives what cannot be.
        """
        self._require_idle()
        return self.session.get_checkpoint(self._merging.merge(source, resolve, name))

    def cherry_pick(self, what: What, *, name: str | None = None) -> Checkpoint:
        """Bring chosen messages of other branches behind this one's; tool calls only with their results.

        No tool runs: the result of a tool call that comes is the recorded one.

        Args:
            what: A place: the messages that its checkpoint added to the one before. A list of message ids, as
                `history()` has them; a tool call brings its results along, and a result its call. Or a ToolInvocation:
                that call with its result, without those beside it.
            name: The name of the checkpoint that is made.

        Returns:
            The checkpoint that is made; the head, if everything is here already.

        Raises:
            NotFound: There is no such message, place or call.
            InvalidInput: It is none of these, or the graph's state has no messages.
            Conflict: This branch is running, or in the middle of a turn, or was moved; or nothing of it can come.
        """
        self._require_idle()
        return self.session.get_checkpoint(self._merging.cherry_pick(what, name))

    def explore(
        self,
        steps: Steps,
        choices: Choices = 2,
        *,
        score: Score | None = None,
        parallel: bool | int = False,
        name: str | None = None,
        config: RunnableConfig | None = None,
    ) -> Exploration:
        """Go the same steps in several ways, from here, each way on branches of its own; compare what comes of them.

        Each step is one turn, on a branch forked from where the step before ended: n steps with α choices are
        α + α² + … + αⁿ turns. This branch stays as it is, and the session stays on it. If a tool changes the world,
        one way is gone after the other; what it did is reversed before the next one, and at the end. A turn that
        raises is a leaf that `failed`.

        Args:
            steps: The text or input of each step, as a list of texts or of the graph's inputs. Or the number of steps.
            choices: How many times each step is gone; or a list of configs, one for each way to go it; or of functions
                that make the input of a step from what it says. Where `steps` is a number, a list of inputs, or of
                functions that make one from the number of the step, from 1.
            score: Judges each leaf at once, in the world as it left it; the higher, the better.
            parallel: True, or how many turns may run at the same time. Only if no tool changes the world.
            name: What its branches are called: `name/1`, `name/1/2`, …; None for `explore`, `explore-2`, …. Given again
                with the same steps, it goes on where it was broken off.
            config: The config for all turns, as `invoke` takes it.

        Raises:
            InvalidInput: Steps and choices cannot be meant, or the tools do not allow `parallel`.
            WorldDiverged: The world is not as this branch left it.
            RollbackBlocked: What one way did cannot be reversed. What was explored is in `exploration(name)`.
            RollbackIncomplete: An undo function raised; `repo.resume(operation)`, then go on with the same name.
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
        explorer = self._explorer(steps, choices, score=score, name=name, config=config, together=bool(parallel))
        run_exploration(explorer, turns_at_once(parallel))
        return self.exploration(explorer.name)

    async def aexplore(
        self,
        steps: Steps,
        choices: Choices = 2,
        *,
        score: Score | None = None,
        parallel: bool | int = False,
        name: str | None = None,
        config: RunnableConfig | None = None,
    ) -> Exploration:
        """Go the same steps in several ways, as `explore`; asynchronous undo functions and scores run on this loop."""
        await self._closing()
        explorer = self._explorer(steps, choices, score=score, name=name, config=config, together=bool(parallel))
        await arun_exploration(explorer, turns_at_once(parallel))
        return await self.aexploration(explorer.name)

    def _explorer(self, steps: Steps, choices: Choices, **how: Any) -> Explorer:
        if self._turn is not None:
            raise Conflict("This agent is running. Explore when its turn has ended.")
        return Explorer(self._branch, self._on, ways(steps, choices), **how)

    def promote(self, branch: ExploredBranch | BranchRef, *, force: bool = False) -> RollbackAgent:
        """Return an agent on an explored branch, and bring the world to it: what its tools did runs again.

        The same as `switch(branch, sync="world")`; `report` tells what ran, and what returned something else now.

        Args:
            branch: The branch as `explore` returned it, its name, or its id.
            force: True to keep in the world what cannot be reversed or run again.

        Raises:
            NotFound, RollbackBlocked, RollbackIncomplete, Conflict: As `switch`.
        """
        wanted = branch.id if isinstance(branch, ExploredBranch) else branch
        return self.switch(wanted, sync="world", force=force)

    def checkpoint_tools(self) -> list[BaseTool]:
        """Return the tools with which an agent manages its own history.

        They are bound to this branch; inside a turn they act on the branch of that turn.
        """
        return checkpoint_tools(self.session, self.branch_id)

    aat = async_twin(at)
    acheckpoint = async_twin(checkpoint, first=BranchRunner._closing)
    atag = async_twin(tag)
    arollback = async_twin(rollback, first=BranchRunner._closing)
    aundo = async_twin(undo, first=BranchRunner._closing)
    aredo = async_twin(redo, first=BranchRunner._closing)
    aswitch = async_twin(switch, first=BranchRunner._closing)
    afork = async_twin(fork)
    arewind_files = async_twin(rewind_files, first=BranchRunner._closing)
    amerge = async_twin(merge, first=BranchRunner._closing)
    acherry_pick = async_twin(cherry_pick, first=BranchRunner._closing)
    apromote = async_twin(promote, first=BranchRunner._closing)


@contextmanager
def _naming(agent: RollbackAgent) -> Iterator[None]:
    """Add a note to what breaks off the turn of an edited message: where it can go on."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"The conversation was rolled back to branch {agent.branch.name!r}. agent.at() continues there.")
        raise
