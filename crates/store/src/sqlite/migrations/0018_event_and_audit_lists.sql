-- For the totals of the lists of events and audit records, and for lists of few among many. Each entry of an index ends with the
-- number of its row, so that a list by one of these columns is read in its order.
CREATE INDEX events_by_namespace ON events (namespace);
CREATE INDEX events_by_name ON events (name);
CREATE INDEX events_by_kind ON events (kind);
CREATE INDEX audit_by_app ON audit (app);
CREATE INDEX audit_by_action ON audit (action);
CREATE INDEX audit_failed ON audit (id) WHERE code != 0;
