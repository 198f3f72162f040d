"""The tree on the pages: what its rows show and hide, and how it is used with a mouse, a keyboard and no script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from browsers import browser, needs_browser, pages, path_of, site_with
from fastapi.testclient import TestClient
from many_branches import deep, wide
from playwright.sync_api import expect
from web_servers import HOSTILE

from agentgit.demo import EFFECTS, build

__all__ = ["browser", "pages"]  # the fixtures


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    additions = (lambda repo: wide(repo, 60), lambda repo: deep(repo, 25))
    with site_with(tmp_path_factory.mktemp("site"), *additions) as made:
        made.client = TestClient(made.app, cookies={"agentgit-80": made.credential})
        yield made


def rows(site: SimpleNamespace, session: str, query: str = "") -> list[str]:
    """Return the text of each row of a session's tree, without its time."""
    handle = site.repo.session(session)
    answer = site.client.get(f"/sessions/{handle.id}/tree{query}")
    assert answer.status_code == 200, answer.text
    items = re.findall(r"<li class=\"tree-row.*?</li>", answer.text, flags=re.DOTALL)
    plain = (re.sub(r"<(time|title)\b.*?</\1>|<[^>]+>", " ", item) for item in items)
    return [" ".join(text.split()) for text in plain]


def test_the_path_to_head_is_one_line_with_what_was_left_beside_it(site):
    """The rows run from the root to HEAD; what a rollback left is a row of its own where it left."""
    assert rows(site, "support-42") == [
        "order two chairs main#2 ⋯",
        "before the table main#3 ⋯",
        "main a table and two lamps, please 2 main #5 ⋯",
        "rather a sofa main-2#3 ⋯",
        "before the mail main-2#4 ⋯",
        "HEAD → main-2 pay, and mail the receipt main-2 #6 ⋯",
    ]


@pytest.mark.long
def test_a_tree_of_many_branches_is_folded_expands_and_is_filtered(site):
    """A page shows fifteen, counts the others at the branch that they leave, and can show more."""
    few = rows(site, "wide")
    assert len(few) < 30
    assert any("HEAD → main" in row for row in few)
    assert any(row.startswith("Show more branches (") for row in few)
    more = rows(site, "wide", "?limit=65")
    assert sum("variant-" in row for row in more) >= 59
    assert not any(row.startswith("Show more") for row in more)
    folded = site.repo.session("wide").folded_tree(limit=15)
    branch = next(one for one in folded.tree.walk() if one.id in folded.collapsed and folded.hidden.get(one.id))
    expanded = rows(site, "wide", f"?open={branch.id}")
    assert len(expanded) > len(few)
    assert any(row.startswith(f"▾ {branch.name}") for row in expanded)
    filtered = rows(site, "wide", f"?only={branch.name}")
    assert any(row.startswith(("▾ " + branch.name, branch.name)) for row in filtered)
    at = f"{path_of(site, 'wide')}/tree"
    assert "with “variant-1” in the name" in site.client.get(f"{at}?only=variant-1").text
    assert "No branch has “nobody” in its name" in site.client.get(f"{at}?only=nobody").text
    # Branches that each leave from the one before stand below each other, and the first ones are counted.
    row_of_rollbacks = rows(site, "deep")
    assert row_of_rollbacks[0].startswith("Show more branches above (10)")
    assert row_of_rollbacks[-1].startswith("HEAD → main-25")
    answer = site.client.get(f"{path_of(site, 'deep')}/tree").text
    assert set(re.findall(r'data-level="(\d+)"', answer)) == {"1"}


def test_two_points_are_compared_by_their_rows(site):
    """The two chosen rows are compared in order of creation; another number of rows is refused with advice."""
    handle = site.repo.session("support-42")
    a, b = (handle.get_checkpoint(ref).id for ref in ("main#3", "main-2#3"))
    page = site.client.get(f"/sessions/{handle.id}/diff?point={b}&point={a}").text
    assert 'name="a" value="main#3"' in page
    assert 'name="b" value="main-2#3"' in page
    assert "Tool calls only in main-2#3" in page
    refused = site.client.get(f"/sessions/{handle.id}/diff?point={a}")
    assert refused.status_code == 422
    assert "Choose two points in the tree, not 1" in refused.text
    assert "tree-compare" in site.client.get(f"/sessions/{handle.id}/diff").text


