"""The slash commands of the chat: each calls the agent and writes the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from agentgit.cli import output
from agentgit.cli.chat import slash_commands
from agentgit.cli.chat.conversation import at_terminal
from agentgit.errors import InvalidInput, NotFound
from agentgit.render.text import Line, Span, clean, cut, table
from agentgit.render.views import conversation, files
from agentgit.render.views import diff as diffs
from agentgit.render.views import log as logs
from agentgit.render.views import rollback as rollbacks
from agentgit.render.views import tree as trees
from agentgit.render.views.lists import branch_lines

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.checkpoints import Checkpoint
    from agentgit.checkpoints.merge import MergePlan
    from agentgit.checkpoints.queries import Tag
    from agentgit.cli.chat.conversation import Chat
    from agentgit.cli.chat.slash_commands import SlashCommand
    from agentgit.effects import RollbackPlan


def run_command(chat: Chat, command: SlashCommand) -> None:
    """Run a slash command."""
    _HANDLERS[command.form.name](chat, command)


# -- rollback, undo and redo


def _confirm_and_run(
    chat: Chat, command: SlashCommand, plan: RollbackPlan, operation: Callable[[], RollbackAgent]
) -> None:
    """Show a plan, ask for confirmation, run the operation, and continue with the agent that it returns."""
    if chat.confirm_plan(command, plan):
        chat.agent = operation()
        chat.show_report()


def _roll_back_to(chat: Chat, command: SlashCommand, ref: str | int) -> None:
    agent, force = chat.agent, slash_commands.FORCE in command.options
    _confirm_and_run(chat, command, agent.plan_rollback(ref), lambda: agent.rollback(ref, force=force))


def _rollback(chat: Chat, command: SlashCommand) -> None:
    _roll_back_to(chat, command, command.words[0])


def _undo(chat: Chat, command: SlashCommand) -> None:
    if slash_commands.FILES in command.options:
        _undo_edits(chat, command.number() or 1)
        return
    agent, steps, force = chat.agent, command.number() or 1, slash_commands.FORCE in command.options
    _confirm_and_run(chat, command, agent.plan_undo(steps), lambda: agent.undo(steps, force=force))


def _undo_edits(chat: Chat, count: int) -> None:
    """Undo the last edits of files, and keep the files in a checkpoint, so that the session knows them.

    There is no confirmation, because the undo stack and the checkpoint before have the edited files.
    """
    undone = chat.agent.session.workspace().undo_stack.undo(count)
    output.show(files.undone_lines(undone))
    if undone:
        agent = chat.agent
        agent.session.checkpoint(branch=agent.branch_id, description=f"undid {', '.join(undone.labels)}")


def _redo(chat: Chat, command: SlashCommand) -> None:
    agent, force = chat.agent, slash_commands.FORCE in command.options
    _confirm_and_run(chat, command, agent.plan_redo(), lambda: agent.redo(force=force))


def _plan(chat: Chat, command: SlashCommand) -> None:
    output.show(rollbacks.lines(chat.agent.plan_rollback(command.words[0]), width=output.width()))


def _resume(chat: Chat, command: SlashCommand) -> None:
    report = chat.repo.resume(command.number() or 0, force=slash_commands.FORCE in command.options)
    chat.agent = chat.agent.switch(report.branch)
    output.show(rollbacks.lines(report, width=output.width()))


def _resolve(chat: Chat, command: SlashCommand) -> None:
    result = output.parse_result(command.options.get(slash_commands.RESULT))
    call = chat.repo.resolve(command.number() or 0, command.words[1].replace("-", "_"), result=result)
    output.show(conversation.call_lines([call], width=output.width()))


def _rewind(chat: Chat, command: SlashCommand) -> None:
    """Roll back to before a message of the user, and put its text into the prompt, to be edited and sent again."""
    messages = [dict(one) for one in chat.agent.history() if one["role"] == "user" and one["id"]]
    message = _find_message(messages, command) if command.words else _choose_message(messages)
    if message is None:
        output.print_notice("Nothing was done.")
        return
    agent, ref, force = chat.agent, f"message:{message['id']}", slash_commands.FORCE in command.options
    _confirm_and_run(chat, command, agent.plan_rollback(ref), lambda: agent.rollback(ref, force=force))
    if chat.agent is not agent:
        text = _text_of(message)
        chat.refill(text)
        output.show([(Span(f"before: {cut(clean(text), output.width() - 8)}", "dim"),)])


def _find_message(messages: list[dict[str, Any]], command: SlashCommand) -> dict[str, Any]:
    """Find a message by its id, or by its number in the list: 1 is the newest."""
    (word,) = command.words
    by_number = {str(number): message for number, message in enumerate(reversed(messages), start=1)}
    by_id = {message["id"]: message for message in messages}
    message = by_id.get(word.removeprefix("message:"), by_number.get(word))
    if message is None:
        raise NotFound(f"There is no message {word!r} of yours on this branch. /rewind lists them.")
    return message


def _choose_message(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Let the user choose one of their messages, the newest first; None if they choose none."""
    if not messages:
        raise NotFound("There is no message of yours on this branch to go back to.")
    newest_first = messages[::-1]
    if at_terminal() and os.environ.get("TERM") != "dumb":
        number = _pick([_text_of(message) for message in newest_first])
        return newest_first[number] if number is not None else None
    shown = list(enumerate(newest_first, start=1))[:MAX_LISTED_MESSAGES]
    rows = [[Span(str(number), "reference"), Span(clean(_text_of(message)))] for number, message in reversed(shown)]
    output.show(table(rows, width=output.width()))
    raise InvalidInput("There is no terminal to choose a message at. Name it: /rewind 1 --yes is the newest.")


