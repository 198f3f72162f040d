"""The log finds checkpoints by filter and page, from columns alone."""

import itertools
import sqlite3
from datetime import UTC, datetime, timedelta

import backend
import faults
import pytest
from scripted import World, call, scripted, tool_node_graph

import agentgit
from agentgit import InvalidInput, NotFound

PAGE = """
EXPLAIN QUERY PLAN SELECT * FROM checkpoint WHERE internal_session_id = 1 AND number <= 9{}
AND (created_at, id) < ('2026', 1) ORDER BY created_at DESC, id DESC LIMIT 5
"""


def chat(repo, session="s"):
    """Wrap a graph whose model answers and calls no tool."""
    return repo.wrap(tool_node_graph(scripted(*(f"answer {n}" for n in range(50))), []), session)


def ids(points):
    return [point.id for point in points]


def paged(log, limit):
    """Return the checkpoints on all pages of a log; each page but the last one is full."""
    page = log.page(limit)
    found = [*page]
    while page.next is not None:
        assert len(page) == limit
        page = log.page(limit, after=page.next)
        found += page
    return found


@pytest.fixture
def agent(repo):
    """Create an agent on a branch made by a rollback, with repeated checkpoint names."""
    first = chat(repo)
    first.run("one")
    first.checkpoint("payment", data={"cart": ["chair"]})
    first.run("two")
    first.checkpoint("payment")
    first.checkpoint("delivery")
    first.run("three")
    second = first.rollback("delivery")
    second.run("four")
    second.checkpoint("payment", description="the third one")
    second.run("five")
    return second


def test_a_log_lists_the_path_newest_first(repo, agent):
    log = repo.session("s").log()
    assert ids(log) == ids(agent.checkpoints())[::-1]
    assert len(log) == len(agent.checkpoints())
    assert ids(agent.session.log(branch=agent.branch_id)) == ids(log)
    assert repo.session("s").log(branch="main")
    assert not repo.session("s").log(name="nothing")


def test_names_may_repeat_and_the_newest_is_first(repo, agent):
    log = repo.session("s").log()
    assert [p.metadata["reference"] for p in log.by_name("payment")] == ["main-2#4", "main#6", "main#3"]
    assert log.latest().metadata["reference"] == "main-2#6"
    assert log.latest("payment").metadata["description"] == "the third one"
    assert log.latest("delivery").metadata["reference"] == "main#7"
    assert log.latest("nothing") is None
    assert log.get(log.latest().id).id == log.latest().id
    assert log.get("payment").id == log.latest("payment").id
    assert log.get("nowhere") is None
    assert log.get(7) is None


def test_recovery_data_is_read_without_side_effects(repo, agent):
    before = (len(repo.session("s").branches()), len(repo.session("s").log(which="all")))
    found = repo.session("s").log().by_name("payment").page().items[-1]
    assert found.metadata["data"] == {"cart": ["chair"]}
    assert [m["content"] for m in found.conversation_history] == ["one", "answer 0"]
    assert before == (len(repo.session("s").branches()), len(repo.session("s").log(which="all")))


def test_since_and_between_include_their_ends(repo, agent):
    log = repo.session("s").log()
    points = list(log)
    third, first = points[2].created_at, points[-1].created_at
    assert ids(log.since(third)) == ids(points[:3])
    assert ids(log.between(first, third)) == ids(points[2:])
    assert ids(log.since(third).between(first, third)) == ids(points[2:3])
    assert ids(repo.session("s").log(until=third)) == ids(points[2:])
    assert len(log.since(datetime.now(UTC) + timedelta(days=1))) == 0


def test_every_filter_matches_a_full_scan(repo, agent):
    when = list(repo.session("s").log())[4].created_at
    own = [point for point in agent.checkpoints() if point.metadata["branch"] == "main-2"]
    everything = {"branch": own, "all": [*repo.session("s").checkpoints(branch="main"), *own]}
    for which, name, auto, since, until in itertools.product(
        everything, (None, "payment", "delivery"), (None, True, False), (None, when), (None, when)
    ):
        expected = [
            point.id for point in everything[which]
            if (name is None or point.checkpoint_name == name)
            and (auto is None or point.is_auto is auto)
            and (since is None or point.created_at >= since)
            and (until is None or point.created_at <= until)
        ]  # fmt: skip
        log = repo.session("s").log(author="local", which=which, name=name, auto=auto, since=since, until=until)
        assert ids(log) == sorted(expected, reverse=True), log
        assert len(log) == len(expected), log


