"""The SVG picture of a tree."""

import base64
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from markup import Page, contrast
from session_trees import HOSTILE, support

from agentgit.effects.invocation import MARKS, mark
from agentgit.render import html, svg
from agentgit.render.view import STYLES
from agentgit.sessions.tree import Branch, Point, Tree

IMAGES = Path(__file__).parents[2] / "docs/images"
STATIC = Path(__file__).parents[2] / "agentgit/web/static"
SVG = "{http://www.w3.org/2000/svg}"


def marked() -> Tree:
    """Return the tree of the other golden files, with tags and with calls of every mark."""
    tree = support()
    branches = {branch.name: branch for branch in tree.walk()}

    def change(name: str, place: int, **facts) -> None:
        points = branches[name].points
        points[place] = replace(points[place], **facts)

    change("main", 2, effects={"done": 1})
    change("main", 6, effects={"irreversible": 1, "reversed": 2})
    change("main", 20, effects={"failed": 1})
    change("retry", 3, effects={"unknown": 1, "done": 12}, tags=("shown to Ann", "v1.0"))
    branches["retry"].effects = {"running": 2}
    return tree


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)  # noqa: S314  # our own


def texts(drawn: str) -> list[str]:
    return [one.text or "" for one in parsed(drawn).iter(f"{SVG}text")]


def test_a_tree_is_drawn_as_the_svg_in_the_docs():
    """The SVG of a tree, with lanes, dots, rings, names, tags, marks and a legend, equals the one in the docs."""
    assert svg.tree_svg(marked()) + "\n" == (IMAGES / "tree.svg").read_text(encoding="utf-8")


def test_the_picture_and_its_dots_have_text_for_screen_readers():
    root = parsed(svg.tree_svg(marked()))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "support-42: 5 branches, 55 checkpoints, on retry at #7"
    told = [one.text for one in root.iter(f"{SVG}title")]
    said = "retry#4, tag shown to Ann, tag v1.0, 2026-10-04 12:04 UTC, 0 messages, 0 calls, 12 done, 1 unknown: Done."
    assert said in told


def test_the_legend_explains_only_the_marks_in_the_picture():
    assert not set(MARKS) & set(texts(svg.tree_svg(support())))
    tree = support()
    tree.roots[0].points[2] = replace(tree.roots[0].points[2], effects={"failed": 1})
    assert set(MARKS) & set(texts(svg.tree_svg(tree))) == {"failed"}


def test_each_dot_links_to_its_checkpoint():
    root = parsed(svg.tree_svg(marked(), link=lambda point: f'/checkpoints/{point.id}?a="1"&b=<2>'))
    assert root.get("role") == "group"
    dots = [a.get("href") for a in root.iter(f"{SVG}a")]
    assert len(dots) == len(set(dots)) == sum(1 for one in root.iter(f"{SVG}g") if not one.get("transform"))
    assert dots[0] == '/checkpoints/1?a="1"&b=<2>'
    assert not list(parsed(svg.tree_svg(marked(), link=lambda point: None)).iter(f"{SVG}a"))


def test_hostile_names_are_only_text_in_a_picture():
    """Names and titles cannot leave their element, break the file, or turn the reading direction."""
    wild = HOSTILE + "\ufffe\uffff\x00</text><script>alert(1)</script>'\"&"
    point = Point(id=1, number=1, name=wild, title=wild, tags=(wild,), effects={"done": 1})
    drawn = svg.tree_svg(Tree(session_name=wild, roots=[Branch(id=1, name=wild, status=wild, points=[point])]))
    known = {"svg", "g", "path", "circle", "rect", "text", "title"}
    assert {one.tag.removeprefix(SVG) for one in parsed(drawn).iter()} <= known
    assert "\u202e" not in drawn
    assert len(drawn) < 20_000


