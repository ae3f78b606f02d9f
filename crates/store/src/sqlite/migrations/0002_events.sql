-- What happened to procs without an op, in the order in which it came here. An event has the name of its agent's journal and its
-- number there, so that one that comes twice is stored once.
CREATE TABLE events (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,
    agent          TEXT NOT NULL,
    journal        TEXT NOT NULL,
    journal_number INTEGER NOT NULL,
    at             INTEGER NOT NULL,
    received_at    INTEGER NOT NULL,
    namespace      TEXT NOT NULL,
    name           TEXT NOT NULL,
    kind           TEXT NOT NULL,
    message        TEXT NOT NULL,
    details        TEXT NOT NULL,
    report_id      INTEGER NOT NULL,
    proc_name      TEXT NOT NULL,
    UNIQUE (agent, journal, journal_number)
) STRICT;
CREATE INDEX events_received ON events (received_at);

-- Where events are sent to. `delivered` is the number of the last event that its receiver has taken.
CREATE TABLE webhooks (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    url        TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    delivered  INTEGER NOT NULL
) STRICT;
