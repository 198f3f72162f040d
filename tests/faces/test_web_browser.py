"""The pages in a real browser: the keyboard, accessibility, live changes, hostile text and no JavaScript."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from browsers import browser, needs_browser, pages
from playwright.sync_api import Page, expect
from web_servers import hostile, served, story

import agentgit
from agentgit.demo import EFFECTS, build
from agentgit.web import OwnerLink, app

__all__ = ["browser", "pages"]  # the fixtures

pytestmark = needs_browser

FINDINGS = """() => {
  const wrong = [];
  const seen = (e) => e.checkVisibility() && !e.closest(".unseen");
  if (document.querySelectorAll("h1").length !== 1) wrong.push("not one h1");
  if (!document.documentElement.lang) wrong.push("no language");
  for (const name of ["header", "main"])
    if (document.querySelectorAll(name).length !== 1) wrong.push("not one " + name);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push("id twice: " + id);
  for (const e of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!e.labels.length && !e.ariaLabel) wrong.push("no label: " + e.outerHTML);
  for (const e of document.querySelectorAll("a, button, summary"))
    if (!e.textContent.trim() && !e.querySelector("title, img[alt]")) wrong.push("no name: " + e.outerHTML);
  for (const e of document.querySelectorAll("[tabindex]"))
    if (e.tabIndex > 0) wrong.push("own tab order: " + e.outerHTML);
  for (const e of document.querySelectorAll("nav")) if (!e.ariaLabel) wrong.push("nameless nav");
  let level = 0;
  for (const e of document.querySelectorAll("h1, h2, h3, h4")) {
    if (+e.tagName[1] > level + 1) wrong.push("heading skips a level: " + e.textContent);
    level = +e.tagName[1];
  }
  // WCAG 2.2: relative luminance, and the contrast of text with what lies below it
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const c of colours) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(e)) continue;
    const below = [];
    for (let up = e; up; up = up.parentElement) below.unshift(getComputedStyle(up).backgroundColor);
    const style = getComputedStyle(e), svg = e.closest("svg");
    const text = svg ? style.fill : style.color;
    // the colours of the tree have a test of their own
    if (e.tagName === "title" || (svg && !e.classList.contains("agentgit-text"))) continue;
    const a = light(over([...below, text])), b = light(over(below));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(1)}: ${e.textContent.trim().slice(0, 40)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the window");
  // words in boxes are whole, also where a table is narrow
  for (const e of document.querySelectorAll("td .chip"))
    if (seen(e) && e.offsetHeight > 30) wrong.push("broken: " + e.textContent);
  // no name pushes what stands beside it out of sight where there is room
  for (const e of document.querySelectorAll(".wide"))
    if (innerWidth > 1000 && e.scrollWidth > e.clientWidth) wrong.push("a table is cut: " + e.ariaLabel);
  return wrong;
}"""
"""The script that returns the accessibility problems of a page."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Serve a repository with a friendly and a hostile session, and make a sign-in link."""
    folder = tmp_path_factory.mktemp("site")
    with story(folder) as repo:
        hostile(repo, folder)
        repo.users.add("x" * 120)
        repo.wrap(build(folder / "shop.db"), "support-42", effects=EFFECTS)  # no turn: the hostile one stays newest
        link = OwnerLink()
        made = app(repo, link=link, hosts=["127.0.0.1"])
        with served(made) as address:
            credential = link.token
            yield SimpleNamespace(repo=repo, address=address, credential=credential, folder=folder)


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for screenshots: $AGENTGIT_SCREENSHOTS, or else a temporary folder."""
    given = os.environ.get("AGENTGIT_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"screenshots are in {folder}")  # noqa: T201  # pytest shows it with -s or where a test fails
    return folder


def paths(repo: agentgit.Repository, name: str) -> dict[str, str]:
    """Return the paths of a session's pages, by a short name."""
    session = next(one for one in repo.sessions() if one.session_name.startswith(name))
    at = f"/sessions/{session.id}"
    head = repo.session(session).checkpoints()[-1]
    found = {
        "session": at, "checkpoint": f"{at}/checkpoints/{head.id}", "files": f"{at}/checkpoints/{head.id}/files",
        "diff": f"{at}/diff?a=main%231&b=HEAD", "plan": f"{at}/rollback?to=main%231",
        "search": f"{at}/search?text=note", "tool-track": f"{at}/tool-track",
        "operations": f"{at}/operations", "sharing": f"{at}/sharing", "events": f"/audit?session={session.id}",
    }  # fmt: skip
    operations = repo.session(session).operations()
    return found | ({"operation": f"/operations/{operations[-1].id}"} if operations else {})


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


