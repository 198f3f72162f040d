"""A demo that needs no API key and no network: a scripted model, a shop with a real database, and a story in it."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import patch_config
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import agentgit
from agentgit.agents.agent import RollbackAgent
from agentgit.checkpoints.references import free_name
from agentgit.demo.shop import CATALOGUE, EFFECTS, cancel_order, open_shop, orders, refund, tools
from agentgit.errors import InvalidInput, RollbackBlocked
from agentgit.location import default_location
from agentgit.repository import Repository
from agentgit.store.sql.url import parse_url

__all__ = [
    "EFFECTS",
    "ScriptedModel",
    "build",
    "cancel_order",
    "clerk",
    "open_shop",
    "orders",
    "refund",
    "story",
    "tools",
]

# -- the model


class ScriptedModel(BaseChatModel):
    """A chat model whose answer depends only on the conversation, so that it is right on every branch.

    Args:
        replies: The answers: the first if the conversation has no AI message yet, the second after one, …
        rule: A function that returns the answer to the messages; if given, `replies` is not used.

    Example:
        >>> ScriptedModel(replies=["hello"]).invoke("hi").content
        'hello'
    """

    replies: Sequence[str | AIMessage] = ()
    rule: Callable[[Sequence[BaseMessage]], AIMessage] | None = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Return the model with tools, which are recorded; its script decides which of them it calls."""
        schemas = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=schemas, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        reply = self.rule(messages) if self.rule else self._reply(messages)
        # New ids, because a message replaces an existing message with the same id.
        calls = [{**call, "id": call["id"] or f"call-{uuid4().hex[:8]}"} for call in reply.tool_calls]
        message = reply.model_copy(update={"id": f"ai-{uuid4().hex[:8]}", "tool_calls": calls})
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _reply(self, messages: Sequence[BaseMessage]) -> AIMessage:
        answer_count = sum(isinstance(message, AIMessage) for message in messages)
        if answer_count >= len(self.replies):
            raise InvalidInput(f"The script has {len(self.replies)} replies and one more was asked for; add it.")
        reply = self.replies[answer_count]
        return reply if isinstance(reply, AIMessage) else AIMessage(reply)


# -- the agent

NUMBER_WORDS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}

ORDER_PATTERN = re.compile(rf"\b({'|'.join(NUMBER_WORDS)}|\d{{1,3}}) ({'|'.join(CATALOGUE)})s?\b")

ANSWER_TEMPLATES = {
    "search_catalogue": "We have, in euros: {items}.",
    "create_order": "Ordered {what} for {price} euros ({order}).",
    "charge_card": "Charged {amount} euros to your card.",
    "send_mail": "Mailed the receipt to {to}.",
    "add_note": "Noted.",
}

HELP = "Say: what do you have? / order two chairs / note that I am in a hurry / pay / mail the receipt"


def _sum_results(messages: Sequence[BaseMessage], name: str, key: str) -> int:
    """Add up a number in all successful results of one tool in this conversation."""
    results = (m for m in messages if isinstance(m, ToolMessage) and m.name == name and m.status == "success")
    return sum(json.loads(str(m.content))[key] for m in results)


def _requested_calls(text: str, messages: Sequence[BaseMessage]) -> Iterator[ToolCall]:
    """Yield the tool calls that a user's text asks for."""
    for number, item in ORDER_PATTERN.findall(text.lower()):
        quantity = NUMBER_WORDS.get(number) or int(number)
        yield ToolCall(name="create_order", args={"item": item, "quantity": quantity}, id=None)
    due = _sum_results(messages, "create_order", "price") - _sum_results(messages, "charge_card", "amount")
    if re.search(r"\bpay\b", text):
        yield ToolCall(name="charge_card", args={"amount": due}, id=None)
    if re.search(r"\bmail\b", text):
        yield ToolCall(name="send_mail", args={"to": "you@example.org", "text": f"You pay {due} euros."}, id=None)
    if re.search(r"\bnote\b", text):
        yield ToolCall(name="add_note", args={"text": text}, id=None)
    if re.search(r"\b(have|sell)\b", text):
        yield ToolCall(name="search_catalogue", args={}, id=None)