def test_hostile_names_and_queries_are_text(site):
    session = next(one for one in site.repo.sessions() if one.session_name.startswith("<script>"))
    for query in ("", f"?only={HOSTILE[:100]}", "?only=%00%202e", "?open=1&closed=2&open=3"):
        page = site.client.get(f"/sessions/{session.id}/tree{query}".replace("\x00", "%00")).text
        assert "<script>window" not in page
        assert "<img src=x" not in page
    for query in ("?limit=0", "?limit=9999", "?points=0", "?open=x", "?only=" + "x" * 400):
        assert site.client.get(f"/sessions/{session.id}/tree{query}").status_code == 422, query


def test_a_branch_opens_and_closes_however_many_others_were_opened(site):
    """With 200 open branches one more opens, and one closes, without an error; the oldest one is forgotten."""
    at = f"{path_of(site, 'wide')}/tree"
    full = "&".join(f"{name}={number}" for name in ("open", "closed") for number in range(1, 201))
    page = site.client.get(f"{at}?{full}").text
    for action in ("Expand", "Collapse"):
        link = re.search(rf'class="toggle" href="([^"]*)#tree"[^>]*aria-label="{action} ', page).group(1)
        answer = site.client.get(link.replace("&amp;", "&"))
        assert answer.status_code == 200
        page = answer.text


# -- in a browser


FOCUSED = "document.activeElement.dataset.ref ?? document.activeElement.textContent.trim()"


@needs_browser
@pytest.mark.long
def test_the_tree_is_used_with_the_arrow_keys(pages, site):
    page = pages()
    page.goto(path_of(site, "support-42"))
    page.locator("[role=treeitem][tabindex='0']").focus()
    assert page.evaluate(FOCUSED) == "main-2#6"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(FOCUSED) == "main#3"
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    assert page.evaluate(FOCUSED) == "main#5"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(FOCUSED) == "main#3"
    page.keyboard.press("End")
    page.keyboard.press("Space")
    expect(page.locator("[data-picked]")).to_have_text("main#3 and main-2#6")
    page.keyboard.press("m")
    expect(page.locator("#tree-menu")).to_be_visible()
    assert page.evaluate(FOCUSED) == "Open"
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED) == "main-2#6"
    page.get_by_role("button", name="Compare two points").click()
    expect(page.locator("h1")).to_have_text("Compare")
    expect(page.get_by_label("From")).to_have_value("main#3")
    page.goto(path_of(site, "support-42"))
    page.locator("[role=treeitem][tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url("**?at=*")
    expect(page.locator("[aria-current=true][role=treeitem]")).to_have_attribute("data-ref", "main#2")


@needs_browser
@pytest.mark.long
def test_a_click_anywhere_on_a_row_opens_it_and_its_menu_acts(pages, site):
    page = pages()
    page.goto(path_of(site, "support-42"))
    row = page.locator("li.tree-row[data-ref='main#3']")
    box = row.bounding_box()
    row.click(position={"x": box["width"] * 0.6, "y": box["height"] / 2})
    page.wait_for_url("**?at=*")
    page.locator("li.tree-row[data-ref='main#3']").hover()
    page.get_by_role("button", name="Actions at main#3").click()
    page.get_by_role("menuitem", name="Roll back to here").click()
    expect(page.locator("#panel-title")).to_contain_text("main#3")


@needs_browser
@pytest.mark.long
def test_every_action_is_reached_from_a_row_with_the_keyboard(pages, site):
    agent = site.repo.wrap(build(site.folder / "shop.db"), "rows", effects=EFFECTS)
    agent.run("order a chair")
    agent.checkpoint("by hand")
    session, page = agent.session, pages()

    def act(ref: str, action: str) -> None:
        page.goto(path_of(site, "rows"))
        page.locator(f"li.tree-row[data-ref='{ref}']").focus()
        page.keyboard.press("m")
        while page.evaluate("document.activeElement.textContent") != action:
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")

    act("main#3", "Rename…")
    expect(page.get_by_role("dialog", name="Rename main#3")).to_be_visible()
    expect(page.get_by_label("Name of the checkpoint").and_(page.locator(":focus"))).to_have_value("by hand")
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED) == "main#3"
    act("main#3", "Rename…")
    page.keyboard.type("one chair")
    page.keyboard.press("Enter")
    expect(page.locator(".talk-head")).to_contain_text("one chair")
    act("main#3", "Tag…")
    page.keyboard.press("Enter")  # a tag needs a name
    page.keyboard.type("v1")
    page.keyboard.press("Enter")
    expect(page.locator(".talk-head")).to_contain_text("v1")
    act("main#2", "Fork…")
    page.keyboard.type("other")
    page.keyboard.press("Enter")
    expect(page.locator("#talk-title")).to_have_text("Branch other")
    point = session.get_checkpoint("main#3")
    assert (point.checkpoint_name, point.metadata["tags"]) == ("one chair", ["v1"])
    assert session.branch("other").conversation_history == agent.history()
    act("main#3", "Edit the message and run again…")
    expect(page.locator("#talk #panel").get_by_label("New text")).to_have_value("order a chair")


