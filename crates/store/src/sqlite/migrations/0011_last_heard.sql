-- When the agent was last heard before its session ended, in milliseconds since 1970, UTC. 0: nobody noted it.
ALTER TABLE agents ADD COLUMN heard_at INTEGER NOT NULL DEFAULT 0;
