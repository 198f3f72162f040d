"""Webhooks are stored with the event, signed, sent at least once by one worker at a time, and private."""

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import traceback
from datetime import UTC, datetime, timedelta

import backend
import points
import pytest
from receivers import SECRET, Receiver, due_now
from sqlalchemy import select, update

import agentgit
import agentgit.demo
from agentgit import InvalidInput, NotAllowed, NotFound
from agentgit.repository import webhook_sender
from agentgit.sessions.webhooks import new_secret, sign, signing_key, verify
from agentgit.store.audit import outbox
from agentgit.store.audit.outbox import MAX_ATTEMPTS
from agentgit.store.sql.tables import WEBHOOK, WEBHOOK_DELIVERY

pytestmark = pytest.mark.usefixtures("webhooks_allowed", "long_webhook_pauses")


def ids(receiver):
    return [headers["webhook-id"] for headers, _ in receiver.got]


def test_an_event_is_sent_once_with_a_signature(repo, receiver):
    """An event is sent once, as Standard Webhooks specifies, with a signature that the receiver can check."""
    hook = repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("support-42", create=True)
    assert [one.pending for one in repo.webhooks.list()] == [1]
    assert repo.webhooks.deliver().to_dict() == {"sent": 1, "failed": 0, "dead": 0, "waiting": 0}
    ((headers, body),) = receiver.got
    message = json.loads(body)
    assert (message["type"], message["data"]["session_name"]) == ("session.created", "support-42")
    assert message["data"]["hash"] == next(repo.events.list(session="support-42")).hash
    assert headers["webhook-id"] == f"evt_{message['data']['hash'][:32]}"
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    made = base64.b64encode(hmac.new(b"k" * 32, text, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{made}"
    verify(SECRET, headers, body)
    assert (hook.pending, repo.webhooks.list()[0].pending) == (0, 0)


def test_a_wrong_or_old_signature_is_refused():
    """Another secret or body, an old or missing time and a missing signature are refused; key rotation works."""
    headers = sign(SECRET, "evt_1", b"{}", 1000)
    verify(SECRET, headers, b"{}", now=1100)
    both = {**headers, "Webhook-Signature": "v1,AAAA " + headers.pop("webhook-signature")}
    verify(SECRET, both, b"{}", now=1100)
    for secret, given, body, now in (
        (new_secret(), both, b"{}", 1100), (SECRET, both, b"{ }", 1100), (SECRET, both, b"{}", 2000),
        (SECRET, headers, b"{}", 1100), (SECRET, {**both, "webhook-timestamp": "\u0661\u0660"}, b"{}", 1100),
        (SECRET, {}, b"", 0),
    ):  # fmt: skip
        with pytest.raises(NotAllowed):
            verify(secret, given, body, now=now)


def test_a_failed_delivery_is_retried_with_the_same_id(repo, receiver, monkeypatch):
    """A failed delivery is retried after growing pauses, with the same id and body, until it is accepted."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    receiver.answers.extend([500, 302, 429])
    receiver.headers["location"] = receiver.url
    pauses = []
    monkeypatch.setattr(*points.FIRST_PAUSE_OF_WEBHOOKS.place, timedelta(minutes=10))
    for _ in range(3):
        now = datetime.now(UTC)
        assert repo.webhooks.deliver().to_dict() == {"sent": 0, "failed": 1, "dead": 0, "waiting": 1}
        assert repo.webhooks.deliver().to_dict() == {"sent": 0, "failed": 0, "dead": 0, "waiting": 1}
        with backend.reading(repo) as connection:
            pauses.append(connection.execute(select(WEBHOOK_DELIVERY.c.next_at)).scalar_one() - now)
        due_now(repo)
    assert all(pause >= timedelta(minutes=least) for pause, least in zip(pauses, (5, 10, 20), strict=True))
    assert pauses[0] < pauses[2]
    assert repo.webhooks.list()[0].last_error == "the receiver answered 429"
    assert repo.webhooks.deliver().sent == 1
    assert (len(receiver.got), len(set(ids(receiver))), len({body for _, body in receiver.got})) == (4, 1, 1)


def test_an_undeliverable_event_is_given_up_and_can_be_retried(repo, receiver):
    """After its last try, or at once after a 410, an event is dead and counted, and `retry` sends it again."""
    hook = repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    backend.write(repo, lambda c: c.execute(update(WEBHOOK_DELIVERY).values(attempts=MAX_ATTEMPTS - 1)))
    receiver.answers.append(503)
    assert repo.webhooks.deliver().dead == 1
    repo.session("t", create=True)
    receiver.answers.append(410)
    assert repo.webhooks.deliver().dead == 1
    due_now(repo)
    assert repo.webhooks.deliver().to_dict() == {"sent": 0, "failed": 0, "dead": 0, "waiting": 0}
    assert (repo.webhooks.list()[0].pending, repo.webhooks.list()[0].dead) == (0, 2)
    assert repo.webhooks.retry(hook) == 2
    assert repo.webhooks.deliver().sent == 2


def test_an_unreachable_receiver_is_a_failure(repo, monkeypatch):
    """A host that refuses the connection and one that never answers are failures with their reasons."""
    repo.webhooks.add("http://127.0.0.1:9/", "session.*", SECRET)
    repo.session("s", create=True)
    assert repo.webhooks.deliver().failed == 1
    assert "Connect" in repo.webhooks.list()[0].last_error
    monkeypatch.setattr(*points.SECONDS_OF_WEBHOOKS.place, 0.2)
    with Receiver() as deaf:  # it listens, but accepts no connection
        repo.webhooks.add(deaf.url, "session.*", SECRET)
        repo.session("t", create=True)
        assert repo.webhooks.deliver().failed == 2
    assert "Timeout" in repo.webhooks.list()[1].last_error


def test_concurrent_workers_send_each_event_once(repo, receiver, monkeypatch):
    """Several live workers at once send each event exactly once."""
    monkeypatch.setattr(*points.SECONDS_OF_WEBHOOKS.place, 30)
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    for n in range(20):
        repo.session(f"s{n}", create=True)
    sent = []
    with agentgit.open(backend.url(repo)) as other:
        workers = [
            threading.Thread(target=lambda r=r: sent.append(r.webhooks.deliver().sent)) for r in (repo, other) * 2
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert (sum(sent), len(ids(receiver)), len(set(ids(receiver)))) == (20, 20, 20)


def test_events_taken_by_a_dead_worker_are_tried_by_another(repo, receiver):
    """An event that a dead worker took is later tried by another one, and a late result is ignored."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    (taken,) = backend.write(repo, lambda c: repo.context.store.outbox.claim(c, 5))
    assert repo.webhooks.deliver().sent == 0
    due_now(repo)
    receiver.answers.append(500)
    assert repo.webhooks.deliver().failed == 1
    backend.write(repo, lambda c: repo.context.store.outbox.record_attempt(c, taken, None))
    assert repo.webhooks.list()[0].pending == 1


DYING = """
import os, sys, agentgit
repo = agentgit.open(sys.argv[1])
repo.session("s", create=True)
os._exit(9)
"""


@pytest.mark.long
def test_a_kill_between_commit_and_delivery_loses_no_event(repo, receiver):
    """An event of a process that was killed right after its commit is sent by the next worker."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    url = backend.address(repo)
    assert subprocess.run([sys.executable, "-c", DYING, url], check=False).returncode == 9  # noqa: S603  # our own program
    assert repo.webhooks.deliver().sent == 1
    assert json.loads(receiver.got[0][1])["data"]["session_name"] == "s"


def test_a_rolled_back_transaction_leaves_no_event_to_send(repo, receiver):
    """The outbox is written in the transaction of the event."""
    repo.webhooks.add(receiver.url, "*", SECRET)
    before = repo.webhooks.list()[0].pending

    def work(connection):
        repo.context.store.sessions.create(connection, repo.user.id, "never")
        raise NotFound("taken back")

    with pytest.raises(NotFound):
        backend.write(repo, work)
    assert repo.webhooks.list()[0].pending == before == 1  # the event `webhook.added`


def test_users_see_only_the_webhooks_they_added(database, receiver):
    """Nobody sees, removes or receives events by another user's webhook, and one worker delivers for all."""
    with agentgit.open(database.url, user="ann") as ann, agentgit.open(database.url, user="bob") as bob:
        hook = ann.webhooks.add(receiver.url, "session.*", SECRET)
        bob.session("his", create=True)
        assert (bob.webhooks.list(), ann.webhooks.list()[0].pending) == ([], 0)
        for verb in (bob.webhooks.remove, bob.webhooks.retry):
            with pytest.raises(NotFound):
                verb(hook)
        one, _ = ann.session("one", create=True), ann.webhooks.add(receiver.url, "tag.*", SECRET, session="one")
        two = ann.session("two", create=True)
        for session in (one, two):
            backend.write(
                ann,
                lambda c, s=session: outbox.record_event(
                    c, ann.context.store.tenant_id, "tag.created", session_id=s.id
                ),
            )
        assert [one.pending for one in ann.webhooks.list()] == [2, 1]
        with agentgit.open(database.url) as admin:
            assert admin.webhooks.deliver().sent == 3
        assert ann.webhooks.remove(hook).id == hook.id
        assert [event.kind for event in ann.events.list()][-1] == "webhook.removed"


def test_webhook_secrets_are_shown_only_once(repo, receiver):
    """Only `add` returns a secret; no repr, list or event contains it or a token in the URL."""
    hook = repo.webhooks.add(receiver.url + "?token=hidden", "session.*")
    assert len(signing_key(hook.secret)) == 32
    assert repo.webhooks.list()[0].secret is None
    said = repr(hook) + json.dumps(hook.to_dict()) + repr(repo.webhooks.list()) + repr(list(repo.events.list()))
    assert hook.secret not in said
    assert "hidden" not in said


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/y", "gopher://x", "http://", "/hook", "https://ann:pw@x/", "http://x y/", "http://x:99999/",
     "http://x/\r\nhost: y", "http://ex\u00e4mple/", "javascript:alert(1)", "", None],
)  # fmt: skip
def test_invalid_webhook_urls_are_refused(repo, url):
    """Only http and https URLs are accepted, without a user, password or text that could become a header."""
    with pytest.raises(InvalidInput):
        repo.webhooks.add(url, "*", SECRET)
    assert repo.webhooks.list() == []


