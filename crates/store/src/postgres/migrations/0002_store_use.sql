-- Whether a server has used this store. `procfleet store copy` replaces the contents of a store that no server has used; see
-- postgres/copy.rs.
CREATE TABLE store_use (
    id      integer PRIMARY KEY CHECK (id = 1),
    -- The first start of a server, by the database's clock. NULL: there was none.
    used_at bigint
);

-- Every server that starts records its boot.
INSERT INTO store_use (id, used_at) SELECT 1, CASE WHEN EXISTS (SELECT 1 FROM boots) THEN 0 END;
