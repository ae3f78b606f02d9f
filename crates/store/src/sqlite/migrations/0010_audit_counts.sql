-- How often the same was refused within a window, and when last. NULL: once, at `at`.
ALTER TABLE audit ADD COLUMN times INTEGER;
ALTER TABLE audit ADD COLUMN last_at INTEGER;
