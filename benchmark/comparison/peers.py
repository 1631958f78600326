"""Starts what is compared: simulated engines, and in front of them nginx, sglang-router, vllm-router and Lifeboat.

Every peer gets engines of its own with the same flags, so that none finds what another one has warmed. All of it listens on
loopback and ends with this process. Standard library only.
"""

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

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "sim"

NGINX = """
daemon off;
master_process on;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 1m;
    client_max_body_size 100m;
    keepalive_requests 1000000;
    upstream engines {{
        least_conn;
{servers}
        keepalive 256;
        keepalive_requests 1000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        tcp_nodelay on;
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def free_ports(count):
    """That many ports that follow each other."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        if first + count > 65535:
            continue
        try:
            held = []
            for port in range(first, first + count):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return list(range(first, first + count))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()


def get(port, path, timeout=2):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except OSError:
        return None, b""
    finally:
        connection.close()


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    except OSError as problem:
        return None, str(problem).encode()
    finally:
        connection.close()


def answers(port):
    """Whether a chat request gets through to an engine."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return post(port, "/v1/chat/completions", body)[0] == 200


class Bench:
    """Everything that was started, to be ended together."""

    def __init__(self, lifeboat, peers):
        self.lifeboat, self.peers = pathlib.Path(lifeboat), pathlib.Path(peers)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lifeboat-router-bench-"))
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_failure):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name, command, env=None):
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, env=env)
        self.processes.append(process)
        return process

    def wait(self, what, process, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if process.poll() is not None:
                raise SystemExit(f"{what}: ended with {process.returncode}\n{self.tail(what)}")
            if condition():
                return
            time.sleep(0.1)
        raise SystemExit(f"{what}: not ready within {seconds} s\n{self.tail(what)}")

    def tail(self, name):
        log = self.folder / f"{name}.log"
        return log.read_text(errors="replace")[-1500:] if log.exists() else ""

    def engines(self, name, count, flags):
        """Simulated engines, all in one process; their ports."""
        ports = free_ports(count)
        process = self.start(
            f"engines of {name}", [self.lifeboat, "sim-engine", "--port", ports[0], "--instances", count, "--model", MODEL, *flags]
        )
        self.wait(f"engines of {name}", process, lambda: all(get(port, "/health")[0] == 200 for port in ports))
        return ports

    def nginx(self, ports):
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        port = free_ports(1)[0]
        servers = "\n".join(f"        server 127.0.0.1:{engine};" for engine in ports)
        config = self.folder / "nginx.conf"
        config.write_text(NGINX.format(folder=self.folder, port=port, servers=servers))
        process = self.start("nginx", [program, "-p", self.folder, "-e", self.folder / "error.log", "-c", config])
        self.wait("nginx", process, lambda: answers(port))
        return port, process.pid

    def sglang(self, ports):
        port, metrics = free_ports(2)
        command = [self.peers / "bin" / "python", "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", port]
        command += ["--policy", "cache_aware", "--prometheus-port", metrics, "--log-level", "warn", "--worker-urls"]
        process = self.start("sglang-router", command + [f"http://127.0.0.1:{engine}" for engine in ports])
        self.wait("sglang-router", process, lambda: answers(port), 120)
        return port, process.pid

    def vllm(self, ports, policy):
        port, metrics = free_ports(2)
        command = [self.peers / "bin" / "vllm-router", "--host", "127.0.0.1", "--port", port, "--policy", policy]
        command += ["--prometheus-port", metrics, "--log-level", "warning", "--worker-urls"]
        name = f"vllm-router {policy}"
        process = self.start(name, command + [f"http://127.0.0.1:{engine}" for engine in ports])
        self.wait(name, process, lambda: answers(port), 120)
        return port, process.pid

    def lifeboat_with(self, name, rows, settings=""):
        """A control plane with these rows; its port and the id of its own process, without its engines."""
        port = free_ports(1)[0]
        data = self.folder / name
        data.mkdir()
        (data / "lifeboat.toml").write_text(settings)
        env = {key: value for key, value in os.environ.items() if not key.startswith("LIFEBOAT_")}
        env |= {"LIFEBOAT_DATA_DIR": str(data), "LIFEBOAT_LISTEN": f"127.0.0.1:{port}"}
        process = self.start(name, [self.lifeboat, "serve"], env)
        self.wait(name, process, lambda: get(port, "/health")[0] == 200)
        for row in rows:
            status, reply = post(port, "/api/servers", row)
            if status != 201:
                raise SystemExit(f"{name}: a row was refused: {reply.decode(errors='replace')}")

        def all_ready():
            status, reply = get(port, "/api/servers", 10)
            return status == 200 and [row["state"] for row in json.loads(reply)["data"]].count("ready") == len(rows)

        self.wait(name, process, all_ready, 120)
        return port, process.pid


def versions(peers):
    """What is compared, by name."""
    found = {}
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    found["nginx"] = subprocess.run([nginx, "-v"], capture_output=True, text=True).stderr.strip().rpartition("/")[2]
    listed = subprocess.run([pathlib.Path(peers) / "bin" / "pip", "list", "--format=freeze"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name, _, version = line.partition("==")
        if name in ("sglang-router", "vllm-router"):
            found[name] = version
    return found
