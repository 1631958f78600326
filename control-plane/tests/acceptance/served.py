"""A `lifeboat serve` of the acceptance scripts, its REST API and plain HTTP streams. Standard library only."""

import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = pathlib.Path(os.environ.get("LIFEBOAT_BINARY", ROOT / "target" / "release" / "lifeboat"))
# Engine and model are downloaded once into here; the integration tests use the same folder.
KEPT = ROOT / "target" / "tmp" / "it-real" / "data"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Served:
    """One control plane; use it with `with`."""

    def __init__(self, data_dir=None, command=("serve",), settings=""):
        self.temporary = tempfile.mkdtemp(prefix="lifeboat-acceptance-") if data_dir is None else None
        self.data_dir = pathlib.Path(data_dir or self.temporary) if data_dir else pathlib.Path(self.temporary) / "data"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "lifeboat.toml").write_text(settings)
        self.port = free_port()
        self.log = open(self.data_dir.parent / "serve.log", "ab")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LIFEBOAT_", "HF_"))}
        environment |= {"LIFEBOAT_DATA_DIR": str(self.data_dir), "LIFEBOAT_LISTEN": f"127.0.0.1:{self.port}"}
        self.started = time.monotonic()
        self.process = subprocess.Popen([BINARY, *command], env=environment, stdout=self.log, stderr=self.log)

    def __enter__(self):
        self.wait("it listens", lambda: self.status("/health") == 200, 30)
        return self

    def __exit__(self, *_failure):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60)
        self.log.close()
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def wait(self, what, condition, seconds):
        """Polls until the condition gives something true, which is returned."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"serve ended with {self.process.returncode} before: {what}; see {self.log.name}")
            found = condition()
            if found:
                return found
            time.sleep(0.005)
        raise SystemExit(f"not within {seconds} s: {what}; see {self.log.name}")

    def status(self, path):
        try:
            return self.call("GET", path)[0]
        except OSError:
            return None

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, {"content-type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        finally:
            connection.close()
        try:
            return reply.status, json.loads(text)
        except ValueError:
            return reply.status, text.decode(errors="replace")

    def create_row(self, **row):
        status, reply = self.call("POST", "/api/servers", row)
        assert status == 201, reply
        return reply["id"]

    def delete_rows(self):
        for row in self.call("GET", "/api/servers")[1]["data"]:
            assert self.call("DELETE", f"/api/servers/{row['id']}")[0] < 300

    def ready(self, row_id, seconds=600):
        def look():
            row = self.call("GET", f"/api/servers/{row_id}")[1]
            if row["state"] == "failed":
                raise SystemExit(f"the row failed: {row['state_reason']}")
            return row if row["state"] == "ready" else None

        return self.wait("the row is ready", look, seconds)


def environment_of(pid):
    text = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def arguments_of(pid):
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]


def engine_key(environment):
    """The random key the engine was given in its environment."""
    return next(value for name, value in environment.items() if name.endswith("API_KEY"))


def resident_kib(pid):
    """Resident memory now and at its peak."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["VmRSS"].split()[0]), int(fields["VmHWM"].split()[0])


class Stream:
    """One streamed chat over a connection of its own, read chunk by chunk."""

    def __init__(self, port, model, text, max_tokens, key=None, **more):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "stream": True, **more}
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        self.reply = self.connection.getresponse()
        assert self.reply.status == 200, (self.reply.status, self.reply.read())

    def chunks(self):
        """The JSON of each data line, to [DONE]."""
        for line in self.reply:
            if line.startswith(b"data: [DONE]"):
                self.connection.close()
                return
            if line.startswith(b"data:"):
                yield json.loads(line[5:])
        raise AssertionError("the stream ended without [DONE]")

    def to_first_token(self):
        """Reads until the first piece of the answer, then goes."""
        for chunk in self.chunks():
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                break
        self.connection.close()
