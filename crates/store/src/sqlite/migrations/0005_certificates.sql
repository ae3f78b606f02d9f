-- The certificates that an agent may come with: the one that it uses, and those that it was given beside it.
CREATE TABLE certificates (
    agent      TEXT NOT NULL REFERENCES agents (agent_id) ON DELETE CASCADE,
    sha256     BLOB NOT NULL,
    -- The SHA-256 of the CA's certificate; NULL: the CA from before there could be two.
    ca_sha256  BLOB,
    -- NULL: as the certificate itself says.
    issued_at  INTEGER,
    expires_at INTEGER,
    PRIMARY KEY (agent, sha256)
) STRICT, WITHOUT ROWID;

INSERT INTO certificates (agent, sha256)
SELECT agent_id, certificate_sha256 FROM agents WHERE retired_at IS NULL;

-- The CA and the end of the certificate that it uses.
ALTER TABLE agents ADD COLUMN certificate_ca BLOB;
ALTER TABLE agents ADD COLUMN certificate_expires_at INTEGER;

ALTER TABLE agents ADD COLUMN revoked_at INTEGER;
ALTER TABLE agents ADD COLUMN revoked_why TEXT NOT NULL DEFAULT '';
