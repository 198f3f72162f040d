"""Every page passes the rules of axe-core in a browser, fits its window and shows hostile text as text."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from browsers import browser, needs_browser, path_of, signed_in, site_with, violations
from many_branches import wide
from playwright.sync_api import Browser, Page, expect
from scripted import scripted, tool_node_graph

from agentgit import Repository

__all__ = ["browser"]  # a fixture

pytestmark = [pytest.mark.long, needs_browser]

LAYOUT = """() => {
  const wrong = [];
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push("id twice: " + id);
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the window");
  // words in boxes are whole, also where a table is narrow
  for (const e of document.querySelectorAll("td .chip"))
    if (e.checkVisibility() && !e.closest(".unseen") && e.offsetHeight > 30) wrong.push("broken: " + e.textContent);
  // no name pushes what stands beside it out of sight where there is room
  for (const e of document.querySelectorAll(".wide"))
    if (innerWidth > 1000 && e.scrollWidth > e.clientWidth) wrong.push("a table is cut: " + e.ariaLabel);
  return wrong;
}"""
"""The script that returns what is wrong with a page besides the rules of axe-core."""


def reruns(repo: Repository) -> None:
    mute = tool_node_graph(scripted("no", "no"), [])
    repo.rerun([one for one in repo.sessions() if one.session_name != "wide"], mute, name="rerun")
    repo.users.add("x" * 120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Serve reruns of both sessions too, and a session with many branches."""
    with site_with(tmp_path_factory.mktemp("site"), lambda repo: wide(repo, 40), reruns) as made:
        yield made


@pytest.fixture(scope="module")
def page(site: SimpleNamespace, browser: Browser) -> Page:
    return signed_in(browser, site).new_page()


def paths(site: SimpleNamespace) -> list[str]:
    """Return the path of each page."""
    names = ("sessions", "audit", "help", "keys", "users", "join", "sign-in", "nothing", "sessions?name=nothing")
    return [
        *(f"/{name}" for name in names),
        *(path for info in site.repo.sessions() for path in pages_of(site, info.id)),
    ]


def pages_of(site: SimpleNamespace, session_id: int) -> list[str]:
    """Return the path of each page of a session."""
    session = site.repo.session(session_id)
    points = session.checkpoints()
    pages = ["", "/tree?limit=100", "/tree?only=variant"]
    if session.name != "wide":
        pages += [
            f"?at={points[1].id}", f"/checkpoints/{points[-1].id}", "/diff", f"/diff?a={points[0].id}&b=HEAD",
            f"/rollback?to={points[1].id}", "/switch?branch=main", "/switch?branch=rerun", "/rerun?branch=rerun",
            "?branch=rerun", "/search?text=order", "/search?text=note", "/tool-track", "/operations", "/sharing",
        ]  # fmt: skip
    if points[-1].metadata["workspace_snapshot"]:
        pages.append(f"/checkpoints/{points[-1].id}/files")
    reports = [f"/operations/{operation.id}" for operation in session.operations()[-1:]]
    return [*(f"/sessions/{session_id}{page}" for page in pages), f"/audit?session={session_id}", *reports]


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_passes_axe_and_fits_a_desk_and_a_phone(page: Page, site: SimpleNamespace, width: int):
    page.set_viewport_size({"width": width, "height": 900})
    wrong = []
    for path in paths(site):
        page.goto(path)
        page.wait_for_load_state()
        wrong += [f"{path}: {one}" for one in page.evaluate(LAYOUT)]
        # A theme changes only colours.
        for scheme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme=scheme)
            wrong += [f"{path}, {scheme}: {one}" for one in violations(page, **options)]
    assert not wrong, "\n".join(wrong)


def test_hostile_text_is_shown_as_plain_text(page: Page, site: SimpleNamespace):
    """Scripts in names, messages, tags, data and files are shown as text, and none of them runs."""
    hostile = next(info.id for info in site.repo.sessions() if info.session_name.startswith("<script>"))
    for path in pages_of(site, hostile):
        page.goto(path)
        assert page.evaluate("window.pwned") is None, path
        assert page.locator("main img, main script, a[href^=javascript]").count() == 0, path
    page.goto(next(path for path in pages_of(site, hostile) if "/checkpoints/" in path))
    expect(page.locator(".messages")).to_contain_text("<script>window.pwned = 1</script>")
    expect(page.locator(".messages").first).to_contain_text("\\u202eevil")  # escaped: it would reverse the line


def test_the_menu_of_a_row_its_dialog_and_the_panel_of_a_plan_pass_axe(page: Page, site: SimpleNamespace):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(path_of(site, "support-42"))
    page.locator("[role=treeitem][tabindex='0']").focus()
    page.keyboard.press("Space")
    page.keyboard.press("m")
    assert violations(page) == []
    page.get_by_role("menuitem", name="Fork…").click()
    assert page.get_by_role("dialog").is_visible()
    assert violations(page) == []
    page.goto(f"{path_of(site, 'support-42')}?branch=main-2")
    page.get_by_role("link", name="Undo from here").last.click()
    expect(page.locator("#panel-title")).to_be_focused()
    assert violations(page) == []


def test_the_columns_of_a_rerun_are_as_long_as_their_messages(page: Page, site: SimpleNamespace):
    """The recorded conversation and the rerun scroll with the page, not each in a box of its own."""
    page.set_viewport_size({"width": 1280, "height": 300})
    page.goto(f"{path_of(site, 'support-42')}/rerun?branch=rerun")
    columns = page.locator(".sides > .side")
    assert columns.count() == 2
    assert columns.evaluate_all("all => all.map(one => getComputedStyle(one).overflowY)") == ["visible", "visible"]
