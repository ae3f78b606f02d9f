-- The CA that holds, by the SHA-256 of its certificate, and its successor. Key files follow this row.
CREATE TABLE ca (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    current BLOB NOT NULL,
    next BLOB
);
