"""Time from the start of the process to the first token, everything cached: `lifeboat up` against the engine alone.

Usage: cached_start.py [ROUNDS]. The engine alone is started with the very arguments and environment of the one
that `lifeboat up` starts. Limit: at most 0.5 s later.
"""

import http.client
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from served import KEPT, Served, Stream, arguments_of, engine_key, environment_of, free_port

LIMIT_SECONDS = 0.5


def first_token(port, model, key=None):
    Stream(port, model, "Say hello.", 4, key).to_first_token()


def through_lifeboat():
    """Seconds to the first token, and the engine's arguments and environment."""
    with Served(data_dir=KEPT, command=("up",)) as served:
        served.wait("it is ready", lambda: served.status("/ready") == 200, 900)
        rows = served.call("GET", "/api/servers")[1]["data"]
        row = next(row for row in rows if row["state"] == "ready")
        first_token(served.port, row["model_name"])
        seconds = time.monotonic() - served.started
        return seconds, arguments_of(row["pid"]), environment_of(row["pid"])


def alone(arguments, environment):
    port = free_port()
    arguments = list(arguments)
    arguments[arguments.index("--port") + 1] = str(port)
    home = tempfile.mkdtemp(prefix="lifeboat-acceptance-")
    started = time.monotonic()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    engine = subprocess.Popen(arguments, env=environment | {"HOME": home}, cwd=home, **quiet)
    try:
        while True:
            assert engine.poll() is None, f"the engine ended with {engine.returncode}"
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.005)
        first_token(port, "chat", engine_key(environment))
        return time.monotonic() - started
    finally:
        engine.kill()
        engine.wait()
        shutil.rmtree(home, ignore_errors=True)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with Served(data_dir=KEPT) as served:
        served.delete_rows()
    # The first start creates the row, and installs what is missing.
    _, arguments, environment = through_lifeboat()
    print("engine:", *(os.path.basename(argument) for argument in arguments[:3]), "…")
    times = {"lifeboat up": [], "engine alone": []}
    for _ in range(rounds):
        times["lifeboat up"].append(through_lifeboat()[0])
        times["engine alone"].append(alone(arguments, environment))
    for name, seconds in times.items():
        print(f"{name:12} median {statistics.median(seconds):.2f} s  of {', '.join(f'{value:.2f}' for value in seconds)}")
    later = statistics.median(times["lifeboat up"]) - statistics.median(times["engine alone"])
    print(f"later by {later:+.2f} s (limit {LIMIT_SECONDS} s)")
    raise SystemExit(int(later > LIMIT_SECONDS))


if __name__ == "__main__":
    main()
