"""The verbs that find: `log`, `search` and `tag`, and their asynchronous twins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from agentgit.checkpoints.queries import Hits, Tag
from agentgit.store.queries.lookup import CheckpointRef

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.handles.log import Log
    from agentgit.handles.session import BranchRef


class LogVerbs:
    """The methods of `RollbackAgent` that find a checkpoint or a branch again."""

    @property
    def _finder(self) -> RollbackAgent:
        return cast("RollbackAgent", self)

    def at(self, branch: BranchRef) -> RollbackAgent:
        """Return an agent on another branch; this one stays where it is, and so does the session.

        Args:
            branch: The name or id of the branch.

        Raises:
            NotFound: The session has no such branch.
        """
        agent = self._finder
        return agent._on(agent.repository.branch(agent._session_id, branch).id)

    def log(self, **which: Any) -> Log:
        """List the checkpoints of the branch, the newest first, by page.

        Args:
            which: `name`, `since`, `until`, `tag`, `author`, `auto` and `which`, as `Repository.log` takes them.

        Raises:
            InvalidInput, NotFound: As `Repository.log`.
        """
        agent = self._finder
        return agent.repository.log(agent._session_id, agent.branch_id, **which)

    def search(self, text: str, *, all_branches: bool = False, limit: int = 20, after: str | None = None) -> Hits:
        """Find messages, tool calls and named checkpoints of the branch by their words, as `Repository.search`.

        Args:
            text: The words to look for.
            all_branches: True to search all branches of the session.
            limit: The largest number of results.
            after: The `next` of the page before; None for the first one.

        Raises:
            InvalidInput, Corrupt: As `Repository.search`.
        """
        agent = self._finder
        return agent.repository.search(
            text, agent._session_id, agent.branch_id, all_branches=all_branches, limit=limit, after=after
        )

    async def asearch(self, text: str, **how: Any) -> Hits:
        """Find by words, as `search`."""
        return await asyncio.to_thread(self.search, text, **how)

    def tag(self, ref: CheckpointRef, name: str, *, description: str | None = None) -> Tag:
        """Tag a checkpoint with a name that is unique in the session, as `Repository.tag`.

        The tag keeps the checkpoint.

        Args:
            ref: A Checkpoint or any place, as `plan_rollback` takes it.
            name: The name of the tag.
            description: A sentence about it.

        Raises:
            InvalidInput, Conflict, NotFound, Ambiguous: As `Repository.tag`.
        """
        agent = self._finder
        return agent.repository.tag(ref, name, agent._session_id, branch=agent.branch_id, description=description)

    async def atag(self, ref: CheckpointRef, name: str, *, description: str | None = None) -> Tag:
        """Tag a checkpoint, as `tag`."""
        return await asyncio.to_thread(self.tag, ref, name, description=description)
