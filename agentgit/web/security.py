"""Security of requests and responses: host names, the size of bodies, headers, cookies, and CSRF protection."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable
from typing import Annotated

from fastapi import Form, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgit.auth.credentials import BROWSER_LIFETIME
from agentgit.errors import NotAllowed
from agentgit.web.problems import LOG
from agentgit.web.proxies import Address, read_address
from agentgit.web.site import LOOPBACK, SITE_KEY, Site, name_of, site_of

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
"""Default headers of every response."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""The HTTP methods that change nothing."""

NO_HEAD_PATH = "/events/live"
"""The path where HEAD is not run as GET without a body, because its response never ends."""

ANY_HOST_PATHS = ("/healthz", "/readyz")
"""Paths that are served under any host name, because probes use addresses."""


class Guard:
    """Middleware in front of the whole application: enforces host names and the size of bodies, and adds headers."""

    def __init__(self, app: ASGIApp, site: Site, failed: Callable[[Request, Exception], Response]) -> None:
        self.app = app
        self.site = site
        self.failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[SITE_KEY] = self.site
        _add_public_path(scope, self.site.public)
        sender = _ResponseSender(scope, send)
        if sender.is_head_request:
            scope["method"] = "GET"  # routes answer GET; the body is not sent
        host = name_of(Headers(scope=scope).get("host", ""))
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self.site.hosts is not None and host not in self.site.hosts and path not in ANY_HOST_PATHS:
            message = (
                "Unknown host name. Add it when you start the server: agentgit serve --allow-host NAME; "
                "behind a proxy: --public-url https://NAME\n"
            )
            await PlainTextResponse(message, 400)(scope, receive, sender.send)
            return
        try:
            await self.app(scope, self._limit_body(scope, receive), sender.send)
        except Exception as error:
            if sender.has_started and not sender.is_complete:
                raise  # the server then closes the connection, so that the client sees that the response is incomplete
            if not sender.has_started:
                response = await run_in_threadpool(self.failed, Request(scope), error)
                await response(scope, receive, sender.send)

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that raises if the body is too large. Requests that change nothing have no body."""
        if scope["method"] in SAFE_METHODS:
            return _without_body(receive)
        limit, received = self.site.limits.body, 0
        announced = _parse_content_length(Headers(scope=scope).get("content-length", "0"))
        too_large = HTTPException(413, f"The request body is larger than {limit:,} bytes. Send less at once.")

        async def read() -> Message:
            nonlocal received
            if announced > limit:
                raise too_large
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise too_large
            return message

        return read


def _add_public_path(scope: Scope, public: Address | None) -> None:
    """Add the path of the public URL to the path of a request. A proxy may pass it on, or strip it."""
    root = scope.get("root_path", "")
    if public is not None and public.path and not f"{root}/".startswith(f"{public.path}/"):
        is_whole = f"{scope['path']}/".startswith(f"{public.path}{root}/")
        scope["root_path"] = public.path + root
        scope["path"] = scope["path"] if is_whole else public.path + scope["path"]


def _without_body(receive: Receive) -> Receive:
    """Return a `receive` that reports an empty body, and discards any body that arrives, however long it is."""
    is_reported = False

    async def read() -> Message:
        nonlocal is_reported
        if not is_reported:
            is_reported = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (message := await receive())["type"] == "http.request":
            pass
        return message

    return read


def _parse_content_length(header: str) -> float:
    """Parse a `Content-Length`; return infinity if it is not a number of at most 15 digits."""
    return int(header) if header.isascii() and header.isdigit() and len(header) < 16 else math.inf


class _ResponseSender:
    """The response to one request, with the default headers."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._is_https, self._send = scope["scheme"] == "https", send
        self.is_head_request = scope["method"] == "HEAD" and not scope["path"].endswith(NO_HEAD_PATH)
        self.has_started = self.is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if self._is_https:
                headers.setdefault("strict-transport-security", "max-age=31536000")
        elif message["type"] == "http.response.body":
            self.is_complete = not message.get("more_body", False)
            if self.is_head_request:
                message = {**message, "body": b""}
        await self._send(message)


# -- the cookie of a browser


