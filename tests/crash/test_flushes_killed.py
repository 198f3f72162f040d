"""A turn with a fault at any moment of a flush keeps what was written, and continues with each effect once.

Real processes are killed, real connections are ended by the server, and a real disk is full; the world is a shop that
outlives them. Just before the fault, another connection reads what is stored; after a kill, exactly that is stored.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from contextlib import ExitStack

import backend
import command_line
import faults
import killed_flush
import processes
import pytest
import small_disks
from killed_flush import (
    ACTING,
    AFTER,
    ANSWERS,
    BACKGROUND,
    CHAT,
    COMMIT,
    DISCONNECT,
    END,
    FILL_DISK,
    FILL_DISK_BRIEFLY,
    FIRST,
    FLUSHES,
    INTENT,
    KILL,
    OUTCOME,
    SECOND,
    Plan,
)  # fmt: skip
from test_killed import is_true, shop, told

import agentgit

__all__ = ["shop"]  # a fixture

LEAST = 5
"""The least number of moments of a flush: before it, BEGIN, one statement, COMMIT, after it."""


class Lives:
    """Sessions of one database, each with a turn that ended and a turn that is killed.

    Args:
        repo: The repository.
        shop: The shop of all sessions.
        seen: The file for what another connection saw before a kill.
    """

    def __init__(self, repo, shop, seen):
        self.url, self.shop, self.seen = backend.address(repo), shop, seen
        self.standing = {}
        """The items that the sessions have bought."""

    def fails(self, plan):
        """Run a life, and return False if the flush has no such moment, so that there was no fault."""
        with agentgit.open(self.url) as repo:
            killed_flush.wrapped(repo, plan.turn, plan.session).invoke(FIRST)
        self.seen.unlink(missing_ok=True)
        code = processes.exit_code(killed_flush.main, self.url, self.shop.path, plan, str(self.seen))
        faults.empty_disk(plan.disk)
        has_failed = self.seen.exists()
        assert code == (-signal.SIGKILL if has_failed and plan.fault == KILL else 0), f"it failed at {plan}"
        with agentgit.open(self.url) as repo:
            if has_failed:
                self.check_stored(repo, plan)
                self.check_head(repo, plan)
            self.go_on(repo, plan)
        return has_failed

    def check_stored(self, repo, plan):
        """Check that what was written before the fault is stored, and nothing of a flush that was killed."""
        if not backend.is_sqlite(repo):
            with backend.reading(repo) as transaction:
                backend.wait_until_quiet(transaction.connection)
        seen = json.loads(self.seen.read_text("utf-8"))
        stored = backend.rows_of_turns(self.url)
        if plan.fault == KILL:
            assert stored == seen["rows"]
        assert set(seen["flushed"]) <= {checkpoint_id for _, _, checkpoint_id in stored["graph_checkpoint"]}
        assert repo.maintenance.fsck(3).is_sound

    def check_head(self, repo, plan):
        """Check that the head is the one before the turn, or the one that the end of the turn has published."""
        repo.session(plan.session).recover()
        is_true(repo, self.shop)
        history = repo.session(plan.session).get_checkpoint("HEAD").conversation_history
        published = [message["content"].split()[0] for message in history if message["role"] == "assistant"]
        can_have_ended = plan.flush == END or plan.fault != KILL
        assert published == [*ANSWERS] or (can_have_ended and published == 2 * [*ANSWERS])

    def go_on(self, repo, plan):
        """Continue the turn, and check that it ends as if nobody had killed it."""
        told(repo, self.shop)
        agent = killed_flush.wrapped(repo, plan.turn, plan.session)
        is_begun = "second" in texts(agent)
        if not is_begun or answers(agent) != 2 * [*ANSWERS]:
            agent.invoke(None if is_begun else SECOND, durability=plan.durability)
        assert answers(agent) == 2 * [*ANSWERS]
        self.standing |= dict.fromkeys(killed_flush.items(plan.session), 1) if plan.turn == ACTING else {}
        assert self.shop.standing == self.standing
        is_true(repo, self.shop)
        acted = [call for call in repo.session(plan.session).tool_track() if call.tool_name != "look"]
        assert [call.tool_name for call in acted if call.status == "done"] == ["order", "pay"] * (plan.turn == ACTING)
        assert {call.status for call in acted} <= {"done", "failed"}


def texts(agent):
    """Return the first word of each message in the newest state of an agent."""
    return [message.content.split()[0] for message in agent.get_state().values["messages"]]


def answers(agent):
    """Return the same of the answers only."""
    return [text for text in texts(agent) if text in ANSWERS]


@pytest.fixture
def lives(repo, shop, tmp_path):
    """Yield the sessions of a database, and check at the end that `fsck` and `db check` find nothing."""
    yield from sessions(repo, shop, tmp_path)


def sessions(repo, shop, tmp_path):
    yield Lives(repo, shop, tmp_path / "seen")
    assert repo.maintenance.fsck(3).is_sound
    assert command_line.run("db", "check", "--db", backend.address(repo)).code == 0


@pytest.fixture
def postgres_lives(postgres_url, shop, tmp_path):
    with agentgit.open(postgres_url) as repo:
        yield from sessions(repo, shop, tmp_path)


@pytest.fixture
def disk():
    with small_disks.mounted() as disk:
        yield disk


@pytest.fixture(params=["sqlite", "postgresql"])
def lives_on_disk(request, disk, shop, tmp_path):
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = disk / "agentgit.db"
            shutil.copy(request.getfixturevalue("sqlite_template"), url)
        else:
            url = stack.enter_context(small_disks.postgres_database(disk, request.getfixturevalue("postgres_made")))
        yield from sessions(stack.enter_context(agentgit.open(url)), shop, tmp_path)


@pytest.mark.parametrize(
    ("turn", "durability", "flush", "moment"),
    [(ACTING, "async", INTENT, 3), (CHAT, "async", BACKGROUND, 4), (ACTING, "sync", OUTCOME, 1)],
)
def test_a_turn_killed_in_a_flush_continues(lives, turn, durability, flush, moment):
    assert lives.fails(Plan(turn, durability, flush, moment, "s"))


EACH_FLUSH = [(*turn, flush) for turn, flushes in FLUSHES.items() for flush in flushes]
EACH_FLUSH_IN_ASYNC = [(turn, flush) for turn, durability, flush in EACH_FLUSH if durability == "async"]

MOMENTS = [1, 2, 3, LEAST, COMMIT, AFTER]
"""A moment of each kind: before a flush, BEGIN, early and later statements, COMMIT, after it."""

BETWEEN = 4
"""How many kinds of moments lie between the two of a flush; the next flush has the next ones."""


def moments_of(flushes):
    """Give each flush two moments, and in `make soak` all of them."""
    twos = [[MOMENTS[n % len(MOMENTS)] for n in (number, number + BETWEEN)] for number in range(len(flushes))]
    some = [(*flush, two) for flush, two in zip(flushes, twos, strict=True)]
    return [*some, *(pytest.param(*flush, None, marks=pytest.mark.soak) for flush in flushes)]


@pytest.mark.long
@pytest.mark.parametrize(("turn", "durability", "flush", "moments"), moments_of(EACH_FLUSH))
def test_a_turn_killed_at_each_moment_of_a_flush_continues(lives, turn, durability, flush, moments):
    """Before, between and after all statements of a flush, a kill loses at most the flush, and no effect twice."""
    if durability != "async" and not lives.url.startswith("sqlite"):
        pytest.skip("SQLite tries each durability; the flushes are the same")
    expect_faults(lives, turn, durability, flush, moments)


FILLED = [(*each, FILL_DISK) for each in EACH_FLUSH_IN_ASYNC]
FILLED += [(*each, FILL_DISK_BRIEFLY) for each in EACH_FLUSH_IN_ASYNC if each[1] in (BACKGROUND, OUTCOME)]


@pytest.mark.long
@pytest.mark.parametrize(("turn", "flush", "fault", "moments"), moments_of(FILLED))
def test_a_turn_whose_disk_is_full_at_a_moment_of_a_flush_continues(disk, lives_on_disk, turn, flush, fault, moments):
    expect_faults(lives_on_disk, turn, "async", flush, moments, fault, disk)


@pytest.mark.long
@pytest.mark.parametrize(("turn", "flush", "moments"), moments_of(EACH_FLUSH_IN_ASYNC))
def test_a_turn_whose_connections_break_at_a_moment_of_a_flush_continues(postgres_lives, turn, flush, moments):
    expect_faults(postgres_lives, turn, "async", flush, moments, DISCONNECT)


def expect_faults(lives, turn, durability, flush, moments, fault=KILL, disk=""):
    """Run a life for each of some moments of a flush; for each moment that it has if they are None."""
    for moment in moments or itertools.count(1):
        if not lives.fails(Plan(turn, durability, flush, moment, f"s{moment}", fault, str(disk))):
            assert moments is None, f"the flush has no moment {moment}"
            assert moment > LEAST
            break
