"""Draw rerun.svg, the picture of docs/rerun.md: `python docs/images/rerun.py`.

The script runs the agent of the demo, and runs its session again. The picture is the tree of the session.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import agentgit
from agentgit.demo import EFFECTS, build
from agentgit.render.svg import tree_svg

PICTURE = Path(__file__).with_suffix(".svg")


def draw() -> str:
    """Run the session and two reruns, and return the picture of its tree."""
    with TemporaryDirectory() as folder, agentgit.open(Path(folder) / "agentgit.db") as repo:
        shop = Path(folder) / "shop.db"
        agent = repo.wrap(build(shop), session="yesterday", effects=EFFECTS, auto_checkpoint="turn")
        agent.run("what do you have?")
        agent.run("order two chairs")
        agent.rerun(name="new prompt")
        agent.rerun(name="new model")
        retry = agent.rollback("HEAD~1")
        retry.run("order a sofa")
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-11-27 09:00", tree_svg(retry.tree())) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw())
