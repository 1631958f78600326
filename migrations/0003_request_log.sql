-- What was asked of the data plane and how it went. Never what it said: no prompt, no reply.

-- One line a finished request, as JSON like the row of a server: what is asked for in lists is drawn out of it. Writing a
-- line happens far more often than reading one, so only its id in the replies has an index. Bounded by count and age.
CREATE TABLE requests (
    id         INTEGER NOT NULL PRIMARY KEY,
    at         INTEGER NOT NULL,
    event      TEXT    NOT NULL CHECK (json_valid(event)),
    request_id TEXT    GENERATED ALWAYS AS (json_extract(event, '$.request_id')) VIRTUAL,
    model      TEXT    GENERATED ALWAYS AS (json_extract(event, '$.model')) VIRTUAL,
    key_id     TEXT    GENERATED ALWAYS AS (json_extract(event, '$.key_id')) VIRTUAL,
    key_name   TEXT    GENERATED ALWAYS AS (json_extract(event, '$.key')) VIRTUAL,
    row_id     TEXT    GENERATED ALWAYS AS (json_extract(event, '$.row')) VIRTUAL,
    status     INTEGER GENERATED ALWAYS AS (json_extract(event, '$.status')) VIRTUAL,
    error      TEXT    GENERATED ALWAYS AS (json_extract(event, '$.error')) VIRTUAL,
    session    TEXT    GENERATED ALWAYS AS (json_extract(event, '$.route.session')) VIRTUAL,
    total_ms   REAL    GENERATED ALWAYS AS (json_extract(event, '$.total_ms')) VIRTUAL
) STRICT;

CREATE INDEX requests_by_request_id ON requests (request_id);

-- Sums by day (UTC), key and model. Kept much longer than the lines they come from.
CREATE TABLE usage_days (
    day               TEXT    NOT NULL CHECK (length(day) = 10),
    key_id            TEXT    NOT NULL, -- 'none' = the caller needed no key
    model             TEXT    NOT NULL, -- '' = the request named none of ours
    requests          INTEGER NOT NULL,
    errors            INTEGER NOT NULL,
    prompt_tokens     INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key_id, model)
) STRICT, WITHOUT ROWID;
