-- Times are milliseconds since 1970, UTC. A migration that was released is never edited: add the next one.

CREATE TABLE apps (
    code        TEXT PRIMARY KEY,
    secret_hash BLOB NOT NULL,
    -- Whether it may name the user that it acts for.
    trusted     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    disabled_at INTEGER
) STRICT, WITHOUT ROWID;

-- What an app may use. Without a row of a dimension it may use nothing of it.
CREATE TABLE grants (
    app       TEXT NOT NULL REFERENCES apps (code) ON DELETE CASCADE,
    -- business, namespace, op or account.
    dimension TEXT NOT NULL,
    -- * is everything.
    value     TEXT NOT NULL,
    PRIMARY KEY (app, dimension, value)
) STRICT, WITHOUT ROWID;

CREATE TABLE businesses (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

INSERT INTO businesses (id, name) VALUES (1, 'default');

CREATE TABLE business_sets (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE business_set_members (
    set_id      INTEGER NOT NULL REFERENCES business_sets (id) ON DELETE CASCADE,
    business_id INTEGER NOT NULL REFERENCES businesses (id),
    PRIMARY KEY (set_id, business_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    id          TEXT PRIMARY KEY,
    secret_hash BLOB NOT NULL,
    cloud_id    INTEGER NOT NULL,
    business_id INTEGER NOT NULL REFERENCES businesses (id),
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    uses_left   INTEGER NOT NULL CHECK (uses_left >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE agents (
    agent_id           TEXT PRIMARY KEY,
    cloud_id           INTEGER NOT NULL,
    ip                 TEXT NOT NULL,
    business_id        INTEGER NOT NULL REFERENCES businesses (id),
    certificate_sha256 BLOB NOT NULL,
    version            TEXT NOT NULL,
    -- What the host is: JSON, or null while the agent has not connected.
    facts              TEXT NOT NULL DEFAULT 'null',
    enrolled_at        INTEGER NOT NULL,
    retired_at         INTEGER,
    connected          INTEGER NOT NULL,
    -- When it last connected or disconnected.
    changed_at         INTEGER NOT NULL,
    epoch              INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A host has one agent at a time. Without rowids the index holds the agent id too, so resolving a host reads
-- nothing else.
CREATE UNIQUE INDEX agents_by_host ON agents (cloud_id, ip) WHERE retired_at IS NULL;

CREATE TABLE tasks (
    -- AUTOINCREMENT: a number is never given out again, not even after the newest task was deleted.
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    stamp         INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    app           TEXT NOT NULL,
    username      TEXT NOT NULL,
    summary       TEXT NOT NULL,
    requests_json TEXT NOT NULL,
    total         INTEGER NOT NULL,
    open          INTEGER NOT NULL CHECK (open >= 0),
    succeeded     INTEGER NOT NULL,
    failed        INTEGER NOT NULL
) STRICT;

-- Open ops are found through their tasks. An index on the open ops themselves would cost one more entry for
-- every op that comes and goes; this one costs an entry for a task.
CREATE INDEX tasks_open ON tasks (number) WHERE open > 0;

-- By age, for deleting. Not by number: a clock that was wrong for a while would hide what came after.
CREATE INDEX tasks_ended ON tasks (created_at) WHERE open = 0;

-- What callers gave their requests to know them by; see store/submissions.rs.
CREATE TABLE submissions (
    app          TEXT NOT NULL,
    -- 0: an idempotency key; 1: a request id.
    kind         INTEGER NOT NULL,
    key          TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    task         INTEGER NOT NULL REFERENCES tasks (number) ON DELETE CASCADE,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (app, kind, key, request_hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX submissions_by_task ON submissions (task);

-- Tasks that are gone while some of their ops are still to be deleted.
CREATE TABLE deleted_tasks (
    number INTEGER PRIMARY KEY
) STRICT;

-- An app lists its own.
CREATE INDEX tasks_by_app ON tasks (app, number);

CREATE TABLE ops (
    -- Without a foreign key: a large task goes first, and its ops follow in slices.
    task        INTEGER NOT NULL,
    idx         INTEGER NOT NULL,
    -- The place of its request in the task's requests_json.
    request     INTEGER NOT NULL,
    -- The target as the caller named it: a host (cloud_id, ip, and perhaps a supplier), or else an agent.
    cloud_id    INTEGER,
    ip          TEXT,
    supplier_id INTEGER,
    agent_named TEXT,
    -- The agent that it was resolved to; NULL where there is none.
    agent       TEXT,
    start_by    INTEGER NOT NULL,
    deadline    INTEGER NOT NULL,
    -- NULL, as all below it, while the op is open.
    code        INTEGER,
    message     TEXT,
    content     TEXT,
    ended_at    INTEGER,
    PRIMARY KEY (task, idx)
) STRICT, WITHOUT ROWID;

CREATE TABLE procs (
    agent       TEXT NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
    namespace   TEXT NOT NULL,
    name        TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    status_json TEXT NOT NULL,
    PRIMARY KEY (agent, namespace, name)
) STRICT, WITHOUT ROWID;

-- For the pages of a namespace. A new status does not touch it.
CREATE INDEX procs_by_namespace ON procs (namespace, agent, name);

CREATE TABLE audit (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    app      TEXT NOT NULL,
    username TEXT NOT NULL,
    origin   TEXT NOT NULL,
    action   TEXT NOT NULL,
    subject  TEXT NOT NULL,
    code     INTEGER NOT NULL,
    detail   TEXT NOT NULL
) STRICT;

CREATE INDEX audit_by_time ON audit (at);

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
