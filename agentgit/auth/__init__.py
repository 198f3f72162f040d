"""Users and their rights, and the keys of an encrypted database. Pure values, no IO."""

from agentgit.auth.credentials import ApiKey, NewKey
from agentgit.auth.keyring import Keyring
from agentgit.auth.principal import Principal, User
from agentgit.auth.sharing import Member, ShareLink

__all__ = ["ApiKey", "Keyring", "Member", "NewKey", "Principal", "ShareLink", "User"]
