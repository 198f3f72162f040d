"""Reruns: the results of many sessions as a table and as JUnit XML, and one beside what was recorded."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

from agentgit.render.text import clean, xml_text
from agentgit.render.view import Line, Span, Table, View
from agentgit.render.views.conversation import message_text
from agentgit.sessions.rerun import DONE, Message, RerunComparison, Reruns, SessionRerun, is_same_message
from agentgit.values import count


def results(value: Reruns) -> View:
    """Show the results of reruns: a summary, and a row for each session."""
    summary = [count(len(value.rows), "session"), f"matched {_percent(value.matched)}"]
    summary += [f"judge {_mean(value.judge)}"] if value.judge is not None else []
    summary += [count(value.tokens, "token")] if value.tokens is not None else []
    summary += [f"cost {value.cost:.4f}"] if value.cost is not None else []
    rows = [
        [
            Span(clean(name), "reference"),
            Span(row.status, "" if row.status == DONE else "bad"),
            Span(f"matched {_percent(row.match_rate)}" if row.report is not None else ""),
            Span(clean(_verdict(row)), "bad" if row.verdict is False else ""),
            Span(count(row.tokens, "token") if row.tokens is not None else "", "dim"),
            Span(f"cost {row.cost:.4f}" if row.cost is not None else "", "dim"),
            Span(clean(row.error or ""), "bad"),
        ]
        for row, name in zip(value.rows, value.names, strict=True)
    ]
    heading = (Span(f"{clean(value.name)}: {', '.join(summary)}", "heading"),)
    return [heading, Table(rows, indent="  ", wraps=True)]


def _verdict(row: SessionRerun) -> str:
    if row.verdict is None or isinstance(row.verdict, str):
        return row.verdict or ""
    if isinstance(row.verdict, bool):
        return "passed" if row.verdict else "failed"
    return f"score {row.verdict:g}"


def _mean(mean: float) -> str:
    return _percent(mean) if 0 <= mean <= 1 else f"{mean:g}"


def _percent(share: float) -> str:
    """Return a share in percent, rounded down, so that only everything is 100%."""
    return f"{int(share * 1000) / 10:g}%"


def report(value: object) -> View:
    """Show the report of a rerun, which is several lines."""
    return [(Span(clean(line)),) for line in str(value).split("\n")]


def comparison(value: RerunComparison) -> View:
    """Show a rerun beside what was recorded: equal messages once, others with the signs of a diff."""
    lines: list[Line] = []
    for _, before, after in value.pairs():
        if before is not None and after is not None and is_same_message(before, after):
            lines.append((Span(f"  {_message(before)}", "dim"),))
            continue
        lines += [(Span(f"- {_message(before)}", "removed"),)] if before is not None else []
        lines += [(Span(f"+ {_message(after)}", "added"),)] if after is not None else []
    return [*report(value.report), (Span(divergence(value), "heading"),), *lines]


def divergence(value: RerunComparison) -> str:
    """Return a sentence that says where a rerun leaves the recorded conversation."""
    if value.diverges_at is None:
        return f"All {count(value.rerun_count, 'message')} are the same."
    return (
        f"They diverge at message {value.diverges_at}, of {value.recorded_count} recorded and {value.rerun_count} now."
    )


def _message(message: Message) -> str:
    return f"{clean(str(message.get('role', '')))}: {message_text(message)}"


def junit(results: Reruns, bar: float) -> bytes:
    """Return the results as JUnit XML: a test case for each session."""
    errors = sum(_has_error(results, row) for row in results.rows)
    failures = sum(not _has_error(results, row) and results.score(row) < bar for row in results.rows)
    counts = {"tests": str(len(results.rows)), "failures": str(failures), "errors": str(errors)}
    root = Element("testsuites", counts)
    suite = SubElement(
        root, "testsuite", {"name": xml_text(f"agentgit rerun {results.name}"), **counts, "skipped": "0"}
    )
    for row, name in zip(results.rows, results.names, strict=True):
        _add_case(suite, results, row, name, bar)
    page: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return page


def _add_case(suite: Element, results: Reruns, row: SessionRerun, name: str, bar: float) -> None:
    seconds = row.report.seconds if row.report is not None else None
    time = {"time": f"{seconds:.3f}"} if seconds is not None else {}
    case = SubElement(suite, "testcase", {"classname": "agentgit.rerun", "name": xml_text(name), **time})
    message = ", ".join(filter(None, [f"matched {_percent(row.match_rate)}", _verdict(row)]))
    if _has_error(results, row):
        kind, details = "error", {"type": row.status if row.status != DONE else "no verdict"}
        message = row.error or message
    elif results.score(row) < bar:
        kind, details = "failure", {"type": "below the bar"}
    else:
        return
    problem = SubElement(case, kind, {**details, "message": xml_text(message)})
    problem.text = xml_text("\n".join(map(str, filter(None, [row.error, row.report]))))


def _has_error(results: Reruns, row: SessionRerun) -> bool:
    """Return whether a session has no result, as opposed to a bad one."""
    return row.status != DONE or (results.is_judged and row.verdict is None)
