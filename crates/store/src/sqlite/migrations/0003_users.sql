-- People, by the tokens that were given to them (bk_token). Whom a login service knows need not be here.
CREATE TABLE users (
    name        TEXT PRIMARY KEY,
    created_at  INTEGER NOT NULL,
    disabled_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE user_tokens (
    token_hash BLOB PRIMARY KEY,
    user       TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX user_tokens_by_user ON user_tokens (user, expires_at);
