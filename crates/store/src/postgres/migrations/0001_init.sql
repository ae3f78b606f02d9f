-- Times are milliseconds since 1970, UTC, as in the embedded store. A migration that was released is never edited: add the next
-- one. Texts that are compared or ordered have the collation "C": the order of bytes, as in the embedded store.

-- One row for each run of a server; see postgres/membership.rs. A row that is not 'up' never is again. Every change locks the row of
-- its server and checks that it is up.
CREATE TABLE servers (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL,
    -- The URL of its link. Empty: none that others can use.
    advertise  text NOT NULL,
    version    text NOT NULL,
    -- Its process on its machine.
    process    text NOT NULL,
    state      text COLLATE "C" NOT NULL CHECK (state IN ('up', 'left', 'fenced')),
    started_at bigint NOT NULL
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

CREATE TABLE beats (
    server   bigint PRIMARY KEY REFERENCES servers (id) ON DELETE CASCADE,
    beat     bigint NOT NULL,
    agents   bigint NOT NULL DEFAULT 0,
    open_ops bigint NOT NULL DEFAULT 0,
    polling  boolean NOT NULL DEFAULT true,
    -- Whether an operator wants it to be without agents. Here, because every change of a busy server locks its row of `servers`.
    drains   boolean NOT NULL DEFAULT false
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

-- Work that one server does for all. A lease is free when its server is not up.
CREATE TABLE leases (
    name   text COLLATE "C" PRIMARY KEY,
    term   bigint NOT NULL,
    server bigint NOT NULL
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

INSERT INTO leases (name, term, server)
VALUES ('unheld', 0, 0), ('webhooks', 0, 0), ('retention', 0, 0), ('succession', 0, 0), ('clock', 0, 0);

-- The store's time is the database's clock plus this shift, which makes up for jumps of that clock.
CREATE TABLE store_clock (
    id       integer PRIMARY KEY CHECK (id = 1),
    shift_ms bigint NOT NULL
) WITH (fillfactor = 25);

INSERT INTO store_clock (id, shift_ms) VALUES (1, 0);

CREATE TABLE apps (
    code        text COLLATE "C" PRIMARY KEY,
    secret_hash bytea NOT NULL,
    -- Whether it may name the user that it acts for.
    trusted     boolean NOT NULL,
    created_at  bigint NOT NULL,
    disabled_at bigint
);

-- What an app may use. Without a row of a dimension it may use nothing of it; * is everything.
CREATE TABLE grants (
    app       text COLLATE "C" NOT NULL REFERENCES apps (code) ON DELETE CASCADE,
    dimension text COLLATE "C" NOT NULL,
    value     text COLLATE "C" NOT NULL,
    PRIMARY KEY (app, dimension, value)
);

CREATE TABLE businesses (
    id   bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

INSERT INTO businesses (id, name) VALUES (1, 'default');

CREATE TABLE business_sets (
    id   bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE business_set_members (
    set_id      bigint NOT NULL REFERENCES business_sets (id) ON DELETE CASCADE,
    business_id bigint NOT NULL REFERENCES businesses (id),
    PRIMARY KEY (set_id, business_id)
);

CREATE TABLE users (
    name        text COLLATE "C" PRIMARY KEY,
    created_at  bigint NOT NULL,
    disabled_at bigint
);

CREATE TABLE user_tokens (
    token_hash bytea PRIMARY KEY,
    user_name  text COLLATE "C" NOT NULL REFERENCES users (name) ON DELETE CASCADE,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
);

CREATE INDEX user_tokens_by_user ON user_tokens (user_name, expires_at);

CREATE TABLE tokens (
    id          text COLLATE "C" PRIMARY KEY,
    secret_hash bytea NOT NULL,
    cloud_id    bigint NOT NULL,
    business_id bigint NOT NULL REFERENCES businesses (id),
    created_at  bigint NOT NULL,
    expires_at  bigint NOT NULL,
    uses_left   bigint NOT NULL CHECK (uses_left >= 0),
    -- Whether its agents may take the place of one that is connected, or was within the last day.
    replaces    boolean NOT NULL,
    revoked_at  bigint
);

-- Identity of agents: rarely written. What changes with every connect is in `sessions`.
CREATE TABLE agents (
    agent_id               text COLLATE "C" PRIMARY KEY,
    cloud_id               bigint NOT NULL,
    ip                     text COLLATE "C" NOT NULL,
    -- The host as a text that is ordered as people order hosts.
    host_order             text COLLATE "C" NOT NULL,
    business_id            bigint NOT NULL REFERENCES businesses (id),
    certificate_sha256     bytea NOT NULL,
    certificate_ca         bytea,
    certificate_expires_at bigint,
    version                text COLLATE "C" NOT NULL,
    -- What the host is: JSON, or null while the agent has not connected.
    facts                  text NOT NULL DEFAULT 'null',
    -- A JSON object of texts.
    labels                 text NOT NULL DEFAULT '{}',
    enrolled_at            bigint NOT NULL,
    retired_at             bigint,
    revoked_at             bigint,
    revoked_why            text NOT NULL DEFAULT ''
) WITH (fillfactor = 90);

-- A host has one agent at a time.
CREATE UNIQUE INDEX agents_by_host ON agents (cloud_id, ip) WHERE retired_at IS NULL;
CREATE INDEX agents_in_host_order ON agents (host_order) WHERE retired_at IS NULL;
CREATE INDEX agents_by_business ON agents (business_id) WHERE retired_at IS NULL;
CREATE INDEX agents_by_ca ON agents (certificate_ca) WHERE retired_at IS NULL AND revoked_at IS NULL;

-- The last session of each agent; one row for each row of `agents`. No index besides the key: every update stays on its page (HOT).
CREATE TABLE sessions (
    agent_id        text COLLATE "C" PRIMARY KEY REFERENCES agents (agent_id) ON DELETE CASCADE,
    -- The number of the session: the fencing token.
    epoch           bigint NOT NULL,
    -- The server of that session, which also decides about ops while the agent is away. 0: none yet.
    holder          bigint NOT NULL DEFAULT 0,
    -- Whether the session has not ended, as far as its server came.
    connected       boolean NOT NULL,
    -- When it last connected or disconnected.
    changed_at      bigint NOT NULL,
    changed_boot    bigint,
    changed_boot_ms bigint,
    -- When it was last heard; 0: unknown.
    heard_at        bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE TABLE certificates (
    agent      text COLLATE "C" NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
    sha256     bytea NOT NULL,
    ca_sha256  bytea,
    issued_at  bigint,
    expires_at bigint,
    PRIMARY KEY (agent, sha256)
);

-- The CA that holds, by the SHA-256 of its certificate, and its successor.
CREATE TABLE ca (
    id      integer PRIMARY KEY CHECK (id = 1),
    current bytea NOT NULL,
    next    bytea
);

-- The CAs of the row above with their private keys, which are sealed under a key that is not in the database (ADR 24).
CREATE TABLE ca_keys (
    sha256      bytea PRIMARY KEY,
    certificate bytea NOT NULL,
    sealed_key  bytea NOT NULL
);

-- The seal keys that each server can open, by their ids; see postgres/ca.rs.
CREATE TABLE server_seal_keys (
    server text COLLATE "C" PRIMARY KEY,
    keys   text[] NOT NULL,
    -- The row of `servers` that has entered them.
    run    bigint NOT NULL
);

-- A random number that is the same in all copies of this database: a sealed key can be opened in no other store.
CREATE TABLE identity (
    id    integer PRIMARY KEY CHECK (id = 1),
    store bytea NOT NULL
);

INSERT INTO identity (id, store) VALUES (1, uuid_send(gen_random_uuid()));

-- A task's number begins with its day (day * 2^38), so that the partition of its ops is known from the number alone.
CREATE SEQUENCE task_sequence;

CREATE TABLE tasks (
    number        bigint PRIMARY KEY,
    stamp         bigint NOT NULL,
    created_at    bigint NOT NULL,
    app           text COLLATE "C" NOT NULL,
    username      text NOT NULL,
    summary       text NOT NULL,
    requests_json text NOT NULL,
    total         bigint NOT NULL,
    retry_of      text,
    boot          bigint,
    boot_ms       bigint,
    cancelled_at  bigint,
    -- Changes once. The counts, which change with every batch of outcomes, are in `task_counts`.
    is_open       boolean NOT NULL
) WITH (fillfactor = 95);

CREATE INDEX tasks_open ON tasks (number) WHERE is_open;
CREATE INDEX tasks_ended ON tasks (created_at) WHERE NOT is_open;
CREATE INDEX tasks_by_app ON tasks (app, number);

CREATE TABLE task_counts (
    number    bigint PRIMARY KEY REFERENCES tasks (number) ON DELETE CASCADE,
    open      bigint NOT NULL CHECK (open >= 0),
    succeeded bigint NOT NULL,
    failed    bigint NOT NULL
) WITH (fillfactor = 50);

-- Insert only: an outcome is a row of its own, so that neither table has dead rows. Both are dropped by the day.
CREATE TABLE ops (
    task        bigint NOT NULL,
    idx         bigint NOT NULL,
    request     bigint NOT NULL,
    cloud_id    bigint,
    ip          text COLLATE "C",
    supplier_id bigint,
    agent_named text COLLATE "C",
    agent       text COLLATE "C",
    start_by    bigint NOT NULL,
    deadline    bigint NOT NULL,
    -- The agent's last session when the op was accepted, and whether it had not ended: later servers conclude from them whether
    -- the op may have been sent.
    epoch       bigint,
    connected   boolean,
    PRIMARY KEY (task, idx)
) PARTITION BY RANGE (task);

-- For the open ops of an agent that connects.
CREATE INDEX ops_by_agent ON ops (agent, task);

CREATE TABLE outcomes (
    task     bigint NOT NULL,
    idx      bigint NOT NULL,
    code     bigint NOT NULL,
    message  text NOT NULL,
    content  text NOT NULL,
    ended_at bigint NOT NULL,
    PRIMARY KEY (task, idx)
) PARTITION BY RANGE (task);

-- What an agent said of an op that the server had ended without it. The op keeps its outcome.
CREATE TABLE late_reports (
    task    bigint NOT NULL,
    idx     bigint NOT NULL,
    code    bigint NOT NULL,
    message text NOT NULL,
    at      bigint NOT NULL,
    PRIMARY KEY (task, idx)
) PARTITION BY RANGE (task);

-- The keys come before their tasks in the same transaction, so there is no foreign key.
CREATE TABLE idempotency_keys (
    app          text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    request_hash bytea NOT NULL,
    task         bigint NOT NULL,
    stamp        bigint NOT NULL,
    created_at   bigint NOT NULL,
    boot         bigint,
    boot_ms      bigint,
    PRIMARY KEY (app, key)
);

CREATE INDEX idempotency_keys_by_task ON idempotency_keys (task);

CREATE TABLE request_ids (
    app          text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    request_hash bytea NOT NULL,
    task         bigint NOT NULL,
    stamp        bigint NOT NULL,
    created_at   bigint NOT NULL,
    boot         bigint,
    boot_ms      bigint,
    PRIMARY KEY (app, key, request_hash)
);

CREATE INDEX request_ids_by_task ON request_ids (task);

CREATE TABLE procs (
    agent       text COLLATE "C" NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
    namespace   text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    revision    bigint NOT NULL,
    status_json text NOT NULL,
    host_order  text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL,
    -- Negative, so that the procs that were started last come first.
    start_rank  bigint NOT NULL,
    failed      boolean NOT NULL,
    PRIMARY KEY (agent, namespace, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX procs_by_host ON procs (host_order, namespace, name);
CREATE INDEX procs_by_namespace_and_host ON procs (namespace, host_order, name);
CREATE INDEX procs_by_name ON procs (namespace, name, host_order);
CREATE INDEX procs_by_namespace ON procs (namespace, agent, name);
CREATE INDEX procs_by_state ON procs (state, host_order, namespace, name);
CREATE INDEX procs_by_start ON procs (start_rank, host_order, namespace, name);

CREATE TABLE process_groups (
    agent       text COLLATE "C" NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
    namespace   text COLLATE "C" NOT NULL,
    revision    bigint NOT NULL,
    groups_json text NOT NULL,
    PRIMARY KEY (agent, namespace)
);

CREATE INDEX process_groups_by_namespace ON process_groups (namespace);

-- Events are numbered without gaps and in the order of their commits: the counter's row stays locked until the commit.
CREATE TABLE event_counter (
    id   integer PRIMARY KEY CHECK (id = 1),
    last bigint NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);

INSERT INTO event_counter (id, last) VALUES (1, 0);

CREATE TABLE events (
    number         bigint PRIMARY KEY,
    agent          text COLLATE "C" NOT NULL,
    journal        text COLLATE "C" NOT NULL,
    journal_number bigint NOT NULL,
    at             bigint NOT NULL,
    received_at    bigint NOT NULL,
    namespace      text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    kind           text COLLATE "C" NOT NULL,
    message        text NOT NULL,
    details        text NOT NULL,
    report_id      bigint NOT NULL,
    proc_name      text NOT NULL,
    account        text NOT NULL,
    UNIQUE (agent, journal, journal_number)
);

CREATE INDEX events_received ON events (received_at);

CREATE TABLE webhooks (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    url        text COLLATE "C" NOT NULL UNIQUE,
    created_at bigint NOT NULL,
    -- The number of the last event that its receiver has taken.
    delivered  bigint NOT NULL
);

-- One row for each backup that was restored.
CREATE TABLE generations (
    number        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    events_before bigint NOT NULL,
    events_from   bigint NOT NULL,
    began_at      bigint
);

CREATE TABLE boots (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id     text NOT NULL
);

CREATE TABLE audit (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       bigint NOT NULL,
    app      text COLLATE "C" NOT NULL,
    username text NOT NULL,
    origin   text NOT NULL,
    action   text COLLATE "C" NOT NULL,
    subject  text NOT NULL,
    code     bigint NOT NULL,
    detail   text NOT NULL,
    -- How often the same was refused within a window, and when last. NULL: once, at `at`.
    times    bigint,
    last_at  bigint
);

CREATE INDEX audit_by_time ON audit (at);