@pytest.mark.parametrize("secret", ["", "short", "whsec_!!!", "whsec_" + base64.b64encode(b"short").decode()])
def test_weak_secrets_are_refused(repo, secret):
    """A secret that is guessable or ambiguous is refused, and the error does not repeat it."""
    with pytest.raises(InvalidInput) as refused:
        repo.webhooks.add("https://example.com/", "*", secret)
    assert not secret or secret not in str(refused.value)


def test_hostile_session_names_break_no_message(repo, receiver):
    """The name of a session can break neither the body nor a header."""
    name = 'a"\r\nx: y\x00\udc80</script>'
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session(name, create=True)
    assert repo.webhooks.deliver().sent == 1
    headers, body = receiver.got[0]
    assert json.loads(body)["data"]["session_name"] == name
    assert "x" not in headers
    verify(SECRET, headers, body)


async def test_deliver_works_inside_a_running_event_loop(repo, receiver):
    """Delivery runs a separate event loop, so it works where one is already running."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    assert repo.webhooks.deliver().sent == 1


def test_fsck_accepts_webhooks_with_pending_events(repo):
    """Fsck finds no fault in webhooks and their pending events."""
    repo.webhooks.add("https://example.com/", "*", SECRET)
    repo.session("s", create=True)
    assert repo.maintenance.fsck(level=3).is_sound


def test_logs_and_errors_contain_no_webhook_secret(repo, receiver, caplog):
    """Logs and errors do not show the query of a URL, and errors do not show a secret."""
    caplog.set_level("DEBUG")
    repo.webhooks.add(f"{receiver.url}?token=hush", "session.*", SECRET)
    repo.session("s", create=True)
    assert repo.webhooks.deliver().sent == 1
    assert "hush" not in caplog.text
    (row,) = backend.write(repo, lambda c: c.execute(WEBHOOK.select()).mappings().all())
    with pytest.raises(agentgit.AgentGitError) as caught:
        backend.write(repo, lambda c: c.execute(WEBHOOK.insert().values(dict(row))))
    shown = "".join(traceback.format_exception(caught.value))
    assert "hush" not in shown
    assert SECRET not in shown


def test_a_receiver_that_is_down_delays_no_other_webhook(repo, receiver, tmp_path):
    """After a failed delivery the other events of that webhook wait, and other webhooks are served."""
    repo.webhooks.add("http://127.0.0.1:1/down", "tag.*", SECRET)
    agent = repo.wrap(agentgit.demo.build(str(tmp_path / "shop.db")), "s")
    agent.run("hello")
    for n in range(30):
        repo.session("s").tag("HEAD", f"t{n}")
    repo.webhooks.add(receiver.url, "tag.*", SECRET)
    repo.session("s").tag("HEAD", "last")
    done = repo.webhooks.deliver()
    assert (done.sent, done.waiting) == (1, 31)
    assert done.failed <= webhook_sender.AT_ONCE
    assert repo.webhooks.list()[0].pending == 31


def test_webhooks_share_no_cookies(repo, receiver):
    """A cookie that a receiver sets is sent to nobody."""
    receiver.headers["set-cookie"] = "who=me"
    for path in ("/a", "/b"):
        repo.webhooks.add(receiver.url + path, "session.*", SECRET)
    repo.session("s", create=True)
    repo.session("t", create=True)
    assert repo.webhooks.deliver().sent == 4
    repo.session("u", create=True)
    repo.webhooks.deliver()
    assert all("cookie" not in {name.lower() for name in headers} for headers, _ in receiver.got)


def test_unknown_event_kinds_of_a_newer_version_are_ignored(repo):
    """A webhook stored with an unknown event kind still receives the known kinds, and writers are not stopped."""
    repo.webhooks.add("http://127.0.0.1:1/x", ["session.*"], SECRET)
    stored = b'["session.*","dream.ended"]'
    backend.write(repo, lambda c: c.execute(update(WEBHOOK).values(kinds=stored)))
    repo.session("s", create=True)
    assert repo.webhooks.list()[0].pending == 1