@pytest.mark.parametrize("which", ["path", "branch", "all"])
def test_pages_of_any_length_cover_the_whole_log(repo, agent, which):
    log = repo.session("s").log(which=which)
    whole = ids(log)
    for limit in (1, 2, 3, 7, 100):
        assert ids(paged(log, limit)) == whole
    assert ids(log.page(2, after=log.page(3).items[-1])) == whole[3:5]


def test_pages_stay_stable_while_others_write_and_delete(repo, agent):
    log = repo.session("s").log()
    first = log.page(3)
    expected = ids(log)[3:]
    agent.run("six")
    agent.checkpoint("payment")
    repo.session("s").delete_checkpoint(first.items[-1].id)
    assert ids(log.page(100, after=first.next)) == expected
    repo.session("s").delete_checkpoint(expected[0])
    assert ids(log.page(100, after=first.next)) == expected[1:]


def test_a_clock_that_goes_backwards_loses_no_checkpoint(repo):
    agent = chat(repo)
    agent.checkpoint("zero")
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    for n in range(9):
        point = agent.checkpoint(f"n{n}")
        backend.change(repo, "checkpoint", point.id, created_at=moment - timedelta(days=n // 3))
    seen = [point.checkpoint_name for point in paged(repo.session("s").log(), 2)]
    assert seen == ["zero", "n2", "n1", "n0", "n5", "n4", "n3", "n8", "n7", "n6"]
    assert repo.session("s").get_checkpoint("HEAD").checkpoint_name == "n8"
    assert repo.session("s").get_checkpoint("HEAD~9").checkpoint_name == "zero"


@pytest.mark.usefixtures("agent")
def test_a_log_reads_no_state(repo):
    with faults.no_state_is_read():
        log = repo.session("s").log()
        assert len(list(log)) == len(log)
        assert log.latest("payment")
        assert repo.session("s").get_checkpoint("HEAD~3")


def test_bad_arguments_are_refused(repo, agent):
    log = repo.session("s").log()
    for wrong in (0, -1, 1001, True, "7", None):
        with pytest.raises(InvalidInput, match="limit"):
            log.page(wrong)
    for wrong in ("", "x", "1-", "1-2-3", "9" * 18 + "-1", "' OR 1=1 --", "\u0661-\u0662", 7, agentgit.Checkpoint()):
        with pytest.raises(InvalidInput, match="cursor"):
            log.page(5, after=wrong)
    naive = datetime(2026, 1, 1)
    for how in ({"since": naive}, {"until": "yesterday"}, {"auto": "yes"}, {"which": "some"}, {"name": 7}):
        with pytest.raises(InvalidInput):
            repo.session("s").log(**how)
    for how in ({"author": "nobody"}, {"author": 7}):
        with pytest.raises(NotFound, match="no user"):
            repo.session("s").log(**how)
    for verb in (len, list):
        with pytest.raises(NotFound):
            verb(repo.session("nowhere").log())
        with pytest.raises(NotFound):
            verb(repo.session("s").log(branch="nowhere"))
        with pytest.raises(NotFound, match="no tag"):
            verb(repo.session("s").log(tag="nowhere"))
    assert "name='x'" in repr(repo.session("s").log(name="x"))


@pytest.mark.parametrize("name", ["'; DROP TABLE checkpoint; --", "a\0b", "\ud800", "日本 👍", "x" * 200, "%", "_"])
def test_hostile_names_are_treated_as_plain_names(repo, name):
    agent = chat(repo)
    made = agent.checkpoint(name)
    agent.checkpoint("y" * 200)
    assert ids(repo.session("s").log(name=name)) == [made.id]
    assert repo.session("s").log().latest(name).checkpoint_name == name


async def test_a_page_has_an_async_twin(repo, agent):
    assert ids(await agent.session.log(branch=agent.branch_id).apage(3)) == ids(
        agent.session.log(branch=agent.branch_id).page(3)
    )


def test_pages_are_found_through_an_index(tmp_path):
    world = World()
    with agentgit.open(tmp_path / "x.db") as repo:
        repo.wrap(tool_node_graph(scripted(call("add", "c", item="x"), "done"), world.tools()), "s").run("go")
    with sqlite3.connect(tmp_path / "x.db") as connection:
        for condition, index in (("", "ix_checkpoint_log"), (" AND name = 'x'", "ix_checkpoint_name")):
            query = PAGE.format(condition)
            plan = str(connection.execute(query).fetchall())
            assert index in plan
            assert "TEMP B-TREE" not in plan
    connection.close()
