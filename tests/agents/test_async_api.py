"""The async iterators of the API, and the async twins that create agents and read logs."""

import asyncio

import backend
import pytest
from scripted import World, call, scripted, tool_node_graph

from agentgit import InvalidInput, NotFound


def _graph(*answers):
    return tool_node_graph(scripted(*answers), World().tools())


async def test_trajectories_are_iterated_asynchronously(repo):
    agent = await repo.awrap(_graph(call("add", item="chair"), "ok"), "s")
    await agent.arun("a chair, please")
    steps = [step async for step in agent.session.atrajectories()]
    assert steps == list(agent.session.trajectories())
    assert [len(step["results"]) for step in steps] == [1, 0]
    with pytest.raises(NotFound, match="nowhere"):
        await anext(agent.session.atrajectories(branch="nowhere"))


async def test_an_agent_of_a_session_is_created_asynchronously(repo):
    agent = await repo.awrap(_graph("hello"), "s")
    await agent.arun("hi")
    other = await agent.session.aagent()
    assert other.branch == agent.branch
    assert [point.id for point in await other.session.alog(branch=other.branch_id)] == [
        point.id for point in agent.session.log(branch=agent.branch_id)
    ]


async def test_events_are_followed_asynchronously(repo):
    agent = await repo.awrap(_graph("hello", "again"), "s")
    await agent.arun("hi")
    backend.wait_for_the_feed(repo)
    stored = [event async for event in repo.events.alist(session="s")]
    assert stored == list(repo.events.list(session="s"))
    feed = repo.events.afollow(session="s", after=stored[-1], kinds="tag.*", poll=0.05)
    waiting = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await agent.session.atag("HEAD", "release", branch=agent.branch_id)
    assert (await waiting).kind == "tag.created"
    await feed.aclose()
    with pytest.raises(InvalidInput, match="cursor"):
        await anext(repo.events.alist(after="yesterday"))


async def test_a_cancelled_feed_leaves_no_thread_behind(repo):
    repo.session("s", create=True)

    async def follow():
        async for _ in repo.events.afollow(after=repo.events.end(), poll=3600):
            pass

    task = asyncio.ensure_future(follow())
    await asyncio.sleep(1)  # the feed now waits for its next poll
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 60)