@pytest.mark.parametrize("shape", ["long", "named", "wide", "deep", "at once"])
def test_a_picture_of_ten_thousand_checkpoints_is_small(shape):
    count = 10_000
    if shape in ("long", "named"):
        named = shape == "named"
        points = [Point(id=n, number=n, kind="named" if named else "after", is_auto=not named) for n in range(1, count)]
        if not named:
            points[:-1] = [replace(point, kind="before", title="what?") for point in points[:-1]]
        branches = [Branch(id=1, name="main", points=points, is_current=True)]
    else:
        parents = {"wide": lambda n: 1, "deep": lambda n: n - 1, "at once": lambda n: 1 + n // 100}[shape]
        branches = [
            Branch(
                id=n, name=f"b{n}", points=[Point(id=n, number=1)], parent_id=parents(n) if n > 1 else None,
                branch_point_id=parents(n) if n > 1 else None, is_current=n == 5_000,
            )
            for n in range(1, count)
        ]  # fmt: skip
    drawn = svg.tree_svg(Tree.grow("large", branches))
    assert len(drawn) < 60_000
    root, said = parsed(drawn), texts(drawn)
    assert int(root.get("height")) < 3_000
    assert int(root.get("width")) < 1_500
    assert any(text.startswith("HEAD →") for text in said)
    if len(branches) > 1:
        hidden = [re.match(r"\(?\+?([\d,]+) (?:more )?branch", text) for text in said]
        assert sum(int(one[1].replace(",", "")) for one in hidden if one) == len(branches) - 60
    else:
        assert any(re.fullmatch(r"[\d,]+ turns", text) for text in said)


def test_an_empty_tree_is_drawn():
    for tree in (Tree.grow("new", [Branch(id=1, name="main", is_current=True)]), Tree(session_name="none", roots=[])):
        assert parsed(svg.tree_svg(tree)).get("aria-label").startswith(tree.session_name)


def test_an_untrusted_notebook_shows_the_tree_as_an_image():
    shown = marked()._repr_html_()
    data = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="support-42: 5 branches', shown)
    assert base64.b64decode(data[1]).decode() == svg.tree_svg(marked())
    assert "<svg" not in shown
    assert "<style" not in shown
    assert Page(shown).text == f"as text{marked()}"


def test_marks_and_lanes_on_a_page_are_seen_in_light_and_dark():
    sheets = re.findall(r"--sheet: (#\w{6})", (STATIC / "agentgit.css").read_text())
    lanes = re.findall(r"--lane-\d: (#\w{6})", (STATIC / "tree.css").read_text())
    marks = [re.search(r"#\w{6}", svg.mark_svg(mark, 1))[0] for mark in MARKS]
    half = len(lanes) // 2
    for sheet, own in zip(sheets, (lanes[:half], lanes[half:]), strict=True):
        for colour in (*marks, *own):
            assert contrast(colour, sheet) >= 3, (colour, sheet)


@pytest.mark.parametrize("background", ["#ffffff", "#111111"])
def test_colours_of_pictures_and_tables_are_readable_on_light_and_dark_backgrounds(background):
    assert set(html.COLOURS) <= set(STYLES)
    for colour in (*svg.LANES, *svg.COLOURS.values(), svg.TEXT, svg.TAG, *html.COLOURS.values()):
        assert contrast(colour, background) >= 4, colour


def test_the_picture_follows_the_readers_colour_scheme_on_request():
    assert "prefers-color-scheme:dark" in svg.tree_svg(marked(), follow_reader=True)
    assert "<style" not in svg.tree_svg(marked())


def test_each_effect_and_status_has_one_mark():
    assert mark("reversible", "done") == "done"
    assert mark("irreversible", "done") == "irreversible"
    assert mark("undeclared", "reversed") == "reversed"
    assert mark("compensable", "reverse_failed") == "unknown"
    assert mark("reversible", "intended") == "running"
    assert mark("read_only", "failed") is mark("reversible", "paused") is None
