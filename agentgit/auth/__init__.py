"""Users and their rights, and the keys of an encrypted database. Pure values, no IO."""

from agentgit.auth.credentials import ApiKey, Member, NewKey, ShareLink
from agentgit.auth.keyring import Keyring
from agentgit.auth.principal import Principal, User

__all__ = ["ApiKey", "Keyring", "Member", "NewKey", "Principal", "ShareLink", "User"]
