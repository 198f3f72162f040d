"""The pages in a real browser: the keyboard, live changes, forms, and no JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from browsers import browser, needs_browser, pages, path_of, site_with
from playwright.sync_api import Page, expect

import agentgit
from agentgit.demo import EFFECTS, build

__all__ = ["browser", "pages"]  # the fixtures

pytestmark = [pytest.mark.long, needs_browser]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with site_with(tmp_path_factory.mktemp("site")) as made:
        yield made


def agent(site: SimpleNamespace, name: str, *said: str) -> agentgit.Agent:
    made = site.repo.wrap(build(site.folder / "shop.db"), name, effects=EFFECTS)
    for text in said:
        made.run(text)
    return made


def reach(page: Page, name: str) -> None:
    """Press Tab until the link or button of that name has the focus, which must be visible."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == name:
            shown = "e => getComputedStyle(e).outlineStyle !== 'none'"
            assert page.evaluate(f"({shown})(document.activeElement)"), f"nobody sees that {name} has the focus"
            return
    raise AssertionError(f"Tab does not come to {name}")


def hit(page: Page, key: str) -> None:
    """Press a key after the page has loaded, so that its script handles the key."""
    page.wait_for_load_state()
    page.keyboard.press(key)


def test_a_rollback_can_be_done_with_the_keyboard_alone(pages, site):
    page = pages()
    page.goto("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    hit(page, "/")
    page.keyboard.type("support")
    page.keyboard.press("Enter")
    page.wait_for_url("**/sessions?name=support")
    hit(page, "j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("support-42")
    expect(page.locator("#tree")).to_be_visible()
    reach(page, "main-2#6")
    page.keyboard.press("Enter")
    expect(page.locator("#talk-title")).to_have_text("At main-2#6")
    reach(page, "Roll back to here")
    page.keyboard.press("Enter")
    expect(page.locator("#panel-title")).to_be_focused()
    reach(page, "Roll back")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Rollback done")
    report = site.repo.session("support-42").operations()[0]
    assert page.url.endswith(f"/operations/{report.id}")
    hit(page, "u")
    expect(page.locator("h1")).to_have_text("support-42")
    assert len(site.repo.session("support-42").branches()) == 3
    hit(page, "?")
    expect(page.locator("h1")).to_have_text("Help")


READ = """() => {
  const parse = DOMParser.prototype.parseFromString;
  window.read = new Promise((done) => {
    DOMParser.prototype.parseFromString = function (text, type) {
      if (text.includes('id="talk"')) setTimeout(done);
      return parse.call(this, text, type);
    };
  });
}"""
"""Makes `window.read` wait until a script has read a conversation that it has fetched, and has used it."""


def test_an_update_that_arrives_late_does_not_bring_back_what_was_left(pages, site):
    talk, page, held = agent(site, "late", "order a chair"), pages(), []
    at = path_of(site, "late")
    with page.expect_response("**/events/live*"):
        page.goto(at)
    page.route(f"**{at}", lambda route: held.append(route))
    with page.expect_request(f"**{at}"):
        talk.checkpoint("meanwhile")
    page.locator("li.tree-row[data-ref='main#2'] .open").click()
    expect(page.locator("#talk-title")).to_have_text("At main#2")
    page.evaluate(READ)
    for route in held:
        route.continue_()
    page.evaluate("window.read")
    assert page.locator("#talk-title").inner_text() == "At main#2"


def test_pages_work_without_javascript(pages, site):
    page, at = pages(java_script_enabled=False), path_of(site, "support-42")
    page.goto(f"{at}/search")
    page.get_by_label("Words").fill("sofa")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".hits mark").first).to_have_text("sofa")
    page.goto(f"{at}/diff?a=main%231&b=HEAD")
    expect(page.locator("section[aria-label^='Only in']")).to_have_count(2)
    page.goto(f"{at}?branch=main")
    page.get_by_role("link", name="Switch to this branch").click()
    page.get_by_role("button", name="Switch").click()
    expect(page.locator(".talk-head")).to_contain_text("Branch main")
    expect(page.locator(".talk-head")).to_contain_text("current")
    assert site.repo.session("support-42").branch().name == "main"


