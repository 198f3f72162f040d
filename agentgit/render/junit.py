"""The results of reruns as JUnit XML, which CI servers show."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, tostring

from agentgit.render.views.reruns import percent, verdict_text
from agentgit.sessions.rerun import DONE
from agentgit.sessions.reruns import Reruns, SessionRerun

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
