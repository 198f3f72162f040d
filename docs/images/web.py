"""Take the pictures of docs/web.md: `python docs/images/web.py`. It needs Chromium.

The script runs the demo, serves its session, and opens it in a browser.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, Page, sync_playwright

FOLDER = Path(__file__).parent

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

AGENTGIT = (sys.executable, "-m", "agentgit")
SERVE = ("serve", "--port", "0", "--graph", "agentgit.demo:build", "--effects", "agentgit.demo:EFFECTS")


@contextmanager
def served(folder: str) -> Iterator[str]:
    """Run the demo in a folder, serve its session, and yield the link that signs a browser in."""
    subprocess.run([*AGENTGIT, "demo"], cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603  # our own
    command = [*AGENTGIT, *SERVE]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603  # as above
        try:
            yield next(link[0] for line in server.stderr or () if (link := re.search(r"http\S+token=\S+", line)))
        finally:
            server.terminate()


def window(browser: Browser, link: str, width: int, height: int, scheme: str) -> Page:
    """Open the session in a window of a size and a colour scheme."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1.5
    )
    page = context.new_page()
    page.goto(link)
    page.get_by_role("link", name="demo", exact=True).click()
    page.locator("#tree [role=treeitem]").first.wait_for()
    return page


def main() -> None:
    """Take the pictures."""
    with TemporaryDirectory() as folder, served(folder) as link, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = window(browser, link, 1280, 860, "light")
        page.screenshot(path=FOLDER / "web-session.png")
        page.get_by_role("link", name="Undo from here").nth(1).click()
        page.locator("#panel").wait_for()
        page.locator("#panel").screenshot(path=FOLDER / "web-rollback.png")
        page = window(browser, link, 390, 844, "dark")
        page.screenshot(path=FOLDER / "web-phone.png")
        browser.close()


if __name__ == "__main__":
    main()
