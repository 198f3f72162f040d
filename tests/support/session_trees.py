"""Session trees to display, and hostile text that tries to break the display."""

from datetime import UTC, datetime, timedelta
from itertools import count

from agentgit.sessions.tree import Branch, Point, Tree

NOON = datetime(2026, 10, 4, 12, 0, tzinfo=UTC)


HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07\r\nnext\u202eback\u2028\ud800[bold]x[/bold]" + "日本語" * 60 + "e" + "\u0301" * 900
)


class Story:
    """A builder of points with new ids, turn by turn."""

    def __init__(self) -> None:
        self.ids = count(1)

    def point(self, number: int, kind: str, title: str = "", name: str | None = None) -> Point:
        when = NOON + timedelta(minutes=number)
        auto = kind != "named"
        return Point(id=next(self.ids), number=number, kind=kind, title=title, name=name, is_auto=auto, created_at=when)

    def turn(self, number: int, asked: str, answer: str = "Done.") -> list[Point]:
        return [
            self.point(number, "before", asked),
            self.point(number + 1, "tools"),
            self.point(number + 2, "after", answer),
        ]


def support() -> Tree:
    """Build a session with a named checkpoint, a long run, and every kind of branch."""
    story = Story()
    main = [*story.turn(1, "order two chairs"), story.point(4, "named", "all is in the cart", "before payment")]
    main += story.turn(5, "and a table", "A table, too.")
    for n in range(12):
        main += story.turn(8 + 3 * n, f"question {n}")
    retry = [story.point(1, "branch"), *story.turn(2, "rather a sofa"), *story.turn(5, "and a lamp")]
    undone = [story.point(1, "branch")]
    inner = [story.point(1, "branch"), *story.turn(2, "in red?")]
    return Tree.grow(
        "support-42",
        [
            Branch(id=1, name="main", points=main),
            Branch(id=2, name="retry", points=retry, parent_id=1, branch_point_id=main[3].id, is_current=True),
            Branch(id=3, name="undone", points=undone, parent_id=1, branch_point_id=main[4].id, status="partial"),
            Branch(id=4, name="in-red", points=inner, parent_id=2, branch_point_id=retry[3].id),
            Branch(id=5, name="empty", parent_id=4, branch_point_id=inner[-1].id),
        ],
    )
