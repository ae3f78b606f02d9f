-- The boots in which a server has worked with this store, the latest last. The kernel's boot-time clock means something within one of
-- them only, and wall time can be set: what has to be reckoned with is noted by both.
CREATE TABLE boots (
    number INTEGER PRIMARY KEY,
    -- What the kernel calls it. One that comes again after another has a new number.
    id     TEXT NOT NULL
) STRICT;

-- When the task was accepted, and when the agent disconnected. NULL: only the wall time beside it is known.
ALTER TABLE tasks ADD COLUMN boot INTEGER;
ALTER TABLE tasks ADD COLUMN boot_ms INTEGER;
ALTER TABLE agents ADD COLUMN changed_boot INTEGER;
ALTER TABLE agents ADD COLUMN changed_boot_ms INTEGER;
