-- Each restart changes `start_rank`. Without an index on it, PostgreSQL replaces the row within its page and writes none of the
-- other indexes; most of each page is kept free for that. Beside a transaction that stays open for minutes, no old version of a
-- row is removed, so the room is for several.
DROP INDEX procs_by_start;
ALTER TABLE procs SET (fillfactor = 25);

-- Many agents have procs of the same name. The planner must know it before the table is large, else it looks a proc up by
-- its name alone.
ALTER TABLE procs ALTER COLUMN namespace SET (n_distinct = 10), ALTER COLUMN name SET (n_distinct = 100);