def _pick(texts: list[str]) -> int | None:
    """Let the user choose one of several texts with the arrow keys; return its index, or None if they choose none."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.shortcuts import choice

    keys = KeyBindings()

    @keys.add("escape", eager=True)  # at once, although a sequence may begin with it
    def cancel(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    labels = [output.encodable(cut(clean(text), output.width() - 12), sys.stdout) for text in texts]
    question = "Roll back to before which message? Arrow keys and Enter choose, Escape cancels."
    try:
        return choice(question, options=list(enumerate(labels)), key_bindings=keys)
    except KeyboardInterrupt:
        return None


MAX_LISTED_MESSAGES = 30
"""The number of messages that `/rewind` lists where there is no terminal, the newest ones."""


def _text_of(message: dict[str, Any]) -> str:
    """Return the text of a message; what is not text, such as an image, is left out."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _rewind_files(chat: Chat, command: SlashCommand) -> None:
    agent, ref = chat.agent, command.words[0]
    plan = agent.session.plan_rewind(ref, branch=agent.branch_id)
    if chat.confirm_plan(command, plan):
        changes = agent.rewind_files(ref, force=slash_commands.FORCE in command.options)
        output.show(rollbacks.file_lines(changes, width=output.width()))


# -- checkpoints


def _create(chat: Chat, command: SlashCommand) -> None:
    names = {point.name for branch in chat.agent.tree().walk() for point in branch.points}
    checkpoint = chat.agent.checkpoint(command.word(0) or next_name(names), description=command.word(1))
    output.show(logs.lines([checkpoint], width=output.width(), zone=output.zone()))


def next_name(used_names: Iterable[str | None]) -> str:
    """Return an unused name for a checkpoint that is created without one.

    Example:
        >>> next_name({"checkpoint-1", "before payment"})
        'checkpoint-2'
    """
    names, number = set(used_names), 1
    while f"checkpoint-{number}" in names:
        number += 1
    return f"checkpoint-{number}"


def _named_checkpoint_ids(chat: Chat) -> list[int]:
    """List the ids of the session's checkpoints that are not automatic, oldest first."""
    points = [point for branch in chat.agent.tree().walk() for point in branch.points]
    return sorted(point.id for point in points if not point.is_auto)


def _list(chat: Chat, command: SlashCommand) -> None:
    checkpoints = [chat.agent.session.get_checkpoint(checkpoint_id) for checkpoint_id in _named_checkpoint_ids(chat)]
    placeholder = [(Span("no named checkpoints yet; /checkpoint create NAME creates one"),)]
    output.show(logs.lines(checkpoints, width=output.width(), zone=output.zone()) or placeholder)


def _undo_to_named(chat: Chat, command: SlashCommand) -> None:
    path_ids = _checkpoint_ids_on_path(chat.agent)
    named_ids = [checkpoint_id for checkpoint_id in _named_checkpoint_ids(chat) if checkpoint_id in path_ids]
    if not named_ids:
        raise NotFound("There is no named checkpoint on this branch. /checkpoint create NAME creates one.")
    _roll_back_to(chat, command, named_ids[-1])


def _checkpoint_ids_on_path(agent: RollbackAgent) -> set[int | None]:
    """Return the ids of the checkpoints on the agent's path, including the points where its branches start."""
    branches = {branch.id: branch for branch in agent.tree().walk()}
    ids = {point.id for point in agent.checkpoints()}
    branch_id: int | None = agent.branch_id
    while branch_id is not None:
        ids.add(branches[branch_id].branch_point_id)
        branch_id = branches[branch_id].parent_id
    return ids


# -- branches


def _fork(chat: Chat, command: SlashCommand) -> None:
    forked = chat.agent.fork(name=command.word(0))
    chat.agent = forked.switch(forked.branch)
    _show_current_branch(chat)


def _switch(chat: Chat, command: SlashCommand) -> None:
    (name,), sync, agent = command.words, command.options.get(slash_commands.SYNC), chat.agent
    if sync == "world" and not chat.confirm_plan(command, agent.plan_switch(name)):
        return
    chat.agent = agent.switch(name, sync, force=slash_commands.FORCE in command.options)
    if sync is None:
        _show_current_branch(chat)
    else:
        chat.show_report()


