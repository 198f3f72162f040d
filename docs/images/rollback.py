"""Draw rollback.svg, the moving picture of README.md: `python docs/images/rollback.py`.

The script runs the demo's agent. Every line of the picture is what agentgit or the shop said. A viewer that plays no
animations shows the last frame.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import agentgit
from agentgit.agents.agent import RollbackAgent
from agentgit.demo import EFFECTS, build, orders

PICTURE = Path(__file__).with_suffix(".svg")

SECONDS = 18
"""The time from the first frame to the first frame."""

BEATS = 15
"""The time of a loop in beats; the last frame has those that are left."""

WIDTH, HEIGHT, LINE = 940, 384, 20
LEFT, RIGHT, LIMIT = 28, 496, 54
"""The left edges of the two columns, and the number of characters that fit into a line of the first one."""


class Text(NamedTuple):
    """A line of text in the picture, from one beat to another; None for the end of the loop."""

    x: float
    y: float
    words: str
    look: str
    begin: int
    end: int | None = None


class Frame(NamedTuple):
    """What a step of the story shows: lines of the terminal, the shop's orders, the tree, and a caption."""

    beat: int
    lines: list[tuple[str, str]]
    orders: list[str]
    tree: list[str]
    caption: str


def story(folder: Path) -> Iterator[Frame]:
    """Run the demo's agent, and yield what there is to see after each step.

    Args:
        folder: An empty folder for the database and the shop.
    """
    shop = folder / "shop.db"
    with agentgit.open(folder / "agentgit.db") as repo:
        agent = repo.wrap(build(shop), session="support-42", effects=EFFECTS)
        yield _turn(0, agent, "order two chairs", shop, "An agent orders in a shop.")
        agent.checkpoint("before the table")
        yield _frame(
            2, agent, [("code", 'agent.checkpoint("before the table")')], shop, "You mark a point to come back to."
        )
        yield _turn(4, agent, "and a table", shop, "It orders again …")
        retry = agent.rollback("before the table")
        reversed_call = "  ".join(re.split(r"\s{2,}", str(retry.report).splitlines()[1].strip())[:2])
        lines = [("code", 'retry = agent.rollback("before the table")'), ("undone", reversed_call)]
        yield _frame(7, retry, lines, shop, "… and you go back: the order is cancelled in the shop.")
        yield _turn(
            10, retry, "rather a sofa", shop, "You go on, on a new branch. The old one can still be read and run."
        )


def _turn(beat: int, agent: RollbackAgent, text: str, shop: Path, caption: str) -> Frame:
    answer = str(agent.run(text))
    name = "retry" if agent.branch.name != "main" else "agent"
    return _frame(beat, agent, [("code", f'{name}.run("{text}")'), ("said", answer)], shop, caption)


def _frame(beat: int, agent: RollbackAgent, lines: list[tuple[str, str]], shop: Path, caption: str) -> Frame:
    return Frame(beat, lines, [str(order) for order in orders(shop)], str(agent.tree()).splitlines()[1:], caption)


def texts(frames: list[Frame]) -> Iterator[Text]:
    """Yield the lines of the picture.

    Args:
        frames: The steps of the story, in order.
    """
    y = 96.0
    for frame, after in zip(frames, [*frames[1:], None], strict=True):
        end = after.beat if after else None
        yield Text(LEFT, 30, frame.caption, "caption", frame.beat, end)
        for number, (look, words) in enumerate(frame.lines):
            y += LINE if number else LINE + 12
            yield Text(LEFT, y - 12, (">>> " if look == "code" else "") + words[:LIMIT], look, frame.beat + number)
        acted = frame.beat + len(frame.lines) - 1  # the world and the tree change with the last line
        shown = end + len(after.lines) - 1 if after and end is not None else None
        for number, order in enumerate(frame.orders):
            look = "undone" if "cancelled" in order else "order"
            yield Text(RIGHT, 116 + number * LINE, order, look, acted, shown)
        for number, row in enumerate(frame.tree):
            yield Text(RIGHT, 256 + number * LINE, row, "head" if "HEAD" in row else "row", acted, shown)


STYLE = """\
text { font: 13.5px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; fill: #d7dce5 }
.title { font: 600 12px system-ui, "DejaVu Sans", sans-serif; fill: #8b95a7; letter-spacing: .04em }
.caption { font: 600 17px system-ui, "DejaVu Sans", sans-serif; fill: #ffffff }
.code { fill: #8ecbff } .said { fill: #d7dce5 } .undone { fill: #ff9e8f }
.order { fill: #a5e3a1 } .head { fill: #ffd580 }
.undone.struck { text-decoration: line-through 1px #ff9e8f99 }"""


def picture(lines: list[Text]) -> str:
    """Return the picture as an SVG with CSS animations.

    Args:
        lines: The lines of the picture.
    """
    spans = sorted({(line.begin, line.end) for line in lines}, key=lambda span: (span[0], span[1] or BEATS))
    shapes = "\n".join(_line(line, spans.index((line.begin, line.end))) for line in lines)
    rules = "\n".join(_rule(number, begin, end) for number, (begin, end) in enumerate(spans))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" \
aria-label="An agent orders a table. A rollback cancels the order in the shop and continues on a new branch.">
<style>
{STYLE}
.gone {{ opacity: 0 }}
@media (prefers-reduced-motion: no-preference) {{
{rules}
}}
</style>
<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#161b26"/>
<rect x="14" y="50" width="{RIGHT - 36}" height="{HEIGHT - 64}" rx="8" fill="#1f2635"/>
<rect x="{RIGHT - 14}" y="50" width="{WIDTH - RIGHT}" height="134" rx="8" fill="#1f2635"/>
<rect x="{RIGHT - 14}" y="194" width="{WIDTH - RIGHT}" height="{HEIGHT - 208}" rx="8" fill="#1f2635"/>
<text x="{LEFT}" y="76" class="title">YOUR PROGRAM</text>
<text x="{RIGHT}" y="76" class="title">THE SHOP'S ORDERS</text>
<text x="{RIGHT}" y="222" class="title">THE SESSION'S BRANCHES</text>
{shapes}
</svg>
"""


def _line(line: Text, span: int) -> str:
    look = line.look + (" struck" if line.look == "undone" and line.x == RIGHT else "")
    gone = " gone" if line.end is not None else ""
    return f'<text x="{line.x:g}" y="{line.y:g}" class="{look} s{span}{gone}">{escape(line.words)}</text>'


def _rule(number: int, begin: int, end: int | None) -> str:
    """Return the rule that shows the lines of one span of beats and hides them at other times."""
    frames = {0: int(begin == 0), begin: 1} | ({end: 0} if end else {})
    steps = " ".join(f"{100 * beat / BEATS:.1f}% {{ opacity: {opacity} }}" for beat, opacity in frames.items())
    return f"@keyframes k{number} {{ {steps} }} .s{number} {{ animation: k{number} {SECONDS}s step-end infinite }}"


def draw() -> str:
    """Run the story, and return its picture."""
    with TemporaryDirectory() as folder:
        return picture(list(texts(list(story(Path(folder))))))


if __name__ == "__main__":
    PICTURE.write_text(draw())
