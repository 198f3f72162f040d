"""Chromium for the tests of pages: a `site` to open, and fixtures that check that nothing goes wrong in its pages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from web_servers import hostile, served, story

from agentgit import Repository
from agentgit.web import OwnerLink, app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

MILLISECONDS = 60_000
"""The time limit for an expected change of a page; a busy machine is slow."""

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="left out: there is no Chromium to look at the pages with")


@contextmanager
def site_with(folder: Path, *additions: Callable[[Repository], object]) -> Iterator[SimpleNamespace]:
    """Serve a repository with a friendly session, a hostile one and what is added, and make a sign-in link."""
    with story(folder) as repo:
        hostile(repo, folder)
        for add in additions:
            add(repo)
        link = OwnerLink()
        made = app(repo, link=link, hosts=["127.0.0.1", "testserver"])
        with served(made) as address:
            yield SimpleNamespace(repo=repo, app=made, address=address, credential=link.token, folder=folder)


def path_of(site: SimpleNamespace, session: str) -> str:
    return f"/sessions/{site.repo.session(session).id}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        expect.set_options(timeout=MILLISECONDS)
        yield found
        found.close()


def signed_in(browser: Browser, site: SimpleNamespace, **options: Any) -> BrowserContext:
    context = browser.new_context(base_url=site.address, **options)
    port = site.address.rpartition(":")[2]
    context.add_cookies([{"name": f"agentgit-{port}", "value": site.credential, "url": site.address}])
    context.set_default_timeout(MILLISECONDS)
    return context


@pytest.fixture
def pages(site: SimpleNamespace, browser: Browser):
    """Yield a function that opens a signed-in page; at the end no page may have had an error or a foreign request."""
    contexts, wrong = [], []

    def make(**options: object) -> Page:
        contexts.append(signed_in(browser, site, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda told: wrong.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: None if r.url.startswith(site.address) else wrong.append(f"elsewhere: {r.url}"))
        return page

    yield make
    for context in contexts:
        context.close()
    assert wrong == []


def violations(page: Page, **options: Any) -> list[str]:
    """Return the rules of axe-core that a page violates, each with some of the elements."""
    found = Axe().run(page, options=options or None).response["violations"]
    return [f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in found]