def address_of(connection: HTTPConnection) -> Address | None:
    """Return the address of the application for a browser: the public URL, or else the target of the request."""
    url = f"{connection.scope['scheme']}://{connection.headers.get('host', '')}"
    return site_of(connection).public or read_address(url)


def is_https(connection: HTTPConnection) -> bool:
    address = address_of(connection)
    return address is not None and address.scheme == "https"


def cookie_name(connection: HTTPConnection) -> str:
    """Return the name of the cookie of a signed-in browser.

    Over HTTPS it has the prefix `__Host-`, which browsers accept only with `Secure`, for all paths, and from this host.
    Otherwise it contains the port, because cookies of one host are shared by all ports.
    """
    address = address_of(connection)
    port = address.host.removeprefix(name_of(address.host)).removeprefix(":") if address else ""
    return "__Host-agentgit" if is_https(connection) else f"agentgit-{port or 80}"


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: int | None = None) -> None:
    """Set a cookie that scripts cannot read, and that browsers do not send with forms of other sites."""
    response.set_cookie(name, value, max_age=seconds, path="/", secure=is_https(request), httponly=True, samesite="lax")


def require_secure_connection(request: Request) -> None:
    """Check that the connection is safe for a key: encrypted, local, or on a network that the operator trusts."""
    is_loopback = name_of(request.headers.get("host", "")) in LOOPBACK
    if not (request.scope["scheme"] == "https" or is_loopback or site_of(request).insecure):
        raise NotAllowed(
            "Over plain HTTP, others on the network could read your key. Use HTTPS. If a proxy handles HTTPS, let it "
            "set X-Forwarded-Proto, and start agentgit serve with --trusted-proxy ADDRESS. If you trust the network, "
            "start it with --no-proxy."
        )


def set_sign_in_cookie(request: Request, response: Response, credential: str) -> Response:
    set_cookie(request, response, cookie_name(request), credential, int(BROWSER_LIFETIME.total_seconds()))
    return response


def delete_sign_in_cookie(request: Request, response: Response) -> Response:
    response.delete_cookie(cookie_name(request), path="/", secure=is_https(request), httponly=True, samesite="lax")
    return response


# -- forms


FORM_COOKIE = "agentgit-form"
"""The cookie from which the CSRF token is derived in a browser that has no key."""


def csrf_token(connection: HTTPConnection, form_cookie: str | None = None) -> str:
    cookie = form_cookie or _cookie_of_forms(connection)
    return hmac.new(cookie.encode("utf-8", "replace"), b"agentgit form", hashlib.sha256).hexdigest() if cookie else ""


def _cookie_of_forms(connection: HTTPConnection) -> str:
    return connection.cookies.get(cookie_name(connection)) or connection.cookies.get(FORM_COOKIE) or ""


def new_form_cookie(connection: HTTPConnection) -> str | None:
    """Generate a value for the form cookie; None if the browser has a cookie for its forms."""
    return None if _cookie_of_forms(connection) else secrets.token_urlsafe(32)


def require_same_site(request: Request, csrf: Annotated[str, Form(max_length=200)] = "") -> None:
    """Check that a form was sent from one of this application's own pages, by its origin and its CSRF token."""
    origin, fetch_site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    form_address, own_address = read_address(origin) if origin is not None else None, address_of(request)
    is_own_origin = form_address is not None and own_address is not None and form_address.origin == own_address.origin
    is_own_page = is_own_origin if origin is not None else fetch_site == "same-origin"
    token = csrf_token(request)
    has_token = bool(token) and hmac.compare_digest(csrf.encode("utf-8", "replace"), token.encode())
    if not is_own_page or not has_token:
        LOG.warning(
            "Form rejected. Origin: %.300r, Sec-Fetch-Site: %.50r, own origin: %.300r, CSRF token: %s. "
            "If both origins should be equal: agentgit serve --trusted-proxy ADDRESS, or --public-url URL.",
            origin,
            fetch_site,
            own_address.origin if own_address else None,
            "valid" if has_token else "wrong or missing",
        )
        raise HTTPException(403, "This form is out of date, or not from this site. Go back, reload, and try again.")
