"""Reruns: the results of many sessions as lines and as JUnit XML, and one beside what was recorded."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, tostring

from agentgit.render import html
from agentgit.render.text import Line, Span, clean, plain, table
from agentgit.render.views.conversation import message_text
from agentgit.sessions.rerun import DONE, Message, RerunComparison, Reruns, SessionRerun, is_same_message
from agentgit.values import count


def lines(results: Reruns, *, width: int = 100) -> list[Line]:
    """Draw the results of reruns: a summary, and a row for each session."""
    summary = [count(len(results.rows), "session"), f"matched {percent(results.matched)}"]
    summary += [f"judge {_mean_text(results.judge)}"] if results.judge is not None else []
    summary += [count(results.tokens, "token")] if results.tokens is not None else []
    summary += [f"cost {results.cost:.4f}"] if results.cost is not None else []
    rows = [_row(row, name) for row, name in zip(results.rows, results.names, strict=True)]
    heading = (Span(f"{clean(results.name)}: {', '.join(summary)}", "heading"),)
    return [heading, *table(rows, width=width, indent="  ", wrap_last=True)]


def _row(row: SessionRerun, name: str) -> list[Span]:
    is_bad = row.verdict is False
    return [
        Span(clean(name), "reference"),
        Span(row.status, "" if row.status == DONE else "bad"),
        Span(f"matched {percent(row.match_rate)}" if row.report is not None else ""),
        Span(clean(verdict_text(row)), "bad" if is_bad else ""),
        Span(count(row.tokens, "token") if row.tokens is not None else "", "dim"),
        Span(f"cost {row.cost:.4f}" if row.cost is not None else "", "dim"),
        Span(clean(row.error or ""), "bad"),
    ]


def verdict_text(row: SessionRerun) -> str:
    """Return a verdict as text; empty if there is none.

    Example:
        >>> verdict_text(SessionRerun(session="a", verdict=False)), verdict_text(SessionRerun(session="a", verdict=0.5))
        ('failed', 'score 0.5')
    """
    if row.verdict is None:
        return ""
    if isinstance(row.verdict, bool):
        return "passed" if row.verdict else "failed"
    return row.verdict if isinstance(row.verdict, str) else f"score {row.verdict:g}"


def _mean_text(mean: float) -> str:
    return percent(mean) if 0 <= mean <= 1 else f"{mean:g}"


def percent(share: float) -> str:
    """Return a share in percent, rounded down, so that only everything is 100%.

    Example:
        >>> percent(0.9999)
        '99.9%'
    """
    return f"{int(share * 1000) / 10:g}%"


def draw_comparison(value: RerunComparison) -> str:
    """Draw a rerun beside what was recorded as plain text: its report, and the messages from where they diverge."""
    return plain(comparison_lines(value))


def comparison_lines(value: RerunComparison) -> list[Line]:
    """Draw a rerun beside what was recorded: equal messages once, others with the signs of a diff."""
    lines: list[Line] = [(Span(clean(line)),) for line in str(value.report).split("\n")]
    lines.append((Span(divergence_text(value), "heading"),))
    for _, before, after in value.pairs():
        if before is not None and after is not None and is_same_message(before, after):
            lines.append((Span(f"  {_message(before)}", "dim"),))
            continue
        lines += [(Span(f"- {_message(before)}", "removed"),)] if before is not None else []
        lines += [(Span(f"+ {_message(after)}", "added"),)] if after is not None else []
    return lines


def comparison_page(value: RerunComparison) -> str:
    """Draw a rerun beside what was recorded as HTML, in two columns."""
    heads = [html.escape(value.report.source), html.escape(value.report.branch)]
    rows = []
    for number, before, after in value.pairs():
        if number == value.diverges_at:
            rows.append(["<b>they diverge here</b>"] * 2)
        rows.append([html.escape(_message(one)) if one is not None else "" for one in (before, after)])
    report = html.pre([(Span(clean(line)),) for line in str(value.report).split("\n")], wrapped=True)
    return f"<div>{report}<p><b>{html.escape(divergence_text(value))}</b></p>{html.table(heads, rows)}</div>"


def divergence_text(value: RerunComparison) -> str:
    """Return a sentence that says where a rerun leaves the recorded conversation."""
    if value.diverges_at is None:
        return f"All {count(value.rerun_count, 'message')} are the same."
    return (
        f"They diverge at message {value.diverges_at}, of {value.recorded_count} recorded and {value.rerun_count} now."
    )


def _message(message: Message) -> str:
    return f"{clean(str(message.get('role', '')))}: {message_text(message)}"


_NOT_IN_XML = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""Characters that XML does not allow, and those that control a terminal or reorder its text."""


def document(results: Reruns, bar: float) -> bytes:
    """Return the results as JUnit XML: a test case for each session."""
    errors = sum(_has_error(results, row) for row in results.rows)
    failures = sum(not _has_error(results, row) and results.score(row) < bar for row in results.rows)
    counts = {"tests": str(len(results.rows)), "failures": str(failures), "errors": str(errors)}
    root = Element("testsuites", counts)
    suite = SubElement(root, "testsuite", {"name": _text(f"agentgit rerun {results.name}"), **counts, "skipped": "0"})
    for row, name in zip(results.rows, results.names, strict=True):
        _add_case(suite, results, row, name, bar)
    page: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return page


def _add_case(suite: Element, results: Reruns, row: SessionRerun, name: str, bar: float) -> None:
    case = SubElement(suite, "testcase", {"classname": "agentgit.rerun", "name": _text(name), **_time(row)})
    verdict = verdict_text(row)
    message = f"matched {percent(row.match_rate)}{f', {verdict}' if verdict else ''}"
    if _has_error(results, row):
        problem = SubElement(
            case,
            "error",
            {"type": row.status if row.status != DONE else "no verdict", "message": _text(row.error or message)},
        )
    elif results.score(row) < bar:
        problem = SubElement(case, "failure", {"type": "below the bar", "message": _text(message)})
    else:
        return
    problem.text = _text("\n".join(map(str, filter(None, [row.error, row.report]))))


def _time(row: SessionRerun) -> dict[str, str]:
    seconds = row.report.seconds if row.report is not None else None
    return {"time": f"{seconds:.3f}"} if seconds is not None else {}


def _has_error(results: Reruns, row: SessionRerun) -> bool:
    """Return whether a session has no result, as opposed to a bad one."""
    return row.status != DONE or (results.is_judged and row.verdict is None)


def _text(text: str) -> str:
    """Return a text that XML allows and that no viewer misreads: other characters are escaped as in Python."""
    return _NOT_IN_XML.sub(lambda match: repr(match[0])[1:-1], text)