def test_a_rollback_is_planned_and_done_in_the_conversation(pages, site):
    agent(site, "panels", "order a chair", "pay, and mail the receipt")
    page = pages()
    page.goto(path_of(site, "panels"))
    page.get_by_role("link", name="Undo from here").nth(1).click()
    expect(page.locator("#panel-title")).to_be_focused()
    expect(page.locator(".turn").nth(1).locator("#panel")).to_contain_text("Blocked by 1 call (send_mail)")
    expect(page.locator("#panel-title")).to_contain_text("before “pay, and mail the receipt”")
    expect(page.locator("#panel")).not_to_contain_text("Nothing has been changed yet")
    page.get_by_label("Later effects").select_option("keep")
    expect(page.locator("#panel .note").first).to_have_class("note good")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_have_count(0)
    page.get_by_role("link", name="Undo from here").first.click()
    page.get_by_role("button", name="Roll back anyway").click()
    expect(page.locator("h1")).to_contain_text("Rollback done")
    assert site.repo.session("panels").branch().name == "main-2"


def test_turns_are_filtered_and_searched_in_place(pages, site):
    page = pages()
    page.goto(f"{path_of(site, 'support-42')}?branch=main-2")
    page.keyboard.press("/")
    page.keyboard.type("SOFA")
    expect(page.locator(".turn:visible")).to_have_count(1)
    expect(page.locator("#filtered")).to_have_text("1 of 3 turns")
    page.keyboard.press("Enter")
    expect(page.locator("#found .hits mark").first).to_have_text("sofa")
    page.locator("#found .hits a").first.click()
    expect(page.locator("#talk-title")).to_contain_text("At main-2#")


def test_an_edited_message_runs_while_the_page_is_watched(pages, site):
    agent(site, "edits", "order a chair")
    page = pages()
    page.goto(path_of(site, "edits"))
    page.get_by_role("link", name="Edit message 1").click()
    page.get_by_label("New text").fill("order two lamps")
    page.get_by_role("button", name="Roll back and run").click()
    expect(page.locator("#talk-title")).to_have_text("Branch main-2")
    expect(page.locator("#talk")).to_contain_text("Ordered 2 lamps")
    expect(page.locator(".tool-chips").first).to_contain_text("done")


def test_an_open_form_acts_on_the_branch_that_the_page_shows_and_is_sent_once(pages, site):
    """A form that stands open stays through live updates, and closes when the page shows another branch."""
    session = agent(site, "moving").session
    session.checkpoint("by hand")
    session.fork(name="other")
    page = pages()
    with page.expect_response("**/events/live*"):
        page.goto(f"/sessions/{session.id}")
    name, target = page.get_by_label("Name of the branch"), page.locator("input[name=branch]")
    page.locator("summary", has_text="Rename").click()
    name.fill("typed")
    page.locator("summary", has_text="Rename").focus()
    session.checkpoint("while you type")
    expect(page.locator("#talk")).to_contain_text("while you type")
    expect(name).to_have_value("typed")
    session.switch("other")
    session.checkpoint("elsewhere")
    expect(page.locator("#talk-title")).to_have_text("Branch other")
    expect(name).to_be_hidden()
    expect(target).to_have_value("other")
    page.locator("summary", has_text="Rename").click()
    expect(name).to_have_value("other")
    name.fill("better")
    page.get_by_role("button", name="Rename").click()
    expect(page.locator("#talk-title")).to_have_text("Branch better")
    assert {branch.name for branch in session.branches()} == {"main", "better"}
    # The second submission, as by a double click, is not sent.
    submit = "form => form.dispatchEvent(new SubmitEvent('submit', { bubbles: true, cancelable: true }))"
    form = page.locator(".act form[action$=fork]")
    assert [form.evaluate(submit), form.evaluate(submit)] == [True, False]
