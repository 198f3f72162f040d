"""Eight processes on shared and separate sessions of one database lose and duplicate no turn."""

import concurrent_sessions
import processes
import pytest

import agentgit

SCRIPT = (
    "import sys; from concurrent_sessions import main; "
    "sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'True'))"
)


def run(database, turns, kill):
    """Run turns in eight processes, and check the sessions after that."""
    done = processes.run(
        SCRIPT, database.url.render_as_string(hide_password=False), turns, kill, timeout=300 + 10 * turns
    )
    assert (done.returncode, done.stderr) == (0, "")
    with agentgit.open(database.url) as repo:
        concurrent_sessions.check(repo, turns, kill)


@pytest.mark.long
def test_eight_processes_lose_no_turn(database):
    """A process that meets another one gets a Conflict and retries; the history has each turn once."""
    run(database, 5, kill=False)


@pytest.mark.long
def test_eight_processes_lose_no_turn_when_three_are_killed(database):
    """The surviving processes continue at once on the branches of the killed ones, whose last call is unknown."""
    run(database, 4, kill=True)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("turns", "kill"), [(40, False), (30, True)])
def test_eight_processes_lose_no_turn_in_a_long_run(database, turns, kill):
    """Eight processes lose no turn in 40 turns each, nor in 30 turns each with kills."""
    run(database, turns, kill=kill)
