-- What operators say of an agent's host: a JSON object of texts.
ALTER TABLE agents ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
