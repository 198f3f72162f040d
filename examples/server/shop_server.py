"""The demo's shop for `langgraph dev`, with agentgit's pages beside the server's own API."""

import os
from pathlib import Path

from fastapi import FastAPI

import agentgit
from agentgit.demo import EFFECTS, build, open_shop
from agentgit.web.app import app as create_pages
from agentgit.web.authentication import OwnerLink

folder = Path(os.environ.get("SHOP_FOLDER", "."))
repo = agentgit.open(folder / "agentgit.db")

graph = repo.graph(build(open_shop(folder / "shop.db")), effects=EFFECTS).copy({"checkpointer": None})
checkpointer = repo.saver()

link = OwnerLink()
app = FastAPI()
app.mount("/agentgit", create_pages(repo, link=link, hosts=["localhost", "127.0.0.1"]))
print(f"agentgit's pages, below the address of the server: /agentgit/sign-in?token={link.token}")