def clerk(messages: Sequence[BaseMessage]) -> AIMessage:
    """Answer as the shop's clerk: call tools for a request, then report their results.

    Example:
        >>> clerk([HumanMessage("order two chairs")]).tool_calls[0]["args"]
        {'item': 'chair', 'quantity': 2}
    """
    request_index = max(
        (index for index, message in enumerate(messages) if isinstance(message, HumanMessage)), default=None
    )
    if request_index is None:
        return AIMessage(HELP)
    results = [message for message in messages[request_index:] if isinstance(message, ToolMessage)]
    if results:
        return AIMessage(" ".join(_format_result(message) for message in results))
    calls = list(_requested_calls(messages[request_index].text, messages))
    return AIMessage("", tool_calls=calls) if calls else AIMessage(HELP)


def _format_result(message: ToolMessage) -> str:
    if message.status == "error":
        return f"That did not work: {message.content}"
    return ANSWER_TEMPLATES[str(message.name)].format(**json.loads(str(message.content)))


class _OneByOne(ToolNode):
    """Runs one call at a time, so that the calls have the same order on the tool track in every run.

    As a setting of the whole graph, this would make a sync stream of messages wait forever: LangGraph's only thread
    would wait for the messages, and none would run the node.
    """

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the calls of a message, one after the other."""
        return super().invoke(input, patch_config(config, max_concurrency=1), **kwargs)


def build(shop: str | Path = "shop.db") -> CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]:
    """Build the demo's agent, an ordinary LangGraph graph that does not use agentgit.

    Args:
        shop: The path of the shop's SQLite file; it is created if it does not exist.
    """
    shop_tools = tools(open_shop(shop))
    model = ScriptedModel(rule=clerk).bind_tools(shop_tools)

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", answer)
    graph.add_node("tools", _OneByOne(shop_tools, handle_tool_errors=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


# -- the story

Say = Callable[[str], None]

CHECKPOINT_NAME = "before the table"


def story(database: str | Path | None, shop: str | Path, say: Say) -> None:
    """Run the demo. Every fact that it shows is read from the session's database or from the shop.

    Args:
        database: The database of the session, as for `agentgit.open`. The session is kept there.
        shop: The path of the shop's SQLite file; it is created if it does not exist.
        say: A function that receives the output, one line or block of lines at a time.

    Raises:
        AgentGitError: The database or the shop cannot be used.

    Example:
        >>> import tempfile
        >>> lines = []
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     story(f"{folder}/demo.db", f"{folder}/shop.db", lines.append)
        >>> lines[1:3]
        ['\\n> order two chairs', '  Ordered 2 chairs for 80 euros (chair-1).']
    """
    with agentgit.open(database) as repo:
        run_story(repo, shop, say, database=database)


def run_story(repo: Repository, shop: str | Path, say: Say, *, database: str | Path | None) -> None:
    """Run the demo in an open repository."""
    graph = build(shop)
    older_ids = {order.id for order in orders(shop)}

    def show_orders() -> None:
        say("\nThe shop's orders now:")
        say("\n".join(f"  {order}" for order in orders(shop) if order.id not in older_ids))

    session = free_name("demo", {session.session_name for session in repo.sessions()})
    say(f"Session {session}. The graph and the shop are real, only the model is scripted. No key, no network.")
    agent = repo.wrap(graph, session=session, effects=EFFECTS)
    _order_too_much(agent, say)
    show_orders()
    retry = _roll_back_order(agent, say)
    show_orders()
    _chat(retry, "rather a sofa", say)
    _show_first_branch(agent, say)
    _show_blocked_rollback(retry, say)
    _show("agent.tree()", "every branch, where it left", str(retry.tree()), say)
    _show_file_in_conflict(say)
    database_option = _database_option(database)
    say(
        f"\nLook around:\n  agentgit tree {session}{database_option}\n  agentgit serve --open --trust "
        f"agentgit.demo:build{database_option}"
    )
    say('Your own graph:\n  agent = agentgit.open().wrap(graph, session="mine", effects={"order": reversible(cancel)})')


def _order_too_much(agent: RollbackAgent, say: Say) -> None:
    _chat(agent, "order two chairs", say)
    checkpoint = agent.checkpoint(CHECKPOINT_NAME)
    _show(f'agent.checkpoint("{CHECKPOINT_NAME}")', "a place to come back to", checkpoint.metadata["reference"], say)
    _chat(agent, "a table and two lamps, please", say)


def _roll_back_order(agent: RollbackAgent, say: Say) -> RollbackAgent:
    plan = agent.plan_rollback(CHECKPOINT_NAME)
    _show(f'agent.plan_rollback("{CHECKPOINT_NAME}")', "what would happen; nothing is done", plan, say)
    retry = agent.rollback(CHECKPOINT_NAME)
    _show(f'retry = agent.rollback("{CHECKPOINT_NAME}")', "do it, on a new branch; see retry.report", retry.report, say)
    return retry


def _show_first_branch(agent: RollbackAgent, say: Say) -> None:
    messages = [item for item in agent.history() if item["role"] in ("user", "assistant") and item["content"]]
    lines = [f"{message['role']:<9}  {message['content']}" for message in messages]
    lines += [f"{call.status:<9}  {call}" for call in agent.tool_track()]
    _show("agent.history(), agent.tool_track()", f"nothing is lost: branch {agent.branch.name}", "\n".join(lines), say)


def _show_blocked_rollback(retry: RollbackAgent, say: Say) -> None:
    checkpoint = retry.checkpoint("before the mail")
    _chat(retry, "pay, and mail the receipt", say)
    try:
        retry.rollback(checkpoint)
    except RollbackBlocked as blocked:
        explanation = "\n".join([*textwrap.wrap(f"RollbackBlocked: {blocked}", 110), str(blocked.plan)])
        _show('retry.rollback("before the mail")', "a mail cannot be unsent", explanation, say)


def _show_file_in_conflict(say: Say) -> None:
    """Let a person edit a file that an agent wrote, and plan a rollback to before it."""
    with TemporaryDirectory() as folder, agentgit.open(":memory:") as repo:
        offer = Path(folder, "work", "sofa.txt")

        def write_offer(state: MessagesState) -> dict[str, Any]:
            offer.write_text(state["messages"][-1].text, "utf-8")
            return {"messages": [AIMessage("Written.")]}

        graph = StateGraph(MessagesState).add_node("write", write_offer).add_edge(START, "write").compile()
        workspace = agentgit.Workspace(offer.parent, Path(folder, "snapshots"))
        writer = repo.wrap(graph, "offer", workspace=workspace)
        writer.run("a sofa for 300 euros")
        offer.write_text("a sofa for 270 euros", "utf-8")
        changes = writer.plan_rollback("main#1").files
    for change in changes.changes if changes is not None else ():
        say(f"A file that an agent wrote and you edit: {change}")


def _chat(agent: RollbackAgent, text: str, say: Say) -> None:
    say(f"\n> {text}")
    say(f"  {agent.run(text)}")


def _show(code: str, comment: str, outcome: object, say: Say) -> None:
    say(f"\n{code:<42}  # {comment}\n{textwrap.indent(str(outcome), '  ')}")


def _database_option(database: str | Path | None) -> str:
    """Return the `--db` option for this database, without its password; empty for the default database."""
    if database is None or str(database) == default_location():
        return ""
    address = parse_url(database).render_as_string(hide_password=True) if "://" in str(database) else str(database)
    return f" --db {shlex.quote(address)}"
