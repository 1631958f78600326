-- The request log in segments of up to 256 lines: a line written and removed by itself cost more of a processor than the
-- rest of a request's accounting. A line is JSON; lists are filtered by the reader, who skips segments by their times.
DROP TABLE requests;

CREATE TABLE request_segments (
    last_line INTEGER NOT NULL PRIMARY KEY, -- running number of its last line
    lines     INTEGER NOT NULL CHECK (lines >= 1),
    oldest_at INTEGER NOT NULL,             -- earliest arrival in it
    newest_at INTEGER NOT NULL,
    events    TEXT    NOT NULL              -- one JSON object a line, oldest first
) STRICT;
