"""The verbs of exploration: `explore`, `exploration`, `promote`, and their asynchronous twins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor

from agentgit.agents.explore.explorer import ExploredTurn, Explorer
from agentgit.agents.explore.variants import Choices, Steps, ways
from agentgit.errors import Conflict, InvalidInput
from agentgit.rollback import Settle, on_this_loop, wait
from agentgit.sessions.exploration import Exploration, ExploredBranch
from agentgit.store.queries.explorations import Explorations

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.handles.session import BranchRef

Score = Callable[[ExploredBranch], float | Awaitable[float]]
"""Judges a leaf: the higher, the better."""

AT_ONCE = 8
"""The default number of turns that run at the same time."""


class Explores:
    """The methods of `RollbackAgent` that explore several futures."""

    @property
    def _here_agent(self) -> RollbackAgent:
        return cast("RollbackAgent", self)

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
            >>> agent = agentgit.open(":memory:").wrap(build(open_shop("shop.db")), session="s", effects=EFFECTS)
            >>> print(agent.explore(1, ["order a chair", "order a sofa"]))
            explore, from main: 2 turns, 2 leaves
              explore/1  1 call  Ordered 1 chair for 40 euros (chair-1).
              explore/2  1 call  Ordered 1 sofa for 300 euros (sofa-1).
        """
        at_once = _at_once(parallel)
        explorer = self._explorer(steps, choices, wait, score=score, name=name, config=config, together=bool(parallel))
        with _telling(explorer):
            for trials in explorer.walk():
                _run_all(trials, at_once)
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
        at_once = _at_once(parallel)
        await self._here_agent._closing()
        explorer = self._explorer(
            steps, choices, on_this_loop(), score=score, name=name, config=config, together=bool(parallel)
        )
        with _telling(explorer):
            walk = explorer.walk()
            while (trials := await asyncio.to_thread(next, walk, None)) is not None:
                await _arun_all(trials, at_once)
        return await self.aexploration(explorer.name)

    def exploration(self, name: str | None = None) -> Exploration:
        """Read what was explored in this session, also if it was broken off.

        Args:
            name: The name of the exploration; None is the newest one.

        Raises:
            NotFound: There is none.
        """
        agent = self._here_agent
        found = Explorations(agent.store)
        with agent._reading() as connection:
            known = name or found.last(connection, agent._session_id)
            return found.read(connection, agent._session_id, known)

    async def aexploration(self, name: str | None = None) -> Exploration:
        """Read what was explored, as `exploration`."""
        return await asyncio.to_thread(self.exploration, name)

    def promote(self, branch: ExploredBranch | BranchRef, *, force: bool = False) -> RollbackAgent:
        """Continue on an explored branch, and bring the world to it: what its tools did runs again.

        The same as `switch(branch, sync="world")`; `report` tells what ran, and what returned something else now.

        Args:
            branch: The branch as `explore` returned it, its name, or its id.
            force: True to keep in the world what cannot be reversed or run again.

        Raises:
            NotFound, RollbackBlocked, RollbackIncomplete, Conflict: As `switch`.
        """
        return self._here_agent._switch(_known(branch), wait, sync="world", force=force)

    async def apromote(self, branch: ExploredBranch | BranchRef, *, force: bool = False) -> RollbackAgent:
        """Continue on an explored branch, as `promote`; asynchronous tools and undo functions run on this loop."""
        await self._here_agent._closing()
        switch = self._here_agent._switch
        return await asyncio.to_thread(switch, _known(branch), on_this_loop(), sync="world", force=force)

    def _explorer(
        self,
        steps: Steps,
        choices: Choices,
        settle: Settle,
        *,
        score: Score | None,
        name: str | None,
        config: RunnableConfig | None,
        together: bool,
    ) -> Explorer:
        agent = self._here_agent
        if agent._turn is not None:
            raise Conflict("This agent is running. Explore when its turn has ended.")
        laid = ways(steps, choices)
        return Explorer(agent, laid, name=name, score=score, config=config, settle=settle, together=together)


def _known(branch: ExploredBranch | BranchRef) -> BranchRef:
    return branch.id if isinstance(branch, ExploredBranch) else branch


def _at_once(parallel: bool | int) -> int:
    if parallel < 0:
        raise InvalidInput(f"parallel={parallel} turns cannot run at the same time.")
    return AT_ONCE if parallel is True else max(1, int(parallel))


@contextmanager
def _telling(explorer: Explorer) -> Iterator[None]:
    """Add a note to an error that breaks off an exploration: where to find the part that was explored."""
    try:
        yield
    except BaseException as error:
        if explorer.is_begun:
            error.add_note(
                f"What was explored until now: agent.exploration({explorer.name!r}). "
                f"The same explore(...) with name={explorer.name!r} goes on."
            )
        raise


def _run_all(trials: list[ExploredTurn], at_once: int) -> None:
    if len(trials) == 1:
        _run(trials[0])
        return
    with ContextThreadPoolExecutor(at_once) as pool:
        list(pool.map(_run, trials))


def _run(trial: ExploredTurn) -> None:
    try:
        trial.agent.invoke(trial.value, trial.config)
    except Exception as error:  # noqa: BLE001  # whatever a graph raises is written down with its branch
        trial.error = error


async def _arun_all(trials: list[ExploredTurn], at_once: int) -> None:
    room = asyncio.Semaphore(at_once)

    async def run(trial: ExploredTurn) -> None:
        async with room:
            try:
                await trial.agent.ainvoke(trial.value, trial.config)
            except Exception as error:  # noqa: BLE001  # as in `_run`
                trial.error = error

    await asyncio.gather(*map(run, trials))
