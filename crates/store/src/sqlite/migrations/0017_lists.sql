-- Columns and indexes for lists that are read page by page (keyset pagination); see store/{agent_list,proc_list}.rs.

-- The host as a text that is ordered as people order hosts: the cloud area, then the address by its bytes.
ALTER TABLE agents ADD COLUMN host_order TEXT NOT NULL DEFAULT '';
-- Whether it is connected to this run of the server. Unlike `connected`, which says how far the last run came, it is reset at
-- every start.
ALTER TABLE agents ADD COLUMN present INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN state TEXT GENERATED ALWAYS AS
    (CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN present THEN 'connected' ELSE 'away' END) VIRTUAL;
-- Negative, so that the agents that were heard last come first in an ascending index.
ALTER TABLE agents ADD COLUMN heard_rank INTEGER GENERATED ALWAYS AS (-iif(heard_at = 0, changed_at, heard_at)) VIRTUAL;

CREATE INDEX agents_in_host_order ON agents (host_order) WHERE retired_at IS NULL;
CREATE INDEX agents_by_version ON agents (version, host_order) WHERE retired_at IS NULL;
CREATE INDEX agents_by_state ON agents (state, host_order) WHERE retired_at IS NULL;
CREATE INDEX agents_by_heard ON agents (heard_rank, agent_id) WHERE retired_at IS NULL;
CREATE INDEX agents_by_business ON agents (business_id) WHERE retired_at IS NULL;
CREATE INDEX agents_present ON agents (agent_id) WHERE present;

-- The host of the agent, which never changes.
ALTER TABLE procs ADD COLUMN host_order TEXT NOT NULL DEFAULT '';
-- The parts of the status that lists are ordered and filtered by. Negative, so that the procs that were started last come first.
ALTER TABLE procs ADD COLUMN state TEXT NOT NULL DEFAULT '';
ALTER TABLE procs ADD COLUMN start_rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE procs ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;

UPDATE procs SET
    state = CASE
        WHEN status_json ->> '$.state' = 'changing'
            AND status_json ->> '$.doing' IN ('starting', 'stopping', 'restarting', 'reloading')
        THEN status_json ->> '$.doing'
        WHEN status_json ->> '$.state' IN ('running', 'stopped', 'changing', 'gave_up', 'starting', 'stopping', 'restarting',
            'reloading')
        THEN status_json ->> '$.state'
        ELSE 'unknown'
    END,
    start_rank = -coalesce(CAST(status_json ->> '$.started_at' AS INTEGER), 0),
    failed = coalesce(status_json ->> '$.state', '') = 'gave_up'
        OR coalesce(status_json ->> '$.note', '') != ''
        OR coalesce(status_json ->> '$.health', '') LIKE 'unhealthy%'
WHERE json_valid(status_json);

CREATE INDEX procs_by_host ON procs (host_order, namespace, name);
CREATE INDEX procs_by_namespace_and_host ON procs (namespace, host_order, name);
CREATE INDEX procs_by_name ON procs (namespace, name, host_order);
CREATE INDEX procs_by_state ON procs (state, host_order, namespace, name);
CREATE INDEX procs_by_start ON procs (start_rank, host_order, namespace, name);

-- Few tasks have failed ops, and people look for those.
CREATE INDEX tasks_failed ON tasks (number) WHERE failed > 0;
