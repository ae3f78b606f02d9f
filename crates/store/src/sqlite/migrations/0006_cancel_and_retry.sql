-- When somebody said that nobody waits for the task any more.
ALTER TABLE tasks ADD COLUMN cancelled_at INTEGER;
-- The task whose failed ops this one tries again, as people write its id.
ALTER TABLE tasks ADD COLUMN retry_of TEXT;