@pytest.mark.long
def test_a_rollback_can_be_done_with_the_keyboard_alone(pages, site, shots):
    """A keyboard suffices to find a session, open a checkpoint, plan and run a rollback and read its report."""
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
    page.screenshot(path=shots / "keyboard-plan.png", full_page=True)
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


@pytest.mark.long
def test_a_click_on_a_tree_node_opens_its_checkpoint(pages, site):
    """A click on a dot of the picture shows the conversation at that checkpoint."""
    page = pages()
    page.goto(paths(site.repo, "support")["session"])
    page.locator("#tree [data-ref='main#3'] a").click()
    expect(page.locator("#talk-title")).to_have_text("At main#3")


@pytest.mark.long
def test_every_page_passes_the_accessibility_checks(pages, site, shots):
    """Each page, light and dark, has one h1, named controls, enough contrast and no overflowing line."""
    page = pages(viewport={"width": 1200, "height": 800})
    found = {
        "sessions": "/sessions", "audit": "/audit", "help": "/help", "sign-in": "/sign-in", "keys": "/keys",
        "users": "/users", "join": "/join", "nothing": "/sessions?name=nothing",
    }  # fmt: skip
    for name, path in (found | paths(site.repo, "support")).items():
        page.goto(path)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=shots / f"{scheme}-{name}.png", full_page=True)
            assert page.evaluate(FINDINGS) == [], (name, scheme)


@pytest.mark.long
def test_pages_fit_a_phone(pages, site, shots):
    """At the width of a phone nothing is cut off."""
    page = pages(viewport={"width": 390, "height": 800}, has_touch=True)
    found = paths(site.repo, "support") | {
        "sessions": "/sessions", "audit": "/audit", "help": "/help", "keys": "/keys", "users": "/users", "join": "/join"
    }  # fmt: skip
    found |= {f"hostile-{name}": paths(site.repo, "<script>")[name] for name in ("session", "checkpoint", "files")}
    for name, path in found.items():
        page.goto(path)
        page.screenshot(path=shots / f"phone-{name}.png")
        assert page.evaluate(FINDINGS) == [], name


@pytest.mark.long
def test_hostile_text_is_shown_as_plain_text(pages, site):
    """Scripts in names, messages, tags, data and files are shown as text, and none of them runs."""
    page = pages()
    found = paths(site.repo, "<script>")
    for name in ("session", "files", "diff", "plan", "search", "events", "checkpoint"):
        page.goto(found[name])
        assert page.evaluate("window.pwned") is None, name
        assert page.locator("main img, main script, a[href^=javascript]").count() == 0, name
    expect(page.locator(".messages")).to_contain_text("<script>window.pwned = 1</script>")
    expect(page.locator(".messages").first).to_contain_text("\\u202eevil")  # escaped: it would reverse the line


@pytest.mark.long
def test_an_open_page_shows_a_new_checkpoint_without_a_reload(pages, site):
    """An open session page shows a new checkpoint by itself and announces it to screen readers."""
    agent = site.repo.wrap(build(site.folder / "shop.db"), "live", effects=EFFECTS)
    agent.run("order a chair")
    page = pages()
    with page.expect_response("**/events/live*"):
        page.goto(paths(site.repo, "live")["session"])
    agent.checkpoint("while you look")
    expect(page.locator("#talk")).to_contain_text("while you look")
    expect(page.locator("#told")).to_have_text("Updated: checkpoint.created")


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


@pytest.mark.long
def test_an_update_that_arrives_late_does_not_bring_back_what_was_left(pages, site):
    """A live update of a conversation that a person has left in the meantime is not shown."""
    agent = site.repo.wrap(build(site.folder / "shop.db"), "late", effects=EFFECTS)
    agent.run("order a chair")
    page, held = pages(), []
    at = paths(site.repo, "late")["session"]
    with page.expect_response("**/events/live*"):
        page.goto(at)
    page.route(f"**{at}", lambda route: held.append(route))
    with page.expect_request(f"**{at}"):
        agent.checkpoint("meanwhile")
    page.locator("li.tree-row[data-ref='main#2'] .open").click()
    expect(page.locator("#talk-title")).to_have_text("At main#2")
    page.evaluate(READ)
    for route in held:
        route.continue_()
    page.evaluate("window.read")
    assert page.locator("#talk-title").inner_text() == "At main#2"


