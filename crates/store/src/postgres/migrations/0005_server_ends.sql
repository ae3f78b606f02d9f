-- When the server left or was declared dead. NULL: the server is up, or a server of the version before wrote its
-- end.
ALTER TABLE servers ADD COLUMN ended_at bigint;
