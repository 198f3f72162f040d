"""Eight processes on shared and separate sessions of one database lose and duplicate no turn."""

import concurrent_sessions
import processes
import pytest

import agentgit

SCRIPT = (
    "import sys; from concurrent_sessions import main; "
    "sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'True'))"
)


SOAK = [pytest.mark.soak, pytest.mark.timeout(3000)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("turns", "kill"),
    [(5, False), (4, True), pytest.param(40, False, marks=SOAK), pytest.param(30, True, marks=SOAK)],
)
def test_eight_processes_lose_no_turn_also_when_three_are_killed(database, turns, kill):
    """A process that meets another one gets a Conflict and retries; a killed one is continued by the others at once."""
    url = database.url.render_as_string(hide_password=False)
    done = processes.run(SCRIPT, url, turns, kill, timeout=300 + 10 * turns)
    assert (done.returncode, done.stderr) == (0, "")
    with agentgit.open(database.url) as repo:
        concurrent_sessions.check(repo, turns, kill)
