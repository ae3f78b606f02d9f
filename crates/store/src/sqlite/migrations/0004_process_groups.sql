-- The process groups that each agent has noted, as it reports them.
CREATE TABLE process_groups (
    agent       TEXT NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
    namespace   TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    groups_json TEXT NOT NULL,
    PRIMARY KEY (agent, namespace)
) STRICT, WITHOUT ROWID;
