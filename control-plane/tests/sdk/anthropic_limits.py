"""Limits, refusals and clients that leave, with the `anthropic` package as an application would meet them.

Usage: anthropic_limits.py BASE MODEL KEY ADMIN; see openai_limits.py.
"""

import sys
import threading

import anthropic
from common import wait_for_slots

HELLO = [{"role": "user", "content": "hi"}]


def check_limit(client: anthropic.Anthropic, model: str) -> None:
    request = dict(model=model, messages=HELLO, max_tokens=4000)
    with client.messages.stream(**request) as running:
        next(iter(running))
        for stream in (False, True):
            try:
                client.messages.create(**request, stream=stream)
            except anthropic.RateLimitError as refusal:
                assert refusal.body["type"] == "error" and refusal.body["error"]["type"] == "rate_limit_error", refusal.body
                assert refusal.request_id, refusal.response.headers
                assert refusal.response.headers["retry-after"] == "1", refusal.response.headers
                assert refusal.response.headers["retry-after-ms"] == "1000", refusal.response.headers
            else:
                raise AssertionError("a second request was let in")
        # The package's own retries wait as they are told, and get in once the first request has ended.
        threading.Timer(0.5, running.close).start()
        with client.with_options(max_retries=5).messages.stream(**request) as second:
            next(iter(second))


def check_leaving(client: anthropic.Anthropic, base: str, model: str, admin: str) -> None:
    """Whoever leaves frees the slot at once, though the program and its connections live on."""
    wait_for_slots(base, admin, 0)
    with client.messages.stream(model=model, messages=HELLO, max_tokens=4000) as stream:
        for _ in zip(range(3), stream.text_stream):
            pass
        wait_for_slots(base, admin, 1)
    wait_for_slots(base, admin, 0)
    try:
        client.with_options(timeout=0.5).messages.create(model=model, messages=HELLO, max_tokens=4000)
    except anthropic.APITimeoutError:
        wait_for_slots(base, admin, 0)
    else:
        raise AssertionError("a reply of minutes came within half a second")


def check_refusals(client: anthropic.Anthropic, base: str, model: str) -> None:
    stranger = anthropic.Anthropic(base_url=base, api_key="lb_wrong", max_retries=0)
    table = [
        (stranger, model, "hi", anthropic.AuthenticationError, "authentication_error"),
        (client, "nobody/here", "hi", anthropic.NotFoundError, "not_found_error"),
        (client, model, "word " * 20_000, anthropic.BadRequestError, "invalid_request_error"),
    ]
    for asker, name, words, kind, said in table:
        for stream in (False, True):
            try:
                asker.messages.create(model=name, messages=[{"role": "user", "content": words}], max_tokens=8, stream=stream)
            except anthropic.APIStatusError as refusal:
                assert type(refusal) is kind and refusal.body["error"]["type"] == said, (kind, refusal, refusal.body)
                assert refusal.body["error"]["message"] and refusal.request_id, refusal.body
            else:
                raise AssertionError(f"served, but {said} was expected")


def main() -> None:
    base, model, key, admin = sys.argv[1:5]
    client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=60)
    check_limit(client, model)
    check_leaving(client, base, model, admin)
    check_refusals(client, base, model)
    print("anthropic", anthropic.__version__, "limits ok")


if __name__ == "__main__":
    main()
