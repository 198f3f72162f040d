"""Security of requests and responses: host names, size and time limits, headers, cookies, and CSRF protection."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Form, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgit.errors import NotAllowed, TooManyAttempts
from agentgit.web.authentication import LOGIN_HOURS, Accounts, LoginResult
from agentgit.web.metrics import log_access, route_of
from agentgit.web.problems import LOG
from agentgit.web.proxies import Address, read_address
from agentgit.web.site import LOOPBACK, SITE_KEY, Site, name_of, record_user, site_of

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

NO_HEAD_PATHS = ("/enter", "/events/live")
"""Paths where HEAD is not run as GET without a body, because GET logs a browser in, or its response never ends."""

ANY_HOST_PATHS = ("/healthz", "/readyz")
"""Paths that are served under any host name, because probes use addresses."""


class Guard:
    """Middleware in front of the whole application: enforces limits and host names, adds headers, counts requests."""

    def __init__(self, app: ASGIApp, site: Site, failed: Callable[[Request, Exception], Response]) -> None:
        self.app = app
        self.site = site
        self.failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope[SITE_KEY] = self.site
        self.site.proxies.apply(scope, self.site.public)
        method, root, started_at = scope["method"], scope.get("root_path", ""), time.monotonic()
        sender = _ResponseSender(scope, send)
        try:
            await self._handle(scope, receive, sender)
        finally:
            route, seconds = route_of(scope, root), time.monotonic() - started_at
            self.site.metrics.observe(route, method, sender.status, seconds)
            log_access(scope, route, method, sender.status, seconds)

    async def _handle(self, scope: Scope, receive: Receive, sender: _ResponseSender) -> None:
        if sender.is_head_request:
            scope["method"] = "GET"  # routes answer GET; the body is not sent
        head_size = len(scope["path"]) + len(scope.get("query_string", b""))
        if head_size + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > self.site.limits.head:
            await PlainTextResponse("The headers are too large.\n", 431)(scope, receive, sender.send)
            return
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
            receive_body = (
                _without_body(receive) if scope["method"] in SAFE_METHODS else self._limit_body(scope, receive)
            )
            await self.app(scope, receive_body, sender.send)
        except Exception as error:
            if sender.has_started and not sender.is_complete:
                raise  # the server then closes the connection, so that the client sees that the response is incomplete
            if not sender.has_started:
                response = await run_in_threadpool(self.failed, Request(scope), error)
                await response(scope, receive, sender.send)

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that raises if the body is too large or takes too long to arrive."""
        limits, content_length = (
            self.site.limits,
            _parse_content_length(Headers(scope=scope).get("content-length", "0")),
        )
        received, is_complete, deadline = 0, False, 0.0

        async def read() -> Message:
            nonlocal received, is_complete, deadline
            if is_complete:
                return await receive()  # waits for the client to disconnect
            now = asyncio.get_running_loop().time()
            deadline = deadline or now + limits.seconds
            if content_length > limits.body:
                raise HTTPException(413, f"The request body is larger than {limits.body:,} bytes. Send less at once.")
            try:
                message = await asyncio.wait_for(receive(), deadline - now)
            except TimeoutError as error:
                raise HTTPException(408, "The request took too long to arrive. Send it again.") from error
            received += len(message.get("body", b""))
            if received > limits.body:
                raise HTTPException(413, f"The request body is larger than {limits.body:,} bytes. Send less at once.")
            is_complete = not message.get("more_body", False)
            return message

        return read


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
        self.is_head_request = scope["method"] == "HEAD" and not scope["path"].endswith(NO_HEAD_PATHS)
        self.has_started = self.is_complete = False
        self.status = 0

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.has_started, self.status = True, message["status"]
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
    """Return whether the browser uses HTTPS."""
    address = address_of(connection)
    return address is not None and address.scheme == "https"


def cookie_name(connection: HTTPConnection) -> str:
    """Return the name of the login cookie.

    Over HTTPS it has the prefix `__Host-`, which browsers accept only with `Secure`, for all paths, and from this host.
    Otherwise it contains the port, because cookies of one host are shared by all ports.
    """
    address = address_of(connection)
    port = address.host.removeprefix(name_of(address.host)).removeprefix(":") if address else ""
    return "__Host-agentgit" if is_https(connection) else f"agentgit-{port or 80}"


def device_cookie(connection: HTTPConnection, name: str) -> str:
    """Return the name of the device cookie of a user name. It marks a browser in which that user has logged in."""
    return f"{cookie_name(connection)}-device-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:16]}"


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: int | None = None) -> None:
    """Set a cookie that scripts cannot read, and that browsers do not send with forms of other sites."""
    response.set_cookie(name, value, max_age=seconds, path="/", secure=is_https(request), httponly=True, samesite="lax")


def require_secure_connection(request: Request) -> None:
    """Check that the connection is safe for a login: encrypted, local, or on a network that the operator trusts."""
    is_loopback = name_of(request.headers.get("host", "")) in LOOPBACK
    if not (request.scope["scheme"] == "https" or is_loopback or site_of(request).insecure):
        raise NotAllowed(
            "Over plain HTTP, others on the network could read your password and key. Use HTTPS. If a proxy handles "
            "HTTPS, let it set X-Forwarded-Proto, and start agentgit serve with --trusted-proxy ADDRESS. If you trust "
            "the network, start it with --insecure."
        )


def log_in(
    request: Request, authenticator: Accounts, name: str, password: str, device: str | None = None
) -> LoginResult:
    """Log a user in with a password, and count a failure; see `Accounts.login`."""
    try:
        result = authenticator.login(name, password, request.client.host if request.client else "", device)
    except NotAllowed as error:
        site_of(request).metrics.count_failed_login(throttled=isinstance(error, TooManyAttempts))
        raise
    record_user(request, result.user_id)
    return result


def set_login_cookie(request: Request, response: Response, credential: str) -> Response:
    """Set the login cookie."""
    set_cookie(request, response, cookie_name(request), credential, LOGIN_HOURS * 3600)
    return response


def delete_login_cookie(request: Request, response: Response) -> Response:
    """Delete the login cookie."""
    response.delete_cookie(cookie_name(request), path="/", secure=is_https(request), httponly=True, samesite="lax")
    return response


# -- forms


FORM_COOKIE = "agentgit-form"
"""The cookie from which the CSRF token is derived before the user logs in."""


def csrf_token(connection: HTTPConnection, form_cookie: str | None = None) -> str:
    """Return the CSRF token for forms, derived from the browser's cookie; empty if there is no cookie."""
    cookies = connection.cookies
    cookie = cookies.get(cookie_name(connection)) or form_cookie or cookies.get(FORM_COOKIE) or ""
    return hmac.new(cookie.encode("utf-8", "replace"), b"agentgit form", hashlib.sha256).hexdigest() if cookie else ""


def new_form_cookie() -> str:
    """Generate a value for the form cookie."""
    return secrets.token_urlsafe(32)


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
