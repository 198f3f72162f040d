"""Eight processes on one database, on shared and own sessions and branches: no turn is lost and none is there twice."""

import crowd
import processes
import pytest

import agentgit

SCRIPT = "import sys, crowd; sys.exit(crowd.main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'True'))"


def run(database, turns, kill):
    """Let them talk, and look at what is there then."""
    done = processes.run(
        SCRIPT, database.url.render_as_string(hide_password=False), turns, kill, timeout=300 + 10 * turns
    )
    assert (done.returncode, done.stderr) == (0, "")
    with agentgit.open(database.url) as repo:
        crowd.check(repo, turns, kill)


@pytest.mark.long
def test_d5_eight_processes_lose_no_turn(database):
    """D5: who is in the way of another gets a Conflict and tries again; the history has each turn once."""
    run(database, 5, kill=False)


@pytest.mark.long
def test_d5_eight_processes_of_which_three_are_killed_lose_no_turn(database):
    """D5: those that live go on at once on the branches of the dead, whose last call is unknown."""
    run(database, 4, kill=True)


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("turns", "kill"), [(40, False), (30, True)])
def test_d5_eight_processes_with_many_turns_each_lose_no_turn(database, turns, kill):
    """D5: the same for long."""
    run(database, turns, kill=kill)
