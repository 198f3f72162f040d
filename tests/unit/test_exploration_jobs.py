"""What is sent to another process to run one turn of an exploration."""

import pickle
from datetime import UTC, datetime

from sqlalchemy import make_url

from agentgit.agents.branch_context import Interval
from agentgit.agents.executors import Job, StoreAddress
from agentgit.agents.explore.turns import TurnJob
from agentgit.auth import Principal, User


def test_a_job_shows_neither_the_password_nor_the_conversation():
    """A job can be pickled, and its text, which executors log, has no password, input, config or effect."""
    user = User(id=1, name="ada", created_at=datetime.now(UTC))
    address = StoreAddress(
        url=make_url("postgresql+psycopg://ada:hunter2@db/agentgit"),
        lease_seconds=60,
        principal=Principal(user=user),
        compression="auto",
        exclude_metadata=frozenset({"token"}),
    )
    turn = TurnJob(
        session_id=2, branch_id=3, branch_name="explore/1", is_new=True, factory=str,
        state_channels=frozenset({"messages"}), effects={}, interval=Interval.read("turn"), fence="replay",
        value={"messages": [("user", "my salary")]}, config={"configurable": {"api_key": "sk-1"}},
    )  # fmt: skip
    job = Job(address, {}, "module:run_job", (turn,))
    assert pickle.loads(pickle.dumps(job)) == job  # noqa: S301  # our own
    for hidden in ("hunter2", "salary", "sk-1"):
        assert hidden not in repr(job)
        assert hidden not in repr(turn)
    assert "module:run_job" in repr(job)
