CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE procs (
    namespace     TEXT NOT NULL,
    name          TEXT NOT NULL,
    record        TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- state: 0 accepted, 1 begun, 2 done
CREATE TABLE ops (
    op          TEXT NOT NULL UNIQUE,
    namespace   TEXT NOT NULL,
    name        TEXT NOT NULL,
    kind        INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    request     TEXT NOT NULL,
    outcome     TEXT,
    confirmed   INTEGER NOT NULL DEFAULT 0,
    accepted_at INTEGER NOT NULL
);
CREATE INDEX ops_unconfirmed ON ops (confirmed) WHERE confirmed = 0;
