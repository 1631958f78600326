-- What a key may use: requests and tokens a minute, requests at once, priority, models. JSON like the row of a server,
-- read with unknown fields refused; a field that is missing means no limit.
ALTER TABLE keys ADD COLUMN limits TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(limits));
