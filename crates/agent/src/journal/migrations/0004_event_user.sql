-- The OS account of the proc's spec when the event was written; empty for those of earlier versions.
ALTER TABLE events ADD COLUMN user TEXT NOT NULL DEFAULT '';
