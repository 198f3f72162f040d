"""Tenant isolation and key scopes: no verb changes a row of another tenant or beyond the scope of its key."""

import io

import backend
import pytest
from sqlalchemy import select
from test_access import ADMIN, EDITOR, OWN, OWNER, VERBS, VIEWER, outcome, world

import agentgit
from agentgit.auth.principal import SCOPE_OF_ROLE, SCOPES
from agentgit.demo import EFFECTS, build
from agentgit.errors import NotAllowed, NotFound
from agentgit.store.sql.tables import METADATA

__all__ = ["world"]  # the fixture

TABLES = [table for table in METADATA.sorted_tables if "tenant_id" in table.c]


def rows(repo, *without):
    """Return all rows of a tenant by table; on SQLite without search texts, which are deleted for all tenants."""
    found, words = {}, {"search_text"} if backend.is_sqlite(repo) else set()
    with backend.reading(repo) as connection:
        for table in TABLES:
            columns = [column for column in table.c if column.name != "searched"]
            mine = (
                select(*columns).where(table.c.tenant_id == repo.context.store.tenant_id).order_by(*table.primary_key)
            )
            if table.name not in {*without, *words}:
                found[table.name] = [tuple(row) for row in connection.execute(mine)]
    return found


@pytest.mark.long
def test_no_verb_sees_or_changes_rows_of_another_tenant(world, tmp_path):
    repo, ada = world.repo, world.ada
    key = repo.keys.create("k", user="ada")
    ada.session("s").tag("main#1", "more")
    ada.session("gone", create=True).delete()
    repo.users.delete(repo.users.add("gone"))
    with pytest.raises(NotAllowed):
        repo.authenticate("x")
    link = ada.session("s").sharing.create_link("editor")
    session, point = world.ada.session("s"), world.ada.session("s").get_checkpoint("main#2")
    branch = world.ada.session("s").branch()
    before = rows(world.repo)
    empty = {name for name, found in before.items() if not found}
    assert empty <= {"encryption_key", "workspace_snapshot"}
    with agentgit.open(backend.url(world.repo), tenant="acme") as there:
        ada = there.as_user(there.users.add("ada"))
        for name in ("bob", "guest"):
            there.users.add(name)
        mine = ada.wrap(build(str(tmp_path / "shop.db")), "s", effects=EFFECTS)
        mine.run("order two lamps")
        ada.session("s").sharing.share("local", "owner")
        strange = {
            "operation": lambda: there.operation(world.operation),
            "resume": lambda: there.resume(world.operation),
            "resolve": lambda: there.resolve(world.call, "happened"),
            "link": lambda: there.revoke_link(world.link),
            "accept": lambda: there.accept(link.token),
            "key": lambda: there.keys.revoke(key.key),
            "session": lambda: there.session(session),
            "session id": lambda: there.session(session.id).delete(),
            "checkpoint": lambda: there.session().get_checkpoint(point),
            "template": lambda: ada.session("t", create=True, template=point),
            "id": lambda: ada.session("t", create=True, template=point.id),
            "branch": lambda: there.session(branch.external_session_id).export(io.BytesIO()),
            "diff": lambda: there.session("ada/s").diff(point.id, "main#1"),
            "rewind": lambda: ada.session("s").rewind_files(point.id),
        }
        assert {name: (outcome(ask) or [None])[0] for name, ask in strange.items()} == dict.fromkeys(
            strange, NotFound.__name__
        )
        with pytest.raises(NotAllowed, match="not valid"):
            there.authenticate(key.secret)
        for needs, ask in (one for one in VERBS.values() if one[0] != OWN):
            outcome(lambda ask=ask: ask(there, world))
            assert rows(world.repo) == before, (needs, ask)
        seen = str(rows(there)) + str(list(there.events.list())) + str(there.events.audit()) + str(there.users.list())
        assert not [word for word in ("chair", str(session.id), str(key.key.id), "olga") if word in seen]


NEEDS = {VIEWER: "read", EDITOR: "write", OWNER: "admin", ADMIN: "admin"}


@pytest.mark.parametrize("scope", SCOPES[:-1])
def test_an_api_key_cannot_exceed_its_scope(world, scope):
    assert NEEDS == {**SCOPE_OF_ROLE, ADMIN: "admin"}
    repo = world.repo
    repo.users.add("root", is_admin=True)
    world.ada.session("s").sharing.share("root", "owner")
    link = world.ada.session("s").sharing.create_link()
    handle = repo.authenticate(repo.keys.create("k", scope, user="root").secret)
    before, wrong = rows(repo, "event"), {}
    own = {
        "accept": lambda r, w: r.accept(link.token),
        "unshare": lambda r, w: r.session("ada/s").sharing.unshare("root"),
        "keys.create": lambda r, w: r.keys.create("more"),
        "keys.revoke": lambda r, w: r.keys.revoke(1),
        "ensure_session": lambda r, w: r.session("new", create=True),
        "start": lambda r, w: r.session("mine", create=True, template="ada/s@main#2"),
        "wrap": lambda r, w: w.wrap(r, "new"),
        "import_": lambda r, w: r.import_(io.BytesIO(b"{}")),
        "users.delete": lambda r, w: r.users.delete("root"),
        "import_langgraph": lambda r, w: r.import_langgraph("no.db"),
    }
    writes = {name: (EDITOR, ask) for name, ask in own.items() if not name.startswith(("keys", "users"))}
    admin = {name: (OWNER, ask) for name, ask in own.items() if name not in writes}
    for name, (needs, ask) in {**VERBS, **admin, **(writes if scope != "write" else {})}.items():
        if needs != OWN and SCOPES.index(NEEDS[needs]) > SCOPES.index(scope):
            found = outcome(lambda ask=ask: ask(handle, world))
            if found is None or found[0] != "NotAllowed":
                wrong[name] = found
    assert wrong == {}
    assert rows(repo, "event") == before
