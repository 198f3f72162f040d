"""Next steps after an error, and after a step of a plan or a report: verbs with arguments, which each face words.

Only a next step is worded for a face. The text before it, which may be a user's own, is the same on every face.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

Face = Literal["python", "cli", "chat", "notebook", "page", "mcp", "graph"]
"""Who reads: a program, a terminal, a chat, a cell of a notebook, a browser, an MCP client, a client of a graph."""

Verb = Literal[
    "add_no_files", "add_overwrite", "add_user", "answer", "answer_calls", "answer_each", "check_schema", "confirm",
    "continue", "continue_exploration", "create_database", "create_session", "declare", "diff", "drop_question",
    "enable_user", "force", "force_delete", "force_files", "force_recover", "force_restore", "force_rollback",
    "force_template", "fork", "fsck", "give_keys", "grant", "install", "keep_files", "list_branches", "list_calls",
    "list_checkpoints", "list_keys", "list_links", "list_members", "list_operations", "list_sessions",
    "list_snapshots", "list_tags", "list_users", "no_files", "overwrite_files", "recover", "redo_planned",
    "report_unowned", "rerun_live", "resolve", "resolve_happened", "resolve_to_reverse", "restore_other", "resume",
    "resume_forced", "resume_planned", "retain", "rewind_files", "rewind_other", "rollback", "save_files",
    "save_no_files", "share", "show_exploration", "switch", "switch_ignore", "switch_note", "switch_run",
    "switch_world", "tag", "undo", "undo_planned", "unfenced", "untag", "update", "use_serializer", "wrap",
    "wrap_again",
]  # fmt: skip


@dataclass(frozen=True)
class Next:
    """A next step: a verb of `WORDS`, and its arguments.

    Example:
        >>> step = Next("resume", operation=7)
        >>> step.worded("python"), step.worded("chat"), step.to_dict()
        ('repo.resume(7) finishes it', '/resume 7 finishes it', {'verb': 'resume', 'operation': 7})
    """

    verb: Verb
    arguments: tuple[tuple[str, Any], ...] = ()

    def __init__(self, verb: Verb, **arguments: Any) -> None:
        object.__setattr__(self, "verb", verb)
        hashable = {name: tuple(one) if isinstance(one, list) else one for name, one in arguments.items()}
        object.__setattr__(self, "arguments", tuple(hashable.items()))

    def worded(self, face: Face) -> str:
        """Return the step in the words of a face, without a full stop."""
        words = WORDS[self.verb]
        return f"{_thing(words, face, dict(self.arguments))} {words['does']}"

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON-like data, which `from_dict` reads."""
        return {"verb": self.verb, **dict(self.arguments)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a step from the data that `to_dict` returned."""
        return cls(**data)


class Worded(Exception):
    """The part of errors and warnings that each face words: a message, and next steps."""

    face: Face = "python"
    """The face that `str()` words the next steps for."""
    place: NamedPlace | None = None
    """What the command that raised this named, if that is over; see `NAMED_PLACE`."""

    def __init__(self, message: str = "", *next: Next) -> None:
        super().__init__(message, *next)
        self.message = message
        self.next = next

    @property
    def reason(self) -> Reason:
        return Reason(self.message, *self.next)

    def worded(self, face: Face) -> str:
        """Return the message and the next steps in the words of a face."""
        token = NAMED_PLACE.set(self.place or NAMED_PLACE.get())
        try:
            return _join(self.message, self.next, face)
        finally:
            NAMED_PLACE.reset(token)

    def __str__(self) -> str:
        return self.worded(self.face)


class Reason(str):
    """The reason for a step of a plan, or for its end, with next steps. As a string, it has the words of Python."""

    message: str
    next: tuple[Next, ...]

    def __new__(cls, message: str, *next: Next) -> Self:
        reason = super().__new__(cls, _join(message, next, "python"))
        reason.message, reason.next = message, next
        return reason

    @classmethod
    def of(cls, text: str) -> Reason:
        """Return a text as a reason; one that is a reason already stays as it is."""
        return text if isinstance(text, Reason) else Reason(text)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.message, *self.next

    def worded(self, face: Face) -> str:
        """Return the reason in the words of a face."""
        return _join(self.message, self.next, face)

    def within(self, before: str = "", after: str = "") -> Reason:
        """Return the reason with text around its message."""
        return Reason(f"{before}{self.message}{after}", *self.next)

    def to_dict(self, key: str) -> dict[str, Any]:
        """Return the message under a key, and the next steps, as JSON-like data."""
        return {key: self.message, "next": [step.to_dict() for step in self.next]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], key: str) -> Reason:
        """Create a reason from the data that `to_dict` returned."""
        return Reason(data[key], *map(Next.from_dict, data.get("next", ())))


def join_reasons(reasons: Iterable[str | None]) -> Reason:
    """Join reasons to one of the kind of the first; their next steps stand after all of them."""
    given = [Reason.of(one) for one in reasons if one]
    steps = dict.fromkeys(step for one in given for step in one.next)
    kind = type(given[0]) if given else Reason
    return kind("; ".join(one.message for one in given), *steps)


def once(reasons: Iterable[str]) -> Iterator[Reason]:
    """Yield reasons; a next step that several have stands only in the first."""
    shown: set[Next] = set()
    for reason in map(Reason.of, reasons):
        yield Reason(reason.message, *(step for step in reason.next if step not in shown))
        shown.update(reason.next)


def _join(message: str, steps: Iterable[Next], face: Face) -> str:
    """Return a message and its next steps: as sentences after a sentence, else as parts of one."""
    texts = [step.worded(face) for step in steps]
    return (
        " ".join([message, *(f"{text}." for text in texts)])
        if message.endswith((".", "?", "!"))
        else "; ".join([message, *texts])
    )


def _thing(words: Mapping[str, str], face: Face, arguments: Mapping[str, Any]) -> str:
    """Return what a person uses for a step on a face: a call, a command, a control or a tool."""

    def spell(template: str, spelling: Callable[[Any], str]) -> str:
        given = {name: _open_answers(value) if name == "ids" else spelling(value) for name, value in arguments.items()}
        named = NOWHERE if face == "chat" else NAMED_PLACE.get()
        options, branch = named.options if face in RUN else "", arguments.get("branch", named.branch)
        place = f"{named.session}@{branch}" if branch else named.session
        words = {"session": named.session and f" {_quoted(named.session)}", "place": place and f" {_quoted(place)}"}
        words["at"] = f"branch={arguments['branch']!r}" if "branch" in arguments else ""
        words |= {"run": f"{RUN.get(face, RUN['cli'])}{options}", "agentgit": f"{RUN['cli']}{options}"}
        return template.format(**words, **given)

    if face in words or face == "graph":
        return spell(words.get(face, words["python"]), repr if face in PROGRAMS else _quoted if face in RUN else str)
    if "cli" not in words:
        return f"{spell(words['python'], repr)} in the agent's program"
    command = spell(words["cli"], _quoted)
    return command if face in RUN else f"{command} on the server"


def _open_answers(ids: Iterable[str]) -> str:
    return ", ".join(f"{one!r}: ..." for one in ids)


def _quoted(value: Any) -> str:
    return shlex.quote(str(value))


PROGRAMS = ("python", "graph")

RUN = {"cli": "agentgit ", "chat": "/", "notebook": "%agentgit "}
"""What a command begins with, on each face that runs the commands of the command line."""


class NamedPlace(NamedTuple):
    """A session, a branch and options before a command, like `--db notes.db `; what is not named is empty."""

    session: str = ""
    branch: str = ""
    options: str = ""

    def at(self, session: Any, branch: str | None) -> NamedPlace:
        """Return the place of a session and a branch; a name that would be read as an option gives way to the id."""
        name = session.reference
        return self._replace(session=str(session.id) if name.startswith("-") else name, branch=branch or "")


NOWHERE = NamedPlace()

NAMED_PLACE: ContextVar[NamedPlace] = ContextVar("agentgit_named_place", default=NOWHERE)
"""What the running command, page or tool names, which a command that it proposes must name too."""

ANYWAY = "“… anyway”"


def _words(does: str, python: str, cli: str | None = None, **faces: str) -> dict[str, str]:
    return {"does": does, "python": python, **({"cli": cli} if cli else {}), **faces}


def _list(python: str, cli: str, page: str, mcp: str | None = None, **faces: str) -> dict[str, str]:
    tool = {"mcp": f"`{mcp}`"} if mcp else {}
    return _words("lists them", python, f"{{run}}{cli}", page=f"“{page}”", **tool, **faces)


def _switch(does: str, sync: str | None = None) -> dict[str, str]:
    option, choice, also = (f", sync={sync!r}", f" --sync {sync}", f" and sync {sync}") if sync else ("", "", "")
    return _words(
        does,
        f"agent.switch({{branch}}{option})",
        f"{{run}}switch{{session}} {{branch}}{choice}",
        page="“Switch to this branch”",
        mcp=f"`switch` with branch {{branch}}{also}",
        graph=f"session.switch({{branch}}{option})",
    )


def _force(does: str, page: str = ANYWAY) -> dict[str, str]:
    graph = "session.rollback(REF, force=True)"
    return _words(does, "force=True", "--force", page=page, mcp="force=true, if the server allows it,", graph=graph)


WORDS: Mapping[Verb, Mapping[str, str]] = {
    "add_no_files": _words(
        "leaves the files alone",
        "files=False",
        "--no-files",
        page="“conversation and world”",
        mcp="files=false",
        graph="files=False",
    ),
    "add_overwrite": _words(
        "restores them, and keeps the other's version",
        "files='overwrite'",
        "--overwrite-files",
        page="“all, also files in conflict”",
        mcp="files=overwrite",
        graph="files='overwrite'",
    ),
    "add_user": _words("adds one", "repo.users.add(NAME)", "{run}users add NAME", page="“Users”"),
    "answer": _words(
        "answers",
        "agent.invoke(Command(resume=...))",
        "{agentgit}chat MODULE:GRAPH{place}, with your next line,",
        chat="Your next line",
        graph="A run with Command(resume=...)",
    ),
    "answer_calls": _words("tells the model what is known of the calls", "on_unanswered='answer'"),
    "answer_each": _words(
        "answers them",
        "agent.invoke(Command(resume={{{ids}}}))",
        "{agentgit}chat MODULE:GRAPH{place}, with a line for each,",
        chat="A line for each, in this order,",
        graph="A run with Command(resume={{{ids}}})",
    ),
    "check_schema": _words("names it", "agentgit db check", "{run}db check"),
    "confirm": _words(
        "confirms what would be done now",
        "plan=error.plan",
        "The same command",
        page="The button under “Back to the plan”",
        mcp="Its new identity",
    ),
    "continue_exploration": _words(
        "continues it", "agent.explore(..., name={name})", "The same command with --name {name}"
    ),
    "continue": _words(
        "continues the turn",
        "agent.invoke(None)",
        "/continue in {agentgit}chat MODULE:GRAPH{place}",
        chat="/continue",
        graph="A run with the input None",
    ),
    "create_database": _words("creates one", "agentgit.open(PATH)", "{run}db upgrade"),
    "create_session": _words("creates one", "repo.wrap(graph, session=...)", "{agentgit}chat MODULE:GRAPH NAME"),
    "declare": _words(
        "declares it here",
        "repo.wrap(graph), or trust=[MODULE],",
        "--trust MODULE",
        page="agentgit serve --trust MODULE",
        mcp="agentgit mcp --trust MODULE",
    ),
    "diff": _words("needs none", "session.diff(A, B)", "{run}diff{session} A B", page="“Compare”", mcp="`diff`"),
    "drop_question": _words("sends a message in its place", "agent.run(text, on_question='drop')"),
    "enable_user": _words(
        "lets them in again", "repo.users.enable({name})", "{run}users enable {name}", page="“Enable” under “Users”"
    ),
    "force": _force("keeps what cannot be reversed"),
    "force_delete": _force("erases it, and leaves them", "“Delete although effects of its calls stand in the world”"),
    "force_files": _force("leaves these files as they are"),
    "force_recover": _words("takes the branch from it", "session.recover(force=True)", "{run}recover{place} --force"),
    "force_restore": _force("restores the files anyway, and keeps the changes in a snapshot"),
    "force_rollback": _words(
        "goes back to before it",
        "agent.rollback(REF, force=True)",
        "{run}rollback{place} REF --force",
        page=f"“Undo from here”, and {ANYWAY},",
        mcp="`rollback_to_checkpoint` with force",
        graph="session.rollback(REF, force=True)",
    ),
    "force_template": _words("answers these from the record", "force=True"),
    "fork": _words(
        "begins a branch of its own",
        "agent.fork()",
        "{run}fork{place}",
        page="“Fork”",
        mcp="`fork`",
        graph="session.fork()",
    ),
    "fsck": _words("finds what is damaged, to be restored from a backup", "agentgit fsck", "{run}fsck"),
    "give_keys": _words(
        "gives it", "agentgit.open(..., keyring=Keyring({{NAME: KEY}}))", "$AGENTGIT_ENCRYPTION_KEYS=NAME:BASE64,..."
    ),
    "grant": _words(
        "grants it, run by the owner",
        "agentgit db grant --schema SCHEMA --role ROLE",
        "{run}db grant --schema SCHEMA --role ROLE",
    ),
    "install": _words("installs it", "pip install {package}", "pip install {package}"),
    "keep_files": _words(
        "keeps its files from then on",
        "repo.wrap(graph, workspace=...)",
        "{agentgit}chat MODULE:GRAPH{place} --workspace DIR",
    ),
    "list_branches": _list("session.branches()", "branches{session}", "Tree", "branches"),
    "list_calls": _list("session.tool_track()", "tool-track{place}", "Tool calls", "tool_track"),
    "list_checkpoints": _list(
        "session.log({at})", "log{place}", "Tree", "list_checkpoints", graph="graph.get_state_history(config)"
    ),
    "list_keys": _list("repo.keys.list()", "keys list", "Keys"),
    "list_links": _list("session.sharing.links()", "share SESSION --links", "Sharing"),
    "list_members": _list("session.sharing.members()", "share SESSION", "Sharing"),
    "list_operations": _list("session.operations()", "status{session} --operations", "Operations", "operations"),
    "list_sessions": _list("repo.sessions()", "sessions", "Sessions", "sessions"),
    "list_snapshots": _words("lists them", "Workspace.list()", "{run}workspace list"),
    "list_tags": _list("session.tags()", "tag{session}", "Tree"),
    "list_users": _list("repo.users.list()", "users list", "Users"),
    "no_files": _words(
        "leaves the files alone",
        "agent.rollback({checkpoint}, files=False)",
        "{run}rollback{place} {checkpoint} --no-files",
        page="“conversation and world” under “Undo from here”",
        mcp="`rollback_to_checkpoint` with files=false",
        graph="session.rollback({checkpoint}, files=False)",
    ),
    "overwrite_files": _words(
        "restores them, and keeps the other's version",
        "agent.rollback({checkpoint}, files='overwrite')",
        "{run}rollback{place} {checkpoint} --overwrite-files",
        page="“all, also files in conflict” under “Undo from here”",
        mcp="`rollback_to_checkpoint` to {checkpoint} with files=overwrite",
        graph="session.rollback({checkpoint}, files='overwrite')",
    ),
    "recover": _words("frees it, if its process died on another machine", "session.recover()", "{run}recover{place}"),
    "redo_planned": _words("does it as its plan shows", "agent.redo(plan=agent.plan_redo())", "{run}redo{place}"),
    "report_unowned": _words("lets such calls run, and warns", "unowned_calls='report' in repo.wrap"),
    "rerun_live": _words(
        "simulates it too",
        "agent.rerun(tools={{{name}: 'live'}})",
        "{agentgit}rerun --graph MODULE:GRAPH SESSION --tools {name}=live",
    ),
    "resolve": _words(
        "records what you find",
        "repo.resolve({call}, 'happened'), or 'did_not_happen',",
        "{run}resolve {call} happened, or did-not-happen,",
        page="“It happened” or “It did not happen”",
    ),
    "resolve_happened": _words(
        "counts it as done by hand",
        "repo.resolve({call}, 'happened')",
        "{run}resolve {call} happened",
        page="“It happened”",
    ),
    "resolve_to_reverse": _words(
        "has the next rollback reverse it, if it did",
        "repo.resolve({call}, 'happened')",
        "{run}resolve {call} happened",
        page="“It happened”",
    ),
    "restore_other": _words("restores another snapshot", "Workspace.restore(REF)", "{run}workspace restore REF"),
    "resume": _words(
        "finishes it",
        "repo.resume({operation})",
        "{run}resume {operation}",
        page="“Resume” under “Operations”",
        mcp="`resume` with operation {operation}",
    ),
    "resume_forced": _words(
        "skips what still cannot be done",
        "repo.resume({operation}, force=True)",
        "{run}resume {operation} --force",
        page="“Finish without the steps that still fail”",
        mcp="`resume` with operation {operation} and force",
    ),
    "resume_planned": _words(
        "confirms what would be done now",
        "repo.resume({operation}, plan=error.plan)",
        "{run}resume {operation}",
        page="“Resume” under “Operations”",
        mcp="`resume` with operation {operation} and plan=IDENTITY",
    ),
    "retain": _words("sets what it keeps", "session.retention.set(...)", "{run}retention{session} --on"),
    "rewind_files": _words(
        "restores them, and keeps the existing files in a snapshot",
        "session.rewind_files({checkpoint}, files='overwrite')",
        "{run}rewind-files{place} {checkpoint} --overwrite-files",
    ),
    "rewind_other": _words(
        "restores the files of another point", "session.rewind_files(REF)", "{run}rewind-files{place} REF"
    ),
    "rollback": _words(
        "goes back to before it",
        "agent.rollback(REF)",
        "{run}rollback{place} REF",
        page="“Undo from here”",
        mcp="`rollback_to_checkpoint`",
        graph="A run at an older checkpoint",
    ),
    "save_no_files": _words(
        "leaves the files out",
        "files=False",
        "--no-files",
        page="agentgit checkpoint create{place} NAME --no-files, on the server,",
        mcp="agentgit checkpoint create{place} NAME --no-files, on the server,",
        graph="session.checkpoint(NAME, files=False)",
    ),
    "share": _words(
        "grants it, run by the owner",
        "session.sharing.share({user}, role={role})",
        "agentgit share{session} {user} --role {role}",
        page="“Sharing”",
    ),
    "save_files": _words("saves the files", "Workspace.save()", "{run}workspace save"),
    "show_exploration": _words("shows what was done", "agent.exploration({name})", "{run}tree{session}"),
    "switch": _switch("continues at its head"),
    "switch_ignore": _switch("goes on anyway", "ignore"),
    "switch_note": _switch("tells the model", "note"),
    "switch_run": _switch("runs these calls now", "world"),
    "switch_world": _switch("brings the world to it", "world"),
    "tag": _words("adds one", "session.tag(REF, NAME)", "{run}tag{session} REF NAME", page="“Tag”"),
    "undo": _words(
        "takes the turn back",
        "agent.undo()",
        "{run}undo{place}",
        page="“Undo from here”",
        mcp="`rollback_to_checkpoint`",
        graph="A run at the checkpoint before it",
    ),
    "undo_planned": _words(
        "takes it back as its plan shows",
        "agent.undo(plan=agent.plan_undo())",
        "{run}undo{place}",
        page="“Undo from here”",
        mcp="`rollback_to_checkpoint`",
    ),
    "unfenced": _words("makes such calls again", "fence='off' in repo.wrap"),
    "untag": _words("removes it", "session.untag({name})", "{run}tag{session} --delete {name}"),
    "update": _words("updates it", "pip install --upgrade agentgit", "pip install --upgrade agentgit"),
    "use_serializer": _words("reads it", "SQLModelSaver(..., serde=...)"),
    "wrap": _words("creates one", "agent = repo.wrap(graph, session=...)"),
    "wrap_again": _words("continues", "repo.wrap(graph)"),
}
"""What a step does, and by what, on each face. A face without words of its own has those of the command line, then of
Python. `graph` and `python` are programs."""
