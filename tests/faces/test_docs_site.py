"""The site of the documentation works when it is opened from a disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browsers import CHROMIUM, needs_browser
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.long, needs_browser]


def test_the_search_works_from_a_disk(tmp_path):
    """A word that is typed into the search finds its pages, guides first, without a server or a network."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)  # noqa: S603
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        for place in ("index.html", "reference/session.html"):
            page.goto((tmp_path / "site" / place).as_uri())
            page.locator("[data-md-component=search-query]").fill("compensable")
            page.locator(".md-search-result__item a[href*='effects.html']").first.wait_for(timeout=60_000)
        page.goto((tmp_path / "site" / "index.html").as_uri())
        page.locator("[data-md-component=search-query]").fill("rollback")
        page.locator(".md-search-result__item a[href*='undo.html']").first.wait_for()
        found = page.locator(".md-search-result__item > a:first-of-type").evaluate_all("all => all.map(a => a.href)")
        assert not [url for url in found[:5] if "/why/" in url or "/reference/" in url]
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
