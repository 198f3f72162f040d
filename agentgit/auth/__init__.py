"""Users and their rights, and the keys of an encrypted database. Pure values, no IO."""

from agentgit.auth.keyring import Keyring
from agentgit.auth.credentials import ApiKey, NewKey
from agentgit.auth.principal import Principal
from agentgit.auth.sharing import Member, ShareLink
from agentgit.auth.credentials import JWT
from agentgit.auth.principal import User

__all__ = ["JWT", "ApiKey", "Keyring", "Member", "NewKey", "Principal", "ShareLink", "User"]
