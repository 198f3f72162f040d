"""The slash commands of the chat: each calls the agent and writes the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from agentgit.cli import output, slash_commands
from agentgit.errors import NotFound
from agentgit.render.text import Line, Span, clean
from agentgit.render.views import conversation
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
    from agentgit.cli.conversation import Chat
    from agentgit.cli.slash_commands import SlashCommand
    from agentgit.effects import RollbackPlan


def run_command(chat: Chat, command: SlashCommand) -> None:
    """Run a slash command.

    Raises:
        AgentGitError: As the operation that the command runs.
    """
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
    agent, steps, force = chat.agent, command.number() or 1, slash_commands.FORCE in command.options
    _confirm_and_run(chat, command, agent.plan_undo(steps), lambda: agent.undo(steps, force=force))


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
    agent, ref = chat.agent, command.words[0]
    plan = agent.session.plan_rewind(ref, branch=agent.branch_id)
    if chat.confirm_plan(command, plan):
        changes = agent.rewind_files(ref, force=slash_commands.FORCE in command.options)
        output.show(rollbacks.file_lines(changes, width=output.width()))


# -- checkpoints


def _create(chat: Chat, command: SlashCommand) -> None:
    names = {point.name for branch in chat.agent.tree().walk() for point in branch.points}
    checkpoint = chat.agent.checkpoint(command.word(0) or next_name(names), description=command.word(1))
    output.show(logs.lines([checkpoint], width=output.width(), zone=None))


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
    output.show(logs.lines(checkpoints, width=output.width(), zone=None) or placeholder)


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
    output.show(trees.lines(chat.agent.tree(), width=output.width(), zone=None))


def _log(chat: Chat, command: SlashCommand) -> None:
    checkpoints = list(islice(chat.agent.log(), command.number()))
    output.show(logs.lines(checkpoints[::-1], width=output.width(), zone=None) or _NO_CHECKPOINTS)


def _tool_track(chat: Chat, command: SlashCommand) -> None:
    calls = chat.agent.tool_track()[-(command.number() or 0) :]
    output.show(conversation.call_lines(calls, width=output.width()) or [(Span("no tool calls yet"),)])


def _branches(chat: Chat, command: SlashCommand) -> None:
    agent = chat.agent
    output.show(branch_lines(agent.session.branches(), agent.tree(), width=output.width(), zone=None))


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
        output.show(logs.lines([run()], width=output.width(), zone=None))


# -- search, tags and help


def _search(chat: Chat, command: SlashCommand) -> None:
    all_branches, after = slash_commands.EVERYWHERE in command.options, command.options.get(slash_commands.AFTER)
    hits = chat.agent.search(" ".join(command.words), all_branches=all_branches, after=after)
    output.show(logs.hit_lines(hits, width=output.width(), zone=None))


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
    output.show(logs.tag_lines(tags, width=output.width(), zone=None) or placeholder)


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
