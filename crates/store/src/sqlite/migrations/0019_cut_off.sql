-- When a start of the server found that the end of the one before it had cut off the agent's session.
ALTER TABLE agents ADD COLUMN cut_off_at INTEGER NOT NULL DEFAULT 0;
-- The times of earlier starts are not known. Agents that were cut off then count as cut off now.
UPDATE agents SET cut_off_at = unixepoch() * 1000 WHERE connected;