@needs_browser
@pytest.mark.long
def test_more_branches_are_shown_in_place_and_stay_after_a_reload(pages, site):
    page = pages()
    page.goto(path_of(site, "wide"))
    expect(page.locator("#head")).to_be_in_viewport()
    before = page.get_by_role("treeitem").count()
    page.evaluate("window.same = true")
    page.get_by_role("link", name="Show more branches").first.click()
    expect(page.get_by_role("treeitem").nth(before + 10)).to_be_attached()
    assert page.evaluate("window.same")
    assert "limit=65" in page.url
    after = page.get_by_role("treeitem").count()
    page.reload()
    expect(page.get_by_role("treeitem")).to_have_count(after)
    page.get_by_label("Show only this branch").fill("variant-2")
    page.keyboard.press("Enter")
    expect(page.locator(".tree-row .label", has_text=re.compile("^variant-2$"))).to_be_visible()
    expect(page.get_by_role("treeitem")).not_to_have_count(after)
    assert page.get_by_role("treeitem").count() < after


@needs_browser
@pytest.mark.long
def test_an_open_page_shows_a_new_branch_and_checkpoint_and_keeps_the_focus(pages, site):
    """It announces the checkpoint to screen readers."""
    session = site.repo.wrap(build(site.folder / "shop.db"), "live", effects=EFFECTS).session
    session.checkpoint("before")
    page = pages()
    with page.expect_response("**/events/live*"):
        page.goto(path_of(site, "live"))
    page.locator("li.tree-row[data-ref='main#1']").focus()
    session.fork("main#1", name="made-meanwhile")
    expect(page.locator(".tree-row .label", has_text="made-meanwhile")).to_be_visible()
    assert page.evaluate(FOCUSED) == "main#1"
    session.checkpoint("while you look")
    expect(page.locator("#talk")).to_contain_text("while you look")
    expect(page.locator("#told")).to_have_text("Updated: checkpoint.created")


@needs_browser
@pytest.mark.long
def test_the_tree_works_without_javascript_and_names_stay_whole_on_a_phone(pages, site):
    """Without scripts, links expand and show more; on a phone a name does not break at its hyphen."""
    page = pages(java_script_enabled=False, viewport={"width": 390, "height": 800})
    page.goto(path_of(site, "wide") + "/tree")
    before = page.locator(".tree-row").count()
    page.get_by_role("link", name="Show more branches").first.click()
    assert page.locator(".tree-row").count() > before
    heights = {label.bounding_box()["height"] for label in page.locator(".tree-row .label").all()[:20]}
    assert max(heights) < 30
