"""A process that reads the feed and is killed at any time: `feed_reader.py URL FILE`.

Each line of the file is the id and the cursor of an event. What a kill has left of the last line is cut off.
"""

import sys
import time
from pathlib import Path

import agentgit


def main(url: str, file: Path) -> None:
    """Append the events after the last whole line."""
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    file.write_text(whole)
    last = whole.split()[-1] if whole else None
    with agentgit.open(url) as repo, file.open("a") as out:
        while True:
            for event in repo.events.list(after=last):
                out.write(f"{event.id} {event.cursor}\n")
                out.flush()
                last = event.cursor
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
