-- The process groups of each namespace that has some: JSON.
CREATE TABLE groups (namespace TEXT PRIMARY KEY, groups TEXT NOT NULL);
