"""Names of settings that look like those of secrets, which are not stored as metadata."""

from agentgit.auth.secret_names import is_secret_name

HIDDEN = """
    api_key apikey API_KEY apiKey openai_api_key openaiApiKey OPENAI_API_KEY x-api-key X-Api-Key api_keys stripe_key key
    aws_access_key_id aws_secret_access_key private_key ssh-private-key signingKey secret client_secret secrets mySecret
    password PASSWORD db_password dbpassword Passwd passphrase pass_phrase passcode pwd DB_PWD otp jwt userJWT
    token TOKEN access_token accessToken accesstoken GITHUB_TOKEN githubTokenValue session_token token_count
    authorization Authorization Proxy-Authorization auth basic_auth bearer BearerToken
    credential credentials google_credentials cookie Set-Cookie session_cookies
    auth_header X-Auth-Header authHeader auth_user db_pass DB_PASS dbPass pass pass_value
    openaikey anthropickey sshkey SSHKey OPENAIKEY openaikey_value sshkeys signing_keys encryption_keys encryptionKeys
    access_tokens accessTokens accesstokens refresh_tokens auth_tokens
"""
STORED = """
    user_id thread_id run_id assistant_id graph_id langgraph_auth_user_id model model_name temperature max_tokens tokens
    prompt_tokens tokenizer tenant email language author authority keyboard keys monkey key_count hotkeys session_id
    notebook compass passenger secr _ 7 ключ langgraph_auth_user langgraph_auth_permissions authors passing bypass
    monkeys hotkey hotkey_count turkey donkey hockey_team whiskey keystroke keyword oauthor completion_tokens
"""


def test_names_of_secrets_are_hidden_and_no_others():
    assert [name for name in HIDDEN.split() if not is_secret_name(name)] == []
    assert [name for name in STORED.split() if is_secret_name(name)] == []
