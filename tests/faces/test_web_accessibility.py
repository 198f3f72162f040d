"""Every page passes the rules of axe-core in a browser, in the light and the dark theme."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsers import CHROMIUM, needs_browser
from many_branches import wide
from playwright.sync_api import Page, sync_playwright
from scripted import scripted, tool_node_graph
from web_servers import hostile, served, story

from agentgit.web import OwnerLink, app

pytestmark = [pytest.mark.long, needs_browser]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Serve a repository with a friendly session, a hostile one, reruns of both, and one with many branches."""
    folder: Path = tmp_path_factory.mktemp("site")
    with story(folder) as repo:
        hostile(repo, folder)
        wide(repo, 40)
        mute = tool_node_graph(scripted("no", "no"), [])
        repo.rerun([one for one in repo.sessions() if one.session_name != "wide"], mute, name="rerun")
        link = OwnerLink()
        with served(app(repo, link=link, hosts=["127.0.0.1"])) as address:
            yield SimpleNamespace(repo=repo, address=address, credential=link.token)


@pytest.fixture(scope="module")
def page(site: SimpleNamespace) -> Iterator[Page]:
    """Open a signed-in page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(base_url=site.address)
        port = site.address.rpartition(":")[2]
        context.add_cookies([{"name": f"agentgit-{port}", "value": site.credential, "url": site.address}])
        made = context.new_page()
        made.set_default_timeout(60_000)
        yield made
        browser.close()


def paths(site: SimpleNamespace) -> dict[str, str]:
    """Return the path of each page, by a short name."""
    found = {name: f"/{name}" for name in ("sessions", "audit", "help", "keys", "users", "join", "sign-in", "nothing")}
    for info in site.repo.sessions():
        name = info.session_name[:10]
        session = site.repo.session(info)
        at, points = f"/sessions/{info.id}", session.checkpoints()
        found |= {
            f"{name} session": at,
            f"{name} tree": f"{at}/tree?limit=100",
            f"{name} filter": f"{at}/tree?only=variant",
        }
        if name == "wide":
            continue
        found |= {
            f"{name} session at a checkpoint": f"{at}?at={points[1].id}",
            f"{name} checkpoint": f"{at}/checkpoints/{points[-1].id}",
            f"{name} compare": f"{at}/diff",
            f"{name} comparison": f"{at}/diff?a={points[0].id}&b=HEAD",
            f"{name} plan": f"{at}/rollback?to={points[1].id}",
            f"{name} switch": f"{at}/switch?branch=main",
            f"{name} rerun": f"{at}/rerun?branch=rerun",
            f"{name} conversation of a rerun": f"{at}?branch=rerun",
            f"{name} switch to a rerun": f"{at}/switch?branch=rerun",
            f"{name} search": f"{at}/search?text=order",
            f"{name} tool calls": f"{at}/tool-track",
            f"{name} operations": f"{at}/operations",
            f"{name} sharing": f"{at}/sharing",
            f"{name} events": f"/audit?session={info.id}",
        }
        if operations := session.operations():
            found[f"{name} operation"] = f"/operations/{operations[-1].id}"
        if points[-1].metadata["workspace_snapshot"]:
            found[f"{name} files"] = f"{at}/checkpoints/{points[-1].id}/files"
    return found


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_passes_axe(page: Page, site: SimpleNamespace, width: int):
    """Axe finds no violation on any page, at the width of a desk and of a phone, in both themes."""
    page.set_viewport_size({"width": width, "height": 900})
    wrong = []
    for name, path in paths(site).items():
        page.goto(path)
        page.wait_for_load_state()
        # A theme changes only colours.
        for scheme, options in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme=scheme)
            for violation in Axe().run(page, options=options).response["violations"]:
                nodes = [node["html"][:200] for node in violation["nodes"][:3]]
                wrong.append(f"{name}, {scheme}: {violation['id']}: {violation['help']}: {nodes}")
    assert not wrong, "\n".join(wrong)


def test_the_menu_of_a_row_and_an_expanded_branch_pass_axe(page: Page, site: SimpleNamespace):
    """Axe finds no violation while the actions of a row or its dialog are shown, or two rows are chosen."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"/sessions/{site.repo.session('support-42').id}")
    page.locator("[role=treeitem][tabindex='0']").focus()
    page.keyboard.press("Space")
    page.keyboard.press("m")
    assert [(one["id"], one["nodes"][0]["html"]) for one in Axe().run(page).response["violations"]] == []
    page.get_by_role("menuitem", name="Fork…").click()
    assert page.get_by_role("dialog").is_visible()
    assert [(one["id"], one["nodes"][0]["html"]) for one in Axe().run(page).response["violations"]] == []


def test_the_columns_of_a_rerun_are_as_long_as_their_messages(page: Page, site: SimpleNamespace):
    """The recorded conversation and the rerun scroll with the page, not each in a box of its own."""
    page.set_viewport_size({"width": 1280, "height": 300})
    page.goto(f"/sessions/{site.repo.session('support-42').id}/rerun?branch=rerun")
    columns = page.locator(".sides > .side")
    assert columns.count() == 2
    assert columns.evaluate_all("all => all.map(one => getComputedStyle(one).overflowY)") == ["visible", "visible"]
