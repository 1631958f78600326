"""A key that may send one request at once, with the `openai` package as an application would use it.

Usage: limited_key.py BASE MODEL KEY

MODEL must answer so slowly that a stream still runs while the second request is sent. Every check raises on failure.
"""

import sys
import threading

import openai

HELLO = [{"role": "user", "content": "hi"}]


def main() -> None:
    base, model, key = sys.argv[1:4]
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=60)
    running = client.chat.completions.create(model=model, messages=HELLO, stream=True)
    next(iter(running))
    try:
        client.chat.completions.create(model=model, messages=HELLO, stream=True)
    except openai.RateLimitError as refusal:
        assert refusal.code == "rate_limit_exceeded", refusal.body
        assert refusal.response.headers["retry-after"] == "1", refusal.response.headers
        assert refusal.response.headers["retry-after-ms"] == "1000", refusal.response.headers
    else:
        raise AssertionError("a second request was let in")

    # The package's own retries wait as they are told, and get in once the first request has ended.
    threading.Timer(0.5, running.close).start()
    patient = client.with_options(max_retries=5)
    second = patient.chat.completions.create(model=model, messages=HELLO, stream=True)
    next(iter(second))
    second.close()
    print("openai", openai.__version__, "ok")


if __name__ == "__main__":
    main()
