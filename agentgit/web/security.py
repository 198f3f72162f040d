"""What holds for every request and every answer: names of the host, limits, headers; and where a form came from."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Form, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgit.errors import NotAllowed
from agentgit.web.entrance import HOURS
from agentgit.web.site import KEY, LOOPBACK, Site, name_of, site_of

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""What every answer says, where it does not say something else itself."""

SAFE = ("GET", "HEAD", "OPTIONS")
"""What changes nothing."""

NOT_BY_HEAD = ("/enter", "/events/live")
"""Where the head of an answer cannot be had alone: the link would be used up, and a feed has no end."""


class Guard:
    """Stands before the whole application.

    Args:
        app: what it guards.
        site: what the requests share.
        failed: gives the answer to what raised something that nobody expected.
    """

    def __init__(self, app: ASGIApp, site: Site, failed: Callable[[Request, Exception], Response]) -> None:
        self.app = app
        self.site = site
        self.failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[KEY] = self.site
        answering = _Answering(scope, send)
        if answering.head_alone:
            scope["method"] = "GET"  # what is asked for is the same; only the body does not go out
        host = name_of(Headers(scope=scope).get("host", ""))
        if self.site.hosts is not None and host not in self.site.hosts:
            told = "This server is not called so. Add the name where it is started: agentgit serve --allow-host NAME\n"
            await PlainTextResponse(told, 400)(scope, receive, answering.send)
            return
        try:
            await self.app(scope, self._limited(scope, receive), answering.send)
        except Exception as error:
            if answering.is_begun and not answering.is_whole:
                raise  # half an answer: the connection is cut, so that nobody takes it for a whole one
            if not answering.is_begun:
                answer = await run_in_threadpool(self.failed, Request(scope), error)
                await answer(scope, receive, answering.send)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Give a way to read the body that ends where it is too large, or takes too long to come."""
        limits, announced = self.site.limits, _length(Headers(scope=scope).get("content-length", "0"))
        got, is_whole, until = 0, False, 0.0

        async def read() -> Message:
            nonlocal got, is_whole, until
            if is_whole:
                return await receive()  # waits for the other side to go away
            now = asyncio.get_running_loop().time()
            until = until or now + limits.seconds
            if announced > limits.body:
                raise HTTPException(413, f"A request has at most {limits.body:,} bytes here. Send less at once.")
            try:
                message = await asyncio.wait_for(receive(), until - now)
            except TimeoutError as error:
                raise HTTPException(408, "The request took too long to come. Send it again.") from error
            got += len(message.get("body", b""))
            if got > limits.body:
                raise HTTPException(413, f"A request has at most {limits.body:,} bytes here. Send less at once.")
            is_whole = not message.get("more_body", False)
            return message

        return read


def _length(announced: str) -> float:
    """Read how long a body is said to be; what is no number is too long."""
    return int(announced) if announced.isascii() and announced.isdigit() and len(announced) < 16 else math.inf


class _Answering:
    """Sends an answer, with what every answer says.

    Args:
        scope: of the request.
        send: as the server gave it.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._is_https, self._send = scope["scheme"] == "https", send
        self.head_alone = scope["method"] == "HEAD" and not scope["path"].endswith(NOT_BY_HEAD)
        self.is_begun = self.is_whole = False

    async def send(self, message: Message) -> None:
        """Send a piece of it."""
        if message["type"] == "http.response.start":
            self.is_begun = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if self._is_https:
                headers.setdefault("strict-transport-security", "max-age=31536000")
        elif message["type"] == "http.response.body":
            self.is_whole = not message.get("more_body", False)
            if self.head_alone:
                message = {**message, "body": b""}
        await self._send(message)


# -- the cookie of a browser


def cookie_name(connection: HTTPConnection) -> str:
    """Name the cookie. Over https only this host can set one of this name; else two ports of a machine do not share it.

    Over https a browser takes a name that begins so only with Secure, for all paths, and from this host.
    """
    return "__Host-agentgit" if connection.url.scheme == "https" else f"agentgit-{connection.url.port or 80}"


def closed_line(request: Request) -> None:
    """Make sure, before a password is asked for or a link is used up, that nobody on the way can read along.

    Raises:
        NotAllowed: somebody could.
    """
    is_https = request.url.scheme == "https"
    if not (is_https or site_of(request).insecure or name_of(request.headers.get("host", "")) in LOOPBACK):
        raise NotAllowed(
            "Over plain http anybody on the way could read your password and key. Use https; or, where you trust the "
            "network, start agentgit serve with --insecure."
        )


def let_in(request: Request, response: Response, credential: str) -> Response:
    """Let a browser keep a credential, where no script reads it and no other site sends it along."""
    response.set_cookie(
        cookie_name(request), credential, max_age=HOURS * 3600, path="/", secure=request.url.scheme == "https",
        httponly=True, samesite="lax",
    )  # fmt: skip
    return response


def let_go(request: Request, response: Response) -> Response:
    """Let a browser forget its credential."""
    is_https = request.url.scheme == "https"
    response.delete_cookie(cookie_name(request), path="/", secure=is_https, httponly=True, samesite="lax")
    return response


# -- forms


FORM_COOKIE = "agentgit-form"
"""Before somebody is in, what is in forms is held against this cookie."""


def mark_of(connection: HTTPConnection, fresh: str | None = None) -> str:
    """Give the text that a form must bring back: nobody can know it who cannot read the pages of this browser.

    Args:
        connection: who asked for the form.
        fresh: a new value of the cookie of those who are not in.
    """
    cookies = connection.cookies
    known = cookies.get(cookie_name(connection)) or fresh or cookies.get(FORM_COOKIE) or ""
    return hmac.new(known.encode("utf-8", "replace"), b"agentgit form", hashlib.sha256).hexdigest() if known else ""


def new_mark() -> str:
    """Make a value for the cookie of somebody who is not in."""
    return secrets.token_urlsafe(32)


def same_site(request: Request, csrf: Annotated[str, Form(max_length=200)] = "") -> None:
    """Make sure that a form comes from a page of ours.

    Raises:
        HTTPException: it does not.
    """
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None:
        ours = urlsplit(origin).netloc == host
    else:
        ours = request.headers.get("sec-fetch-site") == "same-origin"
    mark = mark_of(request)
    if not ours or not mark or not hmac.compare_digest(csrf.encode("utf-8", "replace"), mark.encode()):
        raise HTTPException(403, "This form is of another page or of an earlier visit. Go back, reload, and try again.")
