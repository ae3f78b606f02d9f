-- Whether the token's agents may take the place of one that is connected, or was within the last day.
ALTER TABLE tokens ADD COLUMN replaces INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN revoked_at INTEGER;
