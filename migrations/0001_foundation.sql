-- Server rows, what is observed of them, and API keys.
-- Times are Unix milliseconds. Ids are UUID version 7 as text, so ordering by id is ordering by age.

-- The desired half: written by the API only, each write raises the generation.
CREATE TABLE servers (
    id            TEXT    NOT NULL PRIMARY KEY CHECK (length(id) = 36),
    generation    INTEGER NOT NULL CHECK (generation >= 1),
    spec          TEXT    NOT NULL CHECK (json_valid(spec)),
    model_name    TEXT    NOT NULL GENERATED ALWAYS AS (json_extract(spec, '$.model_name')) VIRTUAL,
    desired_state TEXT    NOT NULL GENERATED ALWAYS AS (json_extract(spec, '$.desired_state')) VIRTUAL
                          CHECK (desired_state IN ('running', 'stopped', 'on_demand')),
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX servers_by_model_name ON servers (model_name);

-- The observed half: written by the supervisor only. A table of its own, so that no status write can
-- touch what the operator wants.
CREATE TABLE server_status (
    server_id    TEXT    NOT NULL PRIMARY KEY REFERENCES servers (id) ON DELETE CASCADE,
    generation   INTEGER NOT NULL CHECK (generation >= 1),
    state        TEXT    NOT NULL
                         CHECK (state IN ('stopped', 'sleeping', 'downloading', 'starting', 'ready', 'draining', 'failed')),
    state_reason TEXT,
    pid          INTEGER,
    endpoint     TEXT,
    restarts     INTEGER NOT NULL CHECK (restarts >= 0),
    resolved     TEXT    CHECK (resolved IS NULL OR json_valid(resolved)),
    build        TEXT,
    observed_at  INTEGER NOT NULL
) STRICT;

-- Keys are 256 random bits, so a plain SHA-256 is enough to store them safely.
CREATE TABLE keys (
    id           TEXT    NOT NULL PRIMARY KEY CHECK (length(id) = 36),
    name         TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    hash         BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32),
    prefix       TEXT    NOT NULL,
    inference    INTEGER NOT NULL CHECK (inference IN (0, 1)),
    admin        INTEGER NOT NULL CHECK (admin IN (0, 1)),
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at   INTEGER,
    CHECK (inference + admin >= 1)
) STRICT;
