-- When a start of the server found that the end of the one before it had cut off the agent's session.
ALTER TABLE agents ADD COLUMN cut_off_at INTEGER NOT NULL DEFAULT 0;
