"""Webhooks: written with the event, signed, sent at least once, by one at a time, and never for somebody else (W12)."""

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import traceback

import backend
import points
import pytest
from receivers import SECRET, Receiver, due_now
from sqlalchemy import update

import agentgit
import agentgit.demo
from agentgit import InvalidInput, NotAllowed, NotFound
from agentgit.repository import webhook_sender
from agentgit.sessions.webhooks import key_of, new_secret, signed, verify
from agentgit.store.audit import outbox
from agentgit.store.audit.outbox import TRIES
from agentgit.store.sql.tables import WEBHOOK, WEBHOOK_DELIVERY

pytestmark = pytest.mark.usefixtures("webhooks_allowed", "long_webhook_pauses")


def ids(receiver):
    return [headers["webhook-id"] for headers, _ in receiver.got]


def test_w12_an_event_is_sent_signed(repo, receiver):
    """W12: what is due is sent once, as Standard Webhooks says, with a signature that the receiver can check."""
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


def test_w12_what_is_signed_wrongly_or_long_ago_is_refused():
    """W12: another secret, another body, an old time, no time and no signature are all refused; key rotation works."""
    headers = signed(SECRET, "evt_1", b"{}", 1000)
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


def test_w12_what_fails_comes_again_with_the_same_id(repo, receiver):
    """W12: a failure is tried again later, each time later, with the same id and body, until the receiver takes it."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    receiver.answers.extend([500, 302, 429])
    receiver.headers["location"] = receiver.url
    for _ in range(3):
        assert repo.webhooks.deliver().to_dict() == {"sent": 0, "failed": 1, "dead": 0, "waiting": 1}
        assert repo.webhooks.deliver().to_dict() == {"sent": 0, "failed": 0, "dead": 0, "waiting": 1}
        due_now(repo)
    assert repo.webhooks.list()[0].last_error == "the receiver answered 429"
    assert repo.webhooks.deliver().sent == 1
    assert (len(receiver.got), len(set(ids(receiver))), len({body for _, body in receiver.got})) == (4, 1, 1)


def test_w12_what_is_never_taken_is_given_up_and_can_be_retried(repo, receiver):
    """W12: after its tries an event is dead, is seen to be, and is sent again when asked for; 410 ends at once."""
    hook = repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    backend.write(repo, lambda c: c.execute(update(WEBHOOK_DELIVERY).values(attempts=TRIES - 1)))
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


def test_w12_nobody_there_is_a_failure_like_others(repo, monkeypatch):
    """W12: a host that refuses, and one that never answers, are failures; no try takes longer than its time."""
    repo.webhooks.add("http://127.0.0.1:9/", "session.*", SECRET)
    repo.session("s", create=True)
    assert repo.webhooks.deliver().failed == 1
    assert "Connect" in repo.webhooks.list()[0].last_error
    monkeypatch.setattr(*points.SECONDS_OF_WEBHOOKS.place, 0.2)
    with Receiver() as deaf:  # it listens, and nobody accepts
        repo.webhooks.add(deaf.url, "session.*", SECRET)
        repo.session("t", create=True)
        assert repo.webhooks.deliver().failed == 2
    assert "Timeout" in repo.webhooks.list()[1].last_error


def test_w12_two_workers_never_send_the_same(repo, receiver, monkeypatch):
    """W12: several workers at once send each event exactly once, while all of them live."""
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


def test_w12_what_a_dead_worker_took_is_sent_by_another(repo, receiver):
    """W12: what a worker took and died with is left to others when its time is over; a late answer is nothing."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    (taken,) = backend.write(repo, lambda c: repo.context.store.outbox.take(c, 5))
    assert repo.webhooks.deliver().sent == 0
    due_now(repo)
    receiver.answers.append(500)
    assert repo.webhooks.deliver().failed == 1
    backend.write(repo, lambda c: repo.context.store.outbox.settle(c, taken, None))
    assert repo.webhooks.list()[0].pending == 1


DYING = """
import os, sys, agentgit
repo = agentgit.open(sys.argv[1])
repo.session("s", create=True)
os._exit(9)
"""


