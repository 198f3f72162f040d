"""All doors of an application as it is served: routes, what routers and mounts hold, and what stands before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi.routing import iter_route_contexts
from starlette.routing import Host, Mount, WebSocketRoute


def doors(app: Any, at: str = "") -> Iterator[str]:
    """Name each door once for each time that it is there: `GET /path`.

    A HEAD besides a GET is no door of its own. Any method is `ANY`, a web socket `WEBSOCKET`, what answers before all
    routes `BEFORE`, and what answers where no route does `ELSE`. What cannot be looked into has its class behind it.

    Args:
        app: an application, a router, or what was mounted.
        at: the path below which it is; with the host before it if it is for one.
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
    # What FastAPI serves where no other route answers is not among the routes.
    for route in getattr(router, "_low_priority_routes", ()):
        yield from _of_low_route(route, at)
    for included in router.routes:
        for found in getattr(included, "effective_low_priority_routes", list)():
            yield from _of_low_route(found.original_route, f"{at}{found.frontend_prefix}")


def _of_route(route: Any, kind: Any, at: str) -> Iterator[str]:
    """Name the doors of a route, as it is reached and as it was made."""
    path = f"{at}{getattr(route, 'path', None) or ''}"
    if isinstance(kind, Mount):
        yield from doors(route.app, path)
    elif isinstance(kind, Host):
        yield from doors(route.app, f"//{route.host}{at}")
    elif isinstance(kind, WebSocketRoute):
        yield f"WEBSOCKET {path}"
    elif hasattr(kind, "methods"):
        methods = route.methods or {"ANY"}
        yield from (f"{method} {path}" for method in methods if method != "HEAD" or "GET" not in methods)
    else:
        yield f"ANY {path} ({_name(kind)})"


def _of_low_route(route: Any, at: str) -> Iterator[str]:
    """Name the doors of what is served where no other route answers."""
    for one in getattr(route, "routes", [route]):
        yield f"ELSE {at}{getattr(one, 'path', '')}/* ({_name(one)})"


def _name(one: Any) -> str:
    return getattr(one, "__name__", None) or type(one).__name__
