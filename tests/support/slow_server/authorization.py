"""Users by their names, each with threads of their own, as the documentation of LangGraph's server does it."""

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None):
    """Return the user that the header names."""
    if not authorization:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?")
    return {"identity": authorization.removeprefix("Bearer ")}


@auth.on
async def own(ctx, value):
    """Mark what is made with its owner, and show only what is marked so. All users share the store."""
    if ctx.resource == "store":
        return None
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}
