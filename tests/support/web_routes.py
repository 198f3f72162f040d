"""All entry points of a served application: its routes, routers, mounts and middleware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi.routing import iter_route_contexts
from starlette.routing import Mount


def doors(app: Any, at: str = "") -> Iterator[str]:
    """List each entry point, like `GET /path`, once for each occurrence.

    A HEAD next to a GET is not listed. `ANY` means any method, `BEFORE` middleware that runs before all routes, and
    `ELSE` a fallback after all routes. The class follows in parentheses if it is opaque, like that of a web socket.
    """
    while not hasattr(app, "routes"):
        if not hasattr(app, "app"):
            yield f"ANY {at}/* ({_name(app)})"
            return
        yield f"BEFORE {at}/* ({_name(app)})"
        app = app.app
    router = getattr(app, "router", app)
    for one in getattr(app, "user_middleware", ()):
        yield f"BEFORE {at}/* ({one.cls.__name__})"
    if getattr(router, "middleware_stack", None) != router.app:
        yield f"BEFORE {at}/* ({_name(router.middleware_stack)})"
    if router.default != router.not_found:
        yield f"ELSE {at}/* ({_name(router.default)})"
    for route in iter_route_contexts(router.routes):
        yield from _of_route(route, route.original_route, at)
    # FastAPI does not list its fallback routes among the routes.
    for route in getattr(router, "_low_priority_routes", ()):
        yield from _of_low_route(route, at)
    for included in router.routes:
        for found in getattr(included, "effective_low_priority_routes", list)():
            yield from _of_low_route(found.original_route, f"{at}{found.frontend_prefix}")


def _of_route(route: Any, kind: Any, at: str) -> Iterator[str]:
    """List the entry points of a route; `kind` is the original route."""
    path = f"{at}{getattr(route, 'path', None) or ''}"
    if isinstance(kind, Mount):
        yield from doors(route.app, path)
    elif hasattr(kind, "methods"):
        methods = route.methods or {"ANY"}
        yield from (f"{method} {path}" for method in methods if method != "HEAD" or "GET" not in methods)
    else:
        yield f"ANY {path} ({_name(kind)})"


def _of_low_route(route: Any, at: str) -> Iterator[str]:
    """List the entry points of a fallback route."""
    for one in getattr(route, "routes", [route]):
        yield f"ELSE {at}{getattr(one, 'path', '')}/* ({_name(one)})"


def _name(one: Any) -> str:
    return getattr(one, "__name__", None) or type(one).__name__