@pytest.mark.long
def test_pages_work_without_javascript(pages, site):
    """Search, diff and the switch to another branch work without JavaScript."""
    page = pages(java_script_enabled=False)
    found = paths(site.repo, "support")
    page.goto(found["session"] + "/search")
    page.get_by_label("Words").fill("sofa")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".hits mark").first).to_have_text("sofa")
    page.goto(found["diff"])
    expect(page.locator("section[aria-label^='Only in']")).to_have_count(2)
    page.goto(found["session"] + "?branch=main")
    page.get_by_role("link", name="Switch to this branch").click()
    page.get_by_role("button", name="Switch").click()
    expect(page.locator(".talk-head")).to_contain_text("Branch main")
    expect(page.locator(".talk-head")).to_contain_text("current")
    assert site.repo.session("support-42").branch().name == "main"


@pytest.mark.long
def test_a_rollback_is_planned_and_done_in_the_conversation(pages, site, shots):
    """A panel opens where the turn is, follows its options, closes with Escape, and its button rolls back."""
    agent = site.repo.wrap(build(site.folder / "shop.db"), "panels", effects=EFFECTS)
    agent.run("order a chair")
    agent.run("pay, and mail the receipt")
    page = pages()
    page.goto(paths(site.repo, "panels")["session"])
    page.get_by_role("link", name="Undo from here").nth(1).click()
    expect(page.locator("#panel-title")).to_be_focused()
    expect(page.locator(".turn").nth(1).locator("#panel")).to_contain_text("Blocked by 1 call (send_mail)")
    expect(page.locator("#panel-title")).to_contain_text("before “pay, and mail the receipt”")
    expect(page.locator("#panel")).not_to_contain_text("Nothing has been changed yet")
    page.get_by_label("Later effects").select_option("keep")
    expect(page.locator("#panel .note").first).to_have_class("note good")
    page.screenshot(path=shots / "panel.png", full_page=True)
    assert page.evaluate(FINDINGS) == []
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_have_count(0)
    page.get_by_role("link", name="Undo from here").first.click()
    page.get_by_role("button", name="Roll back anyway").click()
    expect(page.locator("h1")).to_contain_text("Rollback done")
    assert site.repo.session("panels").branch().name == "main-2"


@pytest.mark.long
def test_a_double_click_sends_a_form_once(pages, site):
    """The second submission of a form, as by a double click, is not sent."""
    session = site.repo.wrap(build(site.folder / "shop.db"), "twice", effects=EFFECTS).session
    session.checkpoint("by hand")
    page = pages()
    page.goto(paths(site.repo, "twice")["session"])
    submit = "form => form.dispatchEvent(new SubmitEvent('submit', { bubbles: true, cancelable: true }))"
    form = page.locator(".act form[action$=fork]")
    assert [form.evaluate(submit), form.evaluate(submit)] == [True, False]


@pytest.mark.long
def test_turns_are_filtered_and_searched_in_place(pages, site):
    """Typing hides the turns without the words, and Enter shows the results of the whole session in place."""
    page = pages()
    page.goto(paths(site.repo, "support")["session"] + "?branch=main-2")
    page.keyboard.press("/")
    page.keyboard.type("SOFA")
    expect(page.locator(".turn:visible")).to_have_count(1)
    expect(page.locator("#filtered")).to_have_text("1 of 3 turns")
    page.keyboard.press("Enter")
    expect(page.locator("#found .hits mark").first).to_have_text("sofa")
    page.locator("#found .hits a").first.click()
    expect(page.locator("#talk-title")).to_contain_text("At main-2#")


@pytest.mark.long
def test_an_edited_message_runs_while_the_page_is_watched(pages, site):
    """A message is edited in place, and the page of the new branch shows the answer by itself."""
    agent = site.repo.wrap(build(site.folder / "shop.db"), "edits", effects=EFFECTS)
    agent.run("order a chair")
    page = pages()
    page.goto(paths(site.repo, "edits")["session"])
    page.get_by_role("link", name="Edit message 1").click()
    page.get_by_label("New text").fill("order two lamps")
    page.get_by_role("button", name="Roll back and run").click()
    expect(page.locator("#talk-title")).to_have_text("Branch main-2")
    expect(page.locator("#talk")).to_contain_text("Ordered 2 lamps")
    expect(page.locator(".tool-chips").first).to_contain_text("done")


@pytest.mark.long
def test_an_open_form_acts_on_the_branch_that_the_page_shows(pages, site):
    """A form that stands open stays through live updates, and closes when the page shows another branch."""
    session = site.repo.wrap(build(site.folder / "shop.db"), "moving", effects=EFFECTS).session
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
