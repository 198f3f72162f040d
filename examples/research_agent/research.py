"""A research agent with deepagents: its files are part of each checkpoint. Run it with: python research.py"""

import os

from deepagents import create_deep_agent
from langchain.chat_models import init_chat_model
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

import agentgit
from agentgit.demo import ScriptedModel

NOTES = {
    "chairs": "A chair of oak costs 40 euros and lasts 20 years.",
    "sofas": "A sofa costs 300 euros and lasts 12 years.",
}


@tool
def search_notes(topic: str) -> str:
    """Search the notes for a topic."""
    return NOTES.get(topic, "Nothing is known about that.")


# -- the script, if no model is configured


def wants(name: str, **args: object) -> AIMessage:
    """Return an answer that calls one tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": None}])


def obey(messages: list) -> AIMessage:
    """Search for the topic that the user names, write what was found into a report, and name the report."""
    topic = next(message.text for message in reversed(messages) if message.type == "human").split()[-1]
    last = messages[-1]
    if not isinstance(last, ToolMessage):
        return wants("search_notes", topic=topic)
    if last.name == "search_notes":
        return wants("write_file", file_path=f"/{topic}.md", content=f"# {topic.title()}\n\n{last.text}\n")
    return AIMessage(f"/{topic}.md is written.")


def main() -> None:
    """Write two reports, and take the second one back."""
    # MODEL=anthropic:claude-sonnet-4-5 uses a real model. Without it, a scripted one answers.
    model = init_chat_model(os.environ["MODEL"]) if "MODEL" in os.environ else ScriptedModel(rule=obey)
    graph = create_deep_agent(model, [search_notes])

    repo = agentgit.open("agentgit.db")
    agent = repo.wrap(graph, session="furniture", effects={"search_notes": "read_only"})
    for request in ("write about chairs", "write about sofas"):
        print(f"> {request}\n{agent.run(request)}")
    print("Files:", *agent.state["files"])

    agent = agent.undo()
    print(agent.report)
    print("Files:", *agent.state["files"])
    print(f"> write about tables\n{agent.run('write about tables')}")
    print("Files:", *agent.state["files"])


if __name__ == "__main__":
    main()
