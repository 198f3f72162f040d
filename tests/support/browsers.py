"""Chromium for the tests of pages: fixtures that open pages of a `site` and check that nothing goes wrong in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

MILLISECONDS = 60_000
"""The time limit for an expected change of a page; a busy machine is slow."""

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="left out: there is no Chromium to look at the pages with")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium without a window."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        expect.set_options(timeout=MILLISECONDS)
        yield found
        found.close()


@pytest.fixture
def pages(site: SimpleNamespace, browser: Browser):
    """Yield a function that opens a signed-in page; at the end no page may have had an error or a foreign request."""
    contexts, wrong = [], []

    def make(**options: object) -> Page:
        context = browser.new_context(base_url=site.address, **options)
        contexts.append(context)
        port = site.address.rpartition(":")[2]
        context.add_cookies([{"name": f"agentgit-{port}", "value": site.credential, "url": site.address}])
        page = context.new_page()
        page.set_default_timeout(MILLISECONDS)
        page.on("console", lambda told: wrong.append(told.text) if told.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: None if r.url.startswith(site.address) else wrong.append(f"elsewhere: {r.url}"))
        return page

    yield make
    for context in contexts:
        context.close()
    assert wrong == []
