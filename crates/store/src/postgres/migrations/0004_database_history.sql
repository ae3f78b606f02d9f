-- The history of the database when a server last looked: cluster, timeline, database; see postgres/history.rs.
-- NULL: no server has looked. Servers of the version before do not know this table.
CREATE TABLE database_history (
    id      integer PRIMARY KEY CHECK (id = 1),
    history text COLLATE "C"
);

INSERT INTO database_history (id, history) VALUES (1, NULL);
