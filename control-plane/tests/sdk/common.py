"""What the checks share: one tool, by its schema, and what the server says of its slots."""

import json
import time
import urllib.request

SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string", "enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
QUESTION = "How is the weather in Oslo?"
RESULT = "Snow, -3 degrees."
# The simulated engine cuts the connection before its third token.
BROKEN = "[[sim:abort@3]] How is the weather in Oslo?"


def check_input(given: dict) -> None:
    assert given["town"] in ("Oslo", "Rome") and isinstance(given["days"], int), given


def slots_in_use(base: str, key: str) -> int:
    request = urllib.request.Request(f"{base}/api/servers", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return sum(row["slots_in_use"] for row in json.load(reply)["data"])


def wait_for_slots(base: str, key: str, wanted: int, seconds: float = 2) -> None:
    """Waits until so many slots are in use; a client that left frees its slot within a second, and a test waits for two."""
    end = time.monotonic() + seconds
    while (used := slots_in_use(base, key)) != wanted:
        assert time.monotonic() < end, f"{used} slots are in use, not {wanted}"
        time.sleep(0.02)
