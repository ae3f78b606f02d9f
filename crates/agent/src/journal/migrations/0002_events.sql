-- What the server has not confirmed. Numbers are never used again, also after all rows are gone.
CREATE TABLE events (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    kind      TEXT NOT NULL,
    message   TEXT NOT NULL,
    details   TEXT NOT NULL,
    report_id INTEGER NOT NULL,
    proc_name TEXT NOT NULL
);
-- No other journal has this name, so that the server can tell an event that comes twice from a new one.
INSERT INTO meta (key, value) VALUES ('journal', lower(hex(randomblob(16))));
