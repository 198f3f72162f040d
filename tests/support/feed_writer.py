"""A process that writes events in sessions of its own and in shared ones: `feed_writer.py URL NUMBER ROUNDS`.

It prints the id and the session of each event that it has committed.
"""

import random
import sys
import time
from contextlib import suppress

import agentgit
from agentgit import AgentGitError
from agentgit.store.audit.trail import record_event


def main(url: str, number: int, rounds: int) -> None:
    """Write events in transactions of very different length."""
    chance = random.Random(number)  # noqa: S311  # no secret
    with agentgit.open(url, lease_seconds=600) as repo:
        store = repo.context.store
        repo.events.on("*", lambda event: print(event.id, event.session_id, flush=True))  # noqa: T201  # for the test

        def slowly(connection, session_id):
            record_event(connection, store.tenant_id, "tag.created", session_id=session_id, name="slow")
            record_event(connection, store.tenant_id, "tag.created", session_id=session_id, name="slower")
            if store.database.is_sqlite:
                return
            connection.exec_driver_sql("SELECT pg_current_xact_id()")  # so that it has a number while it lasts
            time.sleep(chance.random() * 0.2)

        for one in range(rounds):
            with suppress(AgentGitError):  # the newest session is sometimes erased
                own = repo.session(f"{number} {one}", create=True)
                shared = repo.session(f"shared {one % 2}")
                shared.checkpoint(f"{number} {one}")
                shared.fork(name=f"{number} {one}")
                store.database.write(lambda connection, own=own: slowly(connection, own.id))
                own.checkpoint("two")
                own.rename(f"{number} {one} again")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