@pytest.mark.long
def test_w12_killed_between_commit_and_delivery(repo, receiver):
    """W12: what a process did that was killed right after its commit is sent by the next worker."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    url = backend.address(repo)
    assert subprocess.run([sys.executable, "-c", DYING, url], check=False).returncode == 9  # noqa: S603  # our own program
    assert repo.webhooks.deliver().sent == 1
    assert json.loads(receiver.got[0][1])["data"]["session_name"] == "s"


def test_w12_what_did_not_happen_is_not_sent(repo, receiver):
    """W12: the outbox is in the transaction of the event."""
    repo.webhooks.add(receiver.url, "*", SECRET)
    before = repo.webhooks.list()[0].pending

    def work(connection):
        repo.context.store.sessions.create(connection, repo.user.id, "never")
        raise NotFound("taken back")

    with pytest.raises(NotFound):
        backend.write(repo, work)
    assert repo.webhooks.list()[0].pending == before == 1  # that it was added


def test_w12_each_user_has_his_own(database, receiver):
    """W12: nobody sees or removes another user's webhook, nor are his events sent there; one worker does all."""
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
                ann, lambda c, s=session: outbox.note(c, ann.context.store.tenant_id, "tag.created", session_id=s.id)
            )
        assert [one.pending for one in ann.webhooks.list()] == [2, 1]
        with agentgit.open(database.url) as admin:
            assert admin.webhooks.deliver().sent == 3
        assert ann.webhooks.remove(hook).id == hook.id
        assert [event.kind for event in ann.events.list()][-1] == "webhook.removed"


def test_w12_secrets_are_not_shown(repo, receiver):
    """W12: a secret is told once, by `add`; neither reprs, lists, events nor failures have it, nor tokens in a URL."""
    hook = repo.webhooks.add(receiver.url + "?token=hidden", "session.*")
    assert len(key_of(hook.secret)) == 32
    assert repo.webhooks.list()[0].secret is None
    said = repr(hook) + json.dumps(hook.to_dict()) + repr(repo.webhooks.list()) + repr(list(repo.events.list()))
    assert hook.secret not in said
    assert "hidden" not in said


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://x/y", "gopher://x", "http://", "/hook", "https://ann:pw@x/", "http://x y/", "http://x:99999/",
     "http://x/\r\nhost: y", "http://ex\u00e4mple/", "javascript:alert(1)", "", None],
)  # fmt: skip
def test_w12_what_is_no_url_of_a_host_is_refused(repo, url):
    """W12: only http and https, without user and password, and nothing that could become a header."""
    with pytest.raises(InvalidInput):
        repo.webhooks.add(url, "*", SECRET)
    assert repo.webhooks.list() == []


@pytest.mark.parametrize("secret", ["", "short", "whsec_!!!", "whsec_" + base64.b64encode(b"short").decode()])
def test_w12_weak_secrets_are_refused(repo, secret):
    """W12: a secret that could be guessed, or read in two ways, is refused, and not repeated."""
    with pytest.raises(InvalidInput) as refused:
        repo.webhooks.add("https://example.com/", "*", secret)
    assert not secret or secret not in str(refused.value)


def test_w12_hostile_names_are_json(repo, receiver):
    """W12: what a session is called can break neither the body nor a header."""
    name = 'a"\r\nx: y\x00\udc80</script>'
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session(name, create=True)
    assert repo.webhooks.deliver().sent == 1
    headers, body = receiver.got[0]
    assert json.loads(body)["data"]["session_name"] == name
    assert "x" not in headers
    verify(SECRET, headers, body)


async def test_w12_a_coroutine_can_deliver(repo, receiver):
    """W12: delivery has a loop of its own, so it works where one runs already."""
    repo.webhooks.add(receiver.url, "session.*", SECRET)
    repo.session("s", create=True)
    assert repo.webhooks.deliver().sent == 1


def test_w12_fsck_counts_the_outbox(repo):
    """W12: webhooks and what waits for them are looked at, and are whole."""
    repo.webhooks.add("https://example.com/", "*", SECRET)
    repo.session("s", create=True)
    assert repo.maintenance.fsck(level=3).is_sound


def test_w12_nothing_secret_is_logged_or_told_by_failures(repo, receiver, caplog):
    """W12: neither httpcore nor a failed statement shows what follows a `?` in a URL, or a secret."""
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


def test_w12_a_receiver_that_is_down_holds_nobody_else_up(repo, receiver, tmp_path):
    """W12: when one event could not be sent, the others of its webhook wait for a while, too."""
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


def test_w12_webhooks_share_no_cookies(repo, receiver):
    """W12: what a receiver asks to remember goes to nobody."""
    receiver.headers["set-cookie"] = "who=me"
    for path in ("/a", "/b"):
        repo.webhooks.add(receiver.url + path, "session.*", SECRET)
    repo.session("s", create=True)
    repo.session("t", create=True)
    assert repo.webhooks.deliver().sent == 4
    repo.session("u", create=True)
    repo.webhooks.deliver()
    assert all("cookie" not in {name.lower() for name in headers} for headers, _ in receiver.got)


def test_w12_a_kind_of_a_newer_version_stops_nobody(repo):
    """W12: a webhook that wants what this version does not know gets what it knows, and writers go on."""
    repo.webhooks.add("http://127.0.0.1:1/x", ["session.*"], SECRET)
    stored = b'["session.*","dream.ended"]'
    backend.write(repo, lambda c: c.execute(update(WEBHOOK).values(kinds=stored)))
    repo.session("s", create=True)
    assert repo.webhooks.list()[0].pending == 1
