-- The OS account of the proc when the event happened. Empty: not known, as for those of earlier versions.
ALTER TABLE events ADD COLUMN account TEXT NOT NULL DEFAULT '';
