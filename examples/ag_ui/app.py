"""The demo's shop behind AG-UI, for CopilotKit and other clients. Run it with: uvicorn app:app"""

import os
from pathlib import Path

from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint
from fastapi import FastAPI

import agentgit
from agentgit.demo import EFFECTS, build, open_shop

folder = Path(os.environ.get("SHOP_FOLDER", "."))
repo = agentgit.open(folder / "agentgit.db")
graph = repo.graph(build(open_shop(folder / "shop.db")), effects=EFFECTS)

app = FastAPI()
add_langgraph_fastapi_endpoint(app, LangGraphAgent(name="shop", graph=graph), "/agent")
