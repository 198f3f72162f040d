"""The verbs about what lies in a database and for how long: its keys, and erasing."""

from __future__ import annotations

from dataclasses import replace

from agentgit.auth.roles import OWNER
from agentgit.errors import InvalidInput
from agentgit.handles.session import Verbs
from agentgit.repository.erasure import erase, wiped
from agentgit.sessions import ExternalSession
from agentgit.sessions.maintenance import Erased, Progress, Rotated
from agentgit.store.maintenance import erasure
from agentgit.store.maintenance.key_rotation import Rotation


class Privacy(Verbs):
    """Methods of a repository that protect stored data from other readers and erase it."""

    def encryption_keys(self) -> dict[str, int]:
        """Count how many stored values and codes of rows each key has; those in clear are under the empty name.

        A key that has none is needed no more, once `rotate_keys` has forgotten it.
        """
        self._expect_admin("encryption_keys")
        return Rotation(self.store.database, self.store.tenant_id).counts()

    def rotate_keys(self, *, off: bool = False, progress: Progress | None = None) -> Rotated:
        """Encrypt everything with the current key that is not: in clear until now, or with an older key.

        Turns and other processes may go on meanwhile, if they were opened with the same keys, and the same current one.
        Broken off, it is run again and passes over what is done. At its end the words of messages are forgotten, the
        files of SQLite are written anew without what was in them, and the keys that nothing is encrypted with any more
        may be thrown away.

        Args:
            off: True to store everything in clear again. Nobody else may have the database open.
            progress: Told how many rows are done, and of how many.

        Raises:
            InvalidInput: The repository was opened without keys.
            NotAllowed: This is for admins.
            Corrupt: A value does not open, or is in clear where everything was encrypted.
        """
        self._expect_admin("rotate_keys")
        seal = self.store.database.seal
        if seal is None:
            raise InvalidInput(
                "There are no keys to encrypt with. Open it with them: agentgit.open(..., keyring=Keyring(...))"
            )
        rotated = Rotation(self.store.database, self.store.tenant_id).run(
            seal, off=off, user_id=self.user.id, progress=progress
        )
        return replace(rotated, problem=wiped(self.store.database))

    def delete_session(self, session: ExternalSession | str | int) -> Erased:
        """Erase a session for good: no row, no value and no word of it stays, and its trail goes with it.

        What other sessions share with it stays theirs: a message that two of them have, and what began as a copy of
        it. The snapshots of its files are let go of where their workspace can be reached; the files themselves are
        left alone. That it was erased, when and by whom stays in the trail, by its id.

        Args:
            session: The name or id of the session.

        Returns:
            What went, and what could not be reached.

        Raises:
            NotFound: There is no such session.
            NotAllowed: It is somebody else's.
            Conflict: Somebody works on it; nothing was erased.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.ensure_session("support-42")
            >>> erased = repo.delete_session("support-42")
            >>> repo.sessions(), repo.audit_verify().erased == [session.id]
            ([], True)
        """
        if session is None:
            raise InvalidInput("Name the session that is to be erased; it does not come back.")
        found = self._read(lambda c: self.lookup.session(c, session, OWNER))
        return erase(
            self,
            erasure.only(self.store, found.id),
            lambda c: self.lookup.session(c, found, OWNER),
            lambda c: erasure.erase_session(self.store, c, found.id, self.user.id),
        )
