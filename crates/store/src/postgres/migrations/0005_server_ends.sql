-- When servers left or were declared dead. A table of its own, because a change of `servers` would wait for all
-- servers and block them. Servers of the version before write nothing here.
CREATE TABLE server_ends (
    server   bigint PRIMARY KEY,
    ended_at bigint NOT NULL
);
