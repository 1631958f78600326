-- How a pool (all rows of one public name) chooses its rows. A name without a line here is on the default.
CREATE TABLE pools (
    name       TEXT    NOT NULL PRIMARY KEY CHECK (length(name) >= 1),
    mode       TEXT    NOT NULL CHECK (mode IN ('ttft', 'throughput', 'sticky', 'hybrid')),
    updated_at INTEGER NOT NULL
) STRICT;
