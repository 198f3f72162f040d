"""A signed-in browser without a window, that follows links and fills in forms."""

from __future__ import annotations

import html
import re

import httpx
import pytest
from fastapi.testclient import TestClient

import agentgit
from agentgit.web import app


class Visitor:
    """A browser that is signed in as the user of a repository, and fills in forms."""

    def __init__(self, repo: agentgit.Repository) -> None:
        key = repo.keys.create("a browser", scopes=("admin",)).secret
        self.client = TestClient(
            app(repo), base_url="https://git.example", cookies={"__Host-agentgit": key},
            headers={"origin": "https://git.example"},
        )  # fmt: skip

    def get(self, path: str, expect: int = 200) -> httpx.Response:
        """Request a page."""
        answer = self.client.get(path)
        assert answer.status_code == expect, answer.text
        return answer

    def post(self, page: httpx.Response, action: str, expect: int = 200, **fields: str) -> httpx.Response:
        """Submit the form of a page with its hidden fields and other fields, and follow the redirect."""
        answer = self.client.post(html.unescape(form_of(page, action)[1]), data=fields_of(page, action) | fields)
        assert answer.status_code == expect, answer.text
        return answer


def mark(page: httpx.Response) -> str:
    """Return the CSRF token in the forms of a page."""
    return re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)[1]


def sign_in(client: httpx.Client, key: str, headers: dict[str, str] | None = None, **more: str) -> httpx.Response:
    """Send the form of the sign-in page."""
    form = {"key": key, "csrf": mark(client.get("/sign-in", headers=headers)), **more}
    return client.post("/sign-in", data=form, headers=headers)


def fields_of(page: httpx.Response, action: str | None = None) -> dict[str, str]:
    """Return the hidden fields of the first form of a page with an action; None is the path of the page."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form_of(page, action)[2]))


def form_of(page: httpx.Response, action: str | None = None) -> re.Match[str]:
    """Return the first form of a page with an action: its whole address, which may have a query, and its content."""
    address = rf'action="({re.escape(action or page.url.path)}(?:\?[^"]*)?)"'
    return re.search(rf'<form[^>]*method="post"[^>]*{address}[^>]*>(.*?)</form>', page.text, re.S)


@pytest.fixture
def ada(repo: agentgit.Repository) -> Visitor:
    return Visitor(repo)
