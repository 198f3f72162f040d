"""The asynchronous twins of the agent's verbs: the same work in a thread, so that the event loop is never blocked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from agentgit.agents import inputs
from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.merge import MergePlan, Resolve
from agentgit.effects import RollbackPlan, ToolInvocation
from agentgit.effects.files import FileChanges
from agentgit.handles.comparison import What
from agentgit.rollback import on_this_loop
from agentgit.sessions import InternalSession, Tree
from agentgit.store.audit.bus import on_loop
from agentgit.store.queries.lookup import CheckpointRef

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent

P = ParamSpec("P")
T = TypeVar("T")


class Twins:
    """The methods of `RollbackAgent` that begin with `a`; each does the same as its synchronous twin."""

    async def _io(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with on_loop():
            return await asyncio.to_thread(verb, *args, **kwargs)

    async def _change(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that needs the branch for itself, when a turn whose stream was just left has given it back."""
        await self._agent._closing()
        return await self._io(verb, *args, **kwargs)

    @property
    def _agent(self) -> RollbackAgent:
        return cast("RollbackAgent", self)

    async def arun(self, text: str) -> str:
        """Send a message and return the text of the answer, as `run`."""
        return inputs.answer_of(await self._agent.ainvoke({inputs.MESSAGES: [("user", text)]}))

    async def aget_state(self, config: RunnableConfig | None = None, **kwargs: Any) -> StateSnapshot:
        """Return the branch's newest state, as `get_state`."""
        return await self._io(self._agent.get_state, config, **kwargs)

    async def aget_state_history(
        self, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[StateSnapshot]:
        """List the branch's graph checkpoints, as `get_state_history`."""
        for snapshot in await self._io(lambda: list(self._agent.get_state_history(config, **kwargs))):
            yield snapshot

    async def aupdate_state(
        self, config: RunnableConfig | None, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        """Change the state by hand, as `update_state`."""
        return await self._change(self._agent.update_state, config, values, as_node, task_id)

    async def abulk_update_state(self, config: RunnableConfig | None, supersteps: Any) -> RunnableConfig:
        """Change the state by hand in several steps, as `bulk_update_state`."""
        return await self._change(self._agent.bulk_update_state, config, supersteps)

    async def acheckpoint(
        self, name: str | None = None, *, description: str | None = None, data: Any = None
    ) -> Checkpoint:
        """Save this point of the branch, as `checkpoint`."""
        return await self._change(self._agent.checkpoint, name, description=description, data=data)

    async def acheckpoints(self) -> list[Checkpoint]:
        """List the checkpoints, as `checkpoints`."""
        return await self._io(self._agent.checkpoints)

    async def amessages(self) -> list[BaseMessage]:
        """List the conversation as LangChain messages, as `messages`."""
        return await self._io(self._agent.messages)

    async def ahistory(self) -> list[dict[str, Any]]:
        """List the conversation, as `history`."""
        return await self._io(self._agent.history)

    async def atool_track(self) -> list[ToolInvocation]:
        """List the tool invocations, as `tool_track`."""
        return await self._io(self._agent.tool_track)

    async def abranches(self) -> list[InternalSession]:
        """List the branches, as `branches`."""
        return await self._io(self._agent.branches)

    async def acompare(self, other: CheckpointRef) -> Comparison:
        """Put this branch beside another one, as `compare`."""
        return await self._io(self._agent.compare, other)

    async def aplan_merge(self, source: CheckpointRef, *, resolve: Resolve = None) -> MergePlan:
        """Return what a merge would bring, as `plan_merge`."""
        return await self._io(self._agent.plan_merge, source, resolve=resolve)

    async def amerge(self, source: CheckpointRef, *, resolve: Resolve = None, name: str | None = None) -> Checkpoint:
        """Bring in what another branch did, as `merge`."""
        return await self._change(self._agent.merge, source, resolve=resolve, name=name)

    async def aplan_cherry_pick(self, what: What) -> MergePlan:
        """Return what a cherry-pick would bring, as `plan_cherry_pick`."""
        return await self._io(self._agent.plan_cherry_pick, what)

    async def acherry_pick(self, what: What, *, name: str | None = None) -> Checkpoint:
        """Bring in chosen messages, as `cherry_pick`."""
        return await self._change(self._agent.cherry_pick, what, name=name)

    async def atree(self) -> Tree:
        """Return the tree, as `tree`."""
        return await self._io(self._agent.tree)

    async def aplan_rollback(
        self,
        to: CheckpointRef,
        *,
        tools: str = "reverse",
        files: bool = True,
        conversation: bool = True,
        replay: str = "record",
    ) -> RollbackPlan:
        """Return what a rollback would do, as `plan_rollback`."""
        return await self._io(
            self._agent.plan_rollback, to, tools=tools, files=files, conversation=conversation, replay=replay
        )

    async def arollback(
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
        """Go back, as `rollback`; asynchronous undo functions and tools run on this event loop."""
        return await self._change(
            self._agent._rollback,
            to,
            on_this_loop(),
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

    async def aundo(self, steps: int = 1, *, force: bool = False) -> RollbackAgent:
        """Roll back to an earlier checkpoint, as `undo`."""
        return await self.arollback(await self._change(self._agent._at, steps), force=force)

    async def aplan_undo(self, steps: int = 1) -> RollbackPlan:
        """Return what an undo would do, as `plan_undo`."""
        return await self._io(self._agent.plan_undo, steps)

    async def arewind_files(self, restore_point: CheckpointRef, *, force: bool = False) -> FileChanges:
        """Bring the files back, as `rewind_files`."""
        return await self._change(self._agent.rewind_files, restore_point, force=force)

    async def afork(self, to: CheckpointRef | None = None, name: str | None = None) -> RollbackAgent:
        """Make a branch without touching the world, as `fork`."""
        return await self._io(self._agent.fork, to, name)

    async def aredo(self, *, force: bool = False) -> RollbackAgent:
        """Take back the rollback that made this branch, as `redo`."""
        return await self._change(self._agent._redo, on_this_loop(), force=force)

    async def aplan_redo(self) -> RollbackPlan:
        """Return what a redo would do, as `plan_redo`."""
        return await self._io(self._agent.plan_redo)

    async def aplan_switch(self, branch: InternalSession | str | int) -> RollbackPlan:
        """Return what a switch would do, as `plan_switch`."""
        return await self._io(self._agent.plan_switch, branch)

    async def aswitch(
        self,
        branch: InternalSession | str | int,
        sync: str | None = None,
        *,
        force: bool = False,
        on_error: str = "stop",
    ) -> RollbackAgent:
        """Continue on another branch, as `switch`; asynchronous undo functions and tools run on this event loop."""
        return await self._change(
            self._agent._switch, branch, on_this_loop(), sync=sync, force=force, on_error=on_error
        )
