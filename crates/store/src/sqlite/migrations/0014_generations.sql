-- One row for each backup that was restored; see store/generation.rs.
CREATE TABLE generations (
    number        INTEGER PRIMARY KEY,
    -- The newest event number in the backup, and where the numbers go on. Those between were given out in the time that is lost.
    events_before INTEGER NOT NULL,
    events_from   INTEGER NOT NULL,
    -- NULL until the server has done all that follows from it.
    began_at      INTEGER
) STRICT;