def _show_current_branch(chat: Chat) -> None:
    name = clean(chat.agent.branch.name)
    output.show([(Span(name, "head"), Span(" is the current branch; the world is unchanged"))])


# -- inspection and merging


def _tree(chat: Chat, command: SlashCommand) -> None:
    output.show(trees.lines(chat.agent.tree(), width=output.width(), zone=output.zone()))


def _log(chat: Chat, command: SlashCommand) -> None:
    checkpoints = list(islice(chat.agent.log(), command.number()))
    output.show(logs.lines(checkpoints[::-1], width=output.width(), zone=output.zone()) or _NO_CHECKPOINTS)


def _tool_track(chat: Chat, command: SlashCommand) -> None:
    calls = chat.agent.tool_track()[-(command.number() or 0) :]
    output.show(conversation.call_lines(calls, width=output.width()) or [(Span("no tool calls yet"),)])


def _branches(chat: Chat, command: SlashCommand) -> None:
    agent = chat.agent
    output.show(branch_lines(agent.session.branches(), agent.tree(), width=output.width(), zone=output.zone()))


def _diff(chat: Chat, command: SlashCommand) -> None:
    agent = chat.agent

    difference = agent.diff(command.word(0) or agent.plan_undo().checkpoint_id, command.word(1) or "HEAD")
    output.show(diffs.lines(difference, width=output.width()))


def _compare(chat: Chat, command: SlashCommand) -> None:
    output.show(diffs.lines(chat.agent.compare(command.words[0]), width=output.width()))


def _merge(chat: Chat, command: SlashCommand) -> None:
    agent, (ref,), resolve = chat.agent, command.words, command.options.get(slash_commands.RESOLVE)
    _run_merge(agent.plan_merge(ref, resolve=resolve), lambda: agent.merge(ref, resolve=resolve))


def _cherry_pick(chat: Chat, command: SlashCommand) -> None:
    agent, (ref,) = chat.agent, command.words
    _run_merge(agent.plan_cherry_pick(ref), lambda: agent.cherry_pick(ref))


def _run_merge(plan: MergePlan, run: Callable[[], Checkpoint]) -> None:
    """Show a merge plan, and run it unless it is empty.

    There is no confirmation, because the world does not change and a rollback undoes the merge.
    """
    output.show(diffs.merge_lines(plan, width=output.width()))
    if not plan.is_empty:
        output.show(logs.lines([run()], width=output.width(), zone=output.zone()))


# -- search, tags and help


def _search(chat: Chat, command: SlashCommand) -> None:
    all_branches, after = slash_commands.EVERYWHERE in command.options, command.options.get(slash_commands.AFTER)
    hits = chat.agent.search(" ".join(command.words), all_branches=all_branches, after=after)
    output.show(logs.hit_lines(hits, width=output.width(), zone=output.zone()))


def _tag(chat: Chat, command: SlashCommand) -> None:
    *ref, name = command.words
    _show_tags([chat.agent.tag(ref[0] if ref else "HEAD", name)])


def _untag(chat: Chat, command: SlashCommand) -> None:
    removed = chat.agent.session.untag(command.words[0])
    output.show([(Span(f"{clean(removed.reference)} no longer has that tag"),)])


def _tags(chat: Chat, command: SlashCommand) -> None:
    _show_tags(chat.agent.session.tags())


def _show_tags(tags: list[Tag]) -> None:
    placeholder = [(Span("no tags yet; /tag [REF] NAME adds one"),)]
    output.show(logs.tag_lines(tags, width=output.width(), zone=output.zone()) or placeholder)


def _help(chat: Chat, command: SlashCommand) -> None:
    output.show(slash_commands.lines(output.width()))


_NO_CHECKPOINTS: list[Line] = [(Span("no checkpoints yet"),)]

_HANDLERS: dict[str, Callable[[Chat, SlashCommand], None]] = {
    "checkpoint create": _create,
    "checkpoint list": _list,
    "checkpoint restore": _rollback,
    "checkpoint undo": _undo_to_named,
    "undo": _undo,
    "redo": _redo,
    "rollback": _rollback,
    "plan": _plan,
    "rewind": _rewind,
    "rewind-files": _rewind_files,
    "resume": _resume,
    "resolve": _resolve,
    "tree": _tree,
    "log": _log,
    "tool-track": _tool_track,
    "diff": _diff,
    "compare": _compare,
    "merge": _merge,
    "cherry-pick": _cherry_pick,
    "search": _search,
    "tag": _tag,
    "untag": _untag,
    "tags": _tags,
    "branches": _branches,
    "fork": _fork,
    "switch": _switch,
    "continue": lambda chat, order: chat.turn(None),
    "help": _help,
    "quit": lambda chat, order: None,
}
"""The function for each of `slash.COMMANDS`."""
