CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);

CREATE TABLE procs (
    namespace     TEXT NOT NULL,
    name          TEXT NOT NULL,
    record        TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
);


CREATE TABLE ops (
    op          TEXT NOT NULL UNIQUE,
    namespace   TEXT NOT NULL,
    name        TEXT NOT NULL,
    kind        INTEGER NOT NULL,
    state       INTEGER NOT NULL,
    request     TEXT NOT NULL,
    outcome     TEXT,
    confirmed   INTEGER NOT NULL DEFAULT 0,
    accepted_at INTEGER NOT NULL
);
CREATE INDEX ops_unconfirmed ON ops (confirmed) WHERE confirmed = 0;
CREATE TABLE events (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    kind      TEXT NOT NULL,
    message   TEXT NOT NULL,
    details   TEXT NOT NULL,
    report_id INTEGER NOT NULL,
    proc_name TEXT NOT NULL
);
CREATE TABLE groups (namespace TEXT PRIMARY KEY, groups TEXT NOT NULL);
PRAGMA user_version = 3;
INSERT INTO meta VALUES ('boot_id','one');
INSERT INTO meta VALUES ('journal','000102030405060708090a0b0c0d0e0f');
INSERT INTO procs VALUES ('demo','hello','{"spec":{"identity":{"proc_name":"hello.sh","setup_path":"/srv/hello","pid_path":"/srv/hello/hello.pid","config_path":"","log_path":"","user":"root","index_key":""},"control":{"start_cmd":"./hello.sh start","stop_cmd":"./hello.sh stop","restart_cmd":"","reload_cmd":"./hello.sh reload","kill_cmd":"","version_cmd":"","health_cmd":""},"resource":{"cpu":null,"mem":null,"fd":null},"policy":{"kind":"Resident","start_check":{"secs":2,"nanos":0},"stop_check":{"secs":5,"nanos":0},"start_retries":4,"start_interval":{"secs":10,"nanos":0},"op_timeout":{"secs":60,"nanos":0}},"labels":{},"report_id":null,"configmap":[]},"hosting":"Hosted","process":{"pid":7,"start_ticks":11,"found":"PidFile"},"streak":{"restarts":2,"last_start":3162038},"rest":"Idle"}',1794779212);
INSERT INTO ops (op,namespace,name,kind,state,request,outcome,confirmed,accepted_at) VALUES ('20190813145456-8-0','demo','hello',0,1,'{"op":"20190813145456-8-0","kind":"start","spec":{"identity":{"proc_name":"hello.sh","setup_path":"/srv/hello","pid_path":"/srv/hello/hello.pid","config_path":"","log_path":"","user":"root","index_key":""},"control":{"start_cmd":"./hello.sh start","stop_cmd":"./hello.sh stop","restart_cmd":"","reload_cmd":"./hello.sh reload","kill_cmd":"","version_cmd":"","health_cmd":""},"resource":{"cpu":null,"mem":null,"fd":null},"policy":{"kind":"Resident","start_check":{"secs":2,"nanos":0},"stop_check":{"secs":5,"nanos":0},"start_retries":4,"start_interval":{"secs":10,"nanos":0},"op_timeout":{"secs":60,"nanos":0}},"labels":{},"report_id":null,"configmap":[]},"start_by":3222031}',NULL,0,1794779212);
INSERT INTO ops (op,namespace,name,kind,state,request,outcome,confirmed,accepted_at) VALUES ('20190813145456-8-1','demo','hello',0,0,'{"op":"20190813145456-8-1","kind":"start","spec":{"identity":{"proc_name":"hello.sh","setup_path":"/srv/hello","pid_path":"/srv/hello/hello.pid","config_path":"","log_path":"","user":"root","index_key":""},"control":{"start_cmd":"./hello.sh start","stop_cmd":"./hello.sh stop","restart_cmd":"","reload_cmd":"./hello.sh reload","kill_cmd":"","version_cmd":"","health_cmd":""},"resource":{"cpu":null,"mem":null,"fd":null},"policy":{"kind":"Resident","start_check":{"secs":2,"nanos":0},"stop_check":{"secs":5,"nanos":0},"start_retries":4,"start_interval":{"secs":10,"nanos":0},"op_timeout":{"secs":60,"nanos":0}},"labels":{},"report_id":null,"configmap":[]},"start_by":3222031}',NULL,0,1794779212);
INSERT INTO ops (op,namespace,name,kind,state,request,outcome,confirmed,accepted_at) VALUES ('20190813145456-8-2','demo','hello',0,2,'{"op":"20190813145456-8-2","kind":"start","spec":{"identity":{"proc_name":"hello.sh","setup_path":"/srv/hello","pid_path":"/srv/hello/hello.pid","config_path":"","log_path":"","user":"root","index_key":""},"control":{"start_cmd":"./hello.sh start","stop_cmd":"./hello.sh stop","restart_cmd":"","reload_cmd":"./hello.sh reload","kill_cmd":"","version_cmd":"","health_cmd":""},"resource":{"cpu":null,"mem":null,"fd":null},"policy":{"kind":"Resident","start_check":{"secs":2,"nanos":0},"stop_check":{"secs":5,"nanos":0},"start_retries":4,"start_interval":{"secs":10,"nanos":0},"op_timeout":{"secs":60,"nanos":0}},"labels":{},"report_id":null,"configmap":[]},"start_by":3222031}','{"code":0,"message":"success","content":{"control":{"hosted":true,"proc_name":"hello.sh","setup_path":"/srv/hello"}}}',0,1794779212);
INSERT INTO events VALUES (5,1794779212,'demo','hello','gave_up','no more','{}',7,'hello.sh');
INSERT INTO groups VALUES ('demo','[{"id":"pool","cpu_pool_limit":20.5,"mem_pool_limit":null,"cpu_pool_weight":"usage","mem_pool_weight":"limit"}]');
