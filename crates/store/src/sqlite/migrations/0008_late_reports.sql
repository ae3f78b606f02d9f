-- What an agent said of an op that the server had ended without it. The op keeps its outcome.
CREATE TABLE late_reports (
    -- Without a foreign key, as ops: they go together.
    task    INTEGER NOT NULL,
    idx     INTEGER NOT NULL,
    code    INTEGER NOT NULL,
    message TEXT NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (task, idx)
) STRICT, WITHOUT ROWID;
