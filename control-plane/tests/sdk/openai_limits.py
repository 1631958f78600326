"""Limits, refusals and clients that leave, with the `openai` package as an application would meet them.

Usage: openai_limits.py BASE MODEL KEY ADMIN

KEY may send one request at once, ADMIN may also look at the rows. MODEL must answer so slowly that a stream still runs while
the second request is sent. Every check raises on failure.
"""

import sys
import threading

import openai
from common import wait_for_slots

HELLO = [{"role": "user", "content": "hi"}]


def check_limit(client: openai.OpenAI, model: str) -> None:
    running = client.chat.completions.create(model=model, messages=HELLO, stream=True)
    next(iter(running))
    for call in (
        lambda: client.chat.completions.create(model=model, messages=HELLO, stream=True),
        lambda: client.responses.create(model=model, input="hi"),
    ):
        try:
            call()
        except openai.RateLimitError as refusal:
            assert refusal.code == "rate_limit_exceeded" and refusal.request_id, refusal.body
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


def check_leaving(client: openai.OpenAI, base: str, model: str, admin: str) -> None:
    """Whoever leaves frees the slot at once, though the program and its connections live on."""
    wait_for_slots(base, admin, 0)
    with client.chat.completions.create(model=model, messages=HELLO, stream=True) as stream:
        for _ in zip(range(3), stream):
            pass
        wait_for_slots(base, admin, 1)
    wait_for_slots(base, admin, 0)
    with client.responses.create(model=model, input="hi", stream=True) as stream:
        for _ in zip(range(6), stream):
            pass
        wait_for_slots(base, admin, 1)
    wait_for_slots(base, admin, 0)
    for call in (
        lambda hasty: hasty.chat.completions.create(model=model, messages=HELLO),
        lambda hasty: hasty.responses.create(model=model, input="hi"),
    ):
        try:
            call(client.with_options(timeout=0.5))
        except openai.APITimeoutError:
            wait_for_slots(base, admin, 0)
        else:
            raise AssertionError("a reply of minutes came within half a second")


def check_refusals(client: openai.OpenAI, base: str, model: str) -> None:
    stranger = openai.OpenAI(base_url=f"{base}/v1", api_key="lb_wrong", max_retries=0)
    table = [
        (stranger, model, "hi", openai.AuthenticationError, "invalid_api_key"),
        (client, "nobody/here", "hi", openai.NotFoundError, "model_not_found"),
        (client, model, "word " * 20_000, openai.BadRequestError, "context_length_exceeded"),
    ]
    for asker, name, words, kind, code in table:
        for stream in (False, True):
            for call in (
                lambda: asker.chat.completions.create(model=name, messages=[{"role": "user", "content": words}], stream=stream),
                lambda: asker.responses.create(model=name, input=words, stream=stream),
            ):
                try:
                    call()
                except openai.APIStatusError as refusal:
                    assert type(refusal) is kind and refusal.code == code, (kind, refusal, refusal.body)
                    assert refusal.body["message"] and refusal.request_id, refusal.body
                else:
                    raise AssertionError(f"served, but {code} was expected")


def main() -> None:
    base, model, key, admin = sys.argv[1:5]
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=60)
    check_limit(client, model)
    check_leaving(client, base, model, admin)
    check_refusals(client, base, model)
    print("openai", openai.__version__, "limits ok")


if __name__ == "__main__":
    main()
