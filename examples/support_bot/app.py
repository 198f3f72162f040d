"""A support bot behind FastAPI: customers have chats, and can take back a message. Run it with: uvicorn app:app"""

import os
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from pydantic import BaseModel

import agentgit
from agentgit.demo import EFFECTS, ScriptedModel, clerk, open_shop, tools
from agentgit.errors import AgentGitError, NotAllowed, NotFound, RollbackBlocked

folder = Path(os.environ.get("SHOP_FOLDER", "."))
repo = agentgit.open(os.environ.get("AGENTGIT_DATABASE_URL", folder / "agentgit.db"))

# MODEL=anthropic:claude-sonnet-4-5 uses a real model. Without it, a scripted one answers.
model = init_chat_model(os.environ["MODEL"]) if "MODEL" in os.environ else ScriptedModel(rule=clerk)
graph = create_agent(model, tools(open_shop(folder / "shop.db")), system_prompt="You work in a furniture shop.")

app = FastAPI(title="Support bot")


class Message(BaseModel):
    """A message of a customer."""

    text: str


def log_in(authorization: Annotated[str, Header()]) -> agentgit.Repository:
    """Return the repository as the user sees it whose API key the request has."""
    try:
        return repo.authenticate(authorization.removeprefix("Bearer "))
    except NotAllowed as error:
        raise HTTPException(401, str(error)) from error


Customer = Annotated[agentgit.Repository, Depends(log_in)]


def open_chat(customer: Customer, chat: str) -> agentgit.RollbackAgent:
    """Open a chat that there is."""
    customer.session(chat)  # raises NotFound
    return customer.wrap(graph, session=chat, effects=EFFECTS)


Chat = Annotated[agentgit.RollbackAgent, Depends(open_chat)]


@app.post("/chats/{chat}/messages")
def send(customer: Customer, chat: str, message: Message) -> dict[str, str]:
    """Answer a message. A new name begins a chat."""
    agent = customer.wrap(graph, session=chat, effects=EFFECTS)
    return {"answer": agent.run(message.text), "branch": agent.branch.name}


@app.get("/chats/{chat}/messages")
def read(chat: Chat) -> list[dict[str, str | None]]:
    """List the messages of the current branch."""
    return [{"id": one.id, "type": one.type, "text": one.text} for one in chat.messages() if one.text]


@app.get("/chats/{chat}/messages/{message}/plan")
def plan(chat: Chat, message: str) -> dict[str, str]:
    """Show what taking back a message and everything after it would undo. Nothing changes."""
    return {"plan": str(chat.plan_rollback(f"message:{message}"))}


@app.delete("/chats/{chat}/messages/{message}")
def take_back(chat: Chat, message: str) -> dict[str, str]:
    """Take back a message and everything after it: orders are cancelled and payments refunded."""
    return {"report": str(chat.rollback(f"message:{message}").report)}


# The texts of agentgit's errors speak to programmers, so a customer gets another one.
ANSWERS = {
    NotAllowed: (403, "You may not do this."),
    NotFound: (404, "There is no such chat or message."),
    RollbackBlocked: (409, "This message cannot be taken back, because something after it cannot be undone."),
}


@app.exception_handler(AgentGitError)
def refuse(_request: Request, error: AgentGitError) -> JSONResponse:
    """Answer an error of agentgit."""
    status, text = ANSWERS.get(type(error), (400, "This is not possible now."))
    return JSONResponse({"error": text}, status)
