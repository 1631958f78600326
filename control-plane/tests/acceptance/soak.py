"""Streams, kills, hangs, edits, stops and clients that leave, for half an hour: nothing may leak, hang or end in silence.

Usage: soak.py [SECONDS]. Four simulated rows of one model (one of them loads on demand) serve clients with prompts of their
own. Limits: every request ends whole or with an error that says its code; afterwards no slot is taken, nobody waits, no
process is left; and the resident memory of the control plane in the last third is at most 2 MiB above that in the second.
"""

import collections
import http.client
import json
import os
import random
import signal
import statistics
import sys
import threading
import time

from served import Served, resident_kib

CLIENTS = 8
SETTINGS = "[supervisor]\nhang_after = 6\nrestart_backoff = 0.2\nrestart_backoff_max = 1\nrestart_limit = 1000\nstable_after = 5\ndrain = 5\n"
ENGINE = ["--tokens", "60", "--decode-us-per-token", "4000", "--prefill-us-per-char", "20"]
GROWTH_KIB = 2048


def request(port, number, chance):
    """One request; how it ended. What cannot be explained begins with `!`."""
    stream, leaves = chance.random() < 0.7, chance.random() < 0.15
    body = {
        "model": "soak", "stream": stream,
        "messages": [{"role": "user", "content": f"{number} {chance.random()} " + "lorem ipsum " * chance.randrange(200)}],
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            return f"{reply.status} {json.loads(reply.read())['error']['code']}"
        if not stream:
            return "whole" if json.loads(reply.read())["choices"] else "! no choices"
        for seen, line in enumerate(reply):
            if leaves and seen > 20:
                return "left by its client"
            if line.startswith(b"data: [DONE]"):
                return "whole"
            if line.startswith(b"data:") and "error" in (chunk := json.loads(line[5:])):
                return f"ended by an error event: {chunk['error']['code']}"
        return "! cut without a word"
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return f"! {type(error).__name__}: {error}"
    finally:
        connection.close()


def clients(port, until, outcomes, lock, seed):
    chance, number = random.Random(seed), 0
    while time.monotonic() < until:
        number += 1
        outcome = request(port, f"{seed}.{number}", chance)
        with lock:
            outcomes[outcome] += 1
        time.sleep(chance.random() * 0.05)


def disturb(served, rows, until, done):
    """Does something bad, or something ordinary at a bad moment, every few seconds."""
    chance = random.Random(7)
    while time.monotonic() < until:
        time.sleep(chance.uniform(1, 4))
        row = chance.choice(rows)
        pid = served.call("GET", f"/api/servers/{row}")[1].get("pid")
        kind = chance.choice(["kill", "kill", "stop the process", "edit", "restart", "stop and start"])
        if kind in ("kill", "stop the process"):
            if not pid:
                continue
            try:
                os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            except ProcessLookupError:
                continue
        elif kind == "edit":
            served.call("PATCH", f"/api/servers/{row}", {"slots": chance.choice([2, 3, 4])})
        elif kind == "restart":
            served.call("POST", f"/api/servers/{row}/restart")
        else:
            served.call("POST", f"/api/servers/{row}/stop")
            time.sleep(chance.random())
            served.call("POST", f"/api/servers/{row}/start")
        done[kind] += 1


def left_behind(data_dir):
    """Processes that name the data directory in their command line or environment."""
    found, mark = [], str(data_dir).encode()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as line, open(f"/proc/{entry}/environ", "rb") as environment:
                if int(entry) != os.getpid() and mark in line.read() + environment.read():
                    found.append(int(entry))
        except OSError:
            continue
    return found


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 1800
    with Served(settings=SETTINGS) as served:
        rows = [served.create_row(model_name="soak", engine="sim", slots=3, extra_args=ENGINE) for _ in range(3)]
        for row in rows:
            served.ready(row)
        rows.append(served.create_row(model_name="soak", engine="sim", slots=2, extra_args=ENGINE, desired_state="on_demand", idle_seconds=2))
        outcomes, done, lock, memory = collections.Counter(), collections.Counter(), threading.Lock(), []
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=clients, args=(served.port, until, outcomes, lock, seed)) for seed in range(CLIENTS)]
        threads.append(threading.Thread(target=disturb, args=(served, rows, until, done)))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            memory.append(resident_kib(served.process.pid)[0])
            time.sleep(1)

        def rests():
            shown = served.call("GET", "/api/servers")[1]["data"]
            return all(row["slots_in_use"] == 0 for row in shown) and not served.call("GET", "/api/requests?state=active")[1]["data"]

        served.wait("no slot is taken and nobody waits", rests, 60)
        data_dir = served.data_dir
    orphans = left_behind(data_dir)
    third = len(memory) // 3
    before, after = statistics.median(memory[third : 2 * third]), statistics.median(memory[2 * third :])
    print(f"{sum(outcomes.values())} requests in {seconds} s; disturbed: {dict(done)}")
    for outcome, count in outcomes.most_common():
        print(f"  {count:7} {outcome}")
    slope = statistics.linear_regression(range(third, len(memory)), memory[third:]).slope * 3600 / 1024
    print(f"resident memory, median of the second and the last third: {before} and {after} KiB; left behind: {orphans}")
    print(f"its slope after the first third: {slope:+.2f} MiB an hour (the shorter the run, the less this says)")
    faults = [outcome for outcome in outcomes if outcome.startswith("!")]
    if faults or orphans or after > before + GROWTH_KIB:
        raise SystemExit("the soak failed")


if __name__ == "__main__":
    main()
