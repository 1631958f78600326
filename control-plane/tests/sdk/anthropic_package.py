"""Drives a server with the `anthropic` package as an application would.

Usage: anthropic_package.py BASE MODEL CONTEXT [KEY]

See openai_package.py; the arguments are the same.
"""

import sys

import anthropic

HELLO = [{"role": "user", "content": "Say hello."}]


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def check_messages(client: anthropic.Anthropic, model: str) -> None:
    request = dict(model=model, system="You are brief.", messages=HELLO, max_tokens=16, extra_body={"temperature": 0})
    whole = client.messages.create(**request)
    assert text_of(whole).strip() and whole.role == "assistant", whole
    assert whole.model == model, whole.model
    assert whole.stop_reason in ("end_turn", "max_tokens"), whole
    assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) > 0, whole.usage
    assert whole.usage.output_tokens > 0, whole.usage
    with client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(whole), (text, whole)
    assert final.stop_reason == whole.stop_reason and final.model == model, final


def check_blocks(client: anthropic.Anthropic, model: str) -> None:
    blocks = [{"type": "text", "text": "Say"}, {"type": "text", "text": " hello.", "cache_control": {"type": "ephemeral"}}]
    reply = client.messages.create(model=model, messages=[{"role": "user", "content": blocks}], max_tokens=4)
    assert reply.usage.output_tokens > 0, reply


def check_count_tokens(client: anthropic.Anthropic, model: str) -> None:
    short = client.messages.count_tokens(model=model, messages=HELLO).input_tokens
    longer = client.messages.count_tokens(model=model, messages=[{"role": "user", "content": "Say hello. " * 20}]).input_tokens
    assert 0 < short < longer, (short, longer)


def check_stream_left_early(client: anthropic.Anthropic, model: str) -> None:
    with client.messages.stream(model=model, messages=[{"role": "user", "content": "Count to a thousand."}], max_tokens=1000) as stream:
        for number, _text in enumerate(stream.text_stream):
            if number == 3:
                break


def check_unknown_model(client: anthropic.Anthropic) -> None:
    try:
        client.messages.create(model="nobody/here", messages=HELLO, max_tokens=4)
    except anthropic.NotFoundError as refusal:
        assert refusal.body["type"] == "error" and refusal.body["error"]["type"] == "not_found_error", refusal.body
    else:
        raise AssertionError("an unknown model was served")


def check_context_overflow(client: anthropic.Anthropic, model: str, context: int) -> None:
    try:
        client.messages.create(model=model, messages=[{"role": "user", "content": "word " * (context * 2)}], max_tokens=8)
    except anthropic.BadRequestError as refusal:
        assert refusal.body["error"]["type"] == "invalid_request_error", refusal.body
        assert "context" in refusal.body["error"]["message"] or "too long" in refusal.body["error"]["message"], refusal.body
    else:
        raise AssertionError("a prompt beyond the context was served")


def check_large_body(client: anthropic.Anthropic, model: str) -> None:
    reply = client.messages.create(model=model, messages=HELLO, max_tokens=4, extra_body={"padding": "x" * 3_000_000})
    assert reply.stop_reason, reply


def check_wrong_key(base: str, model: str) -> None:
    client = anthropic.Anthropic(base_url=base, api_key="lb_wrong", max_retries=0)
    try:
        client.messages.create(model=model, messages=HELLO, max_tokens=4)
    except anthropic.AuthenticationError as refusal:
        assert refusal.body["error"]["type"] == "authentication_error", refusal.body
    else:
        raise AssertionError("a wrong key was let in")


def main() -> None:
    base, model, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
    key = sys.argv[4] if len(sys.argv) > 4 else None
    client = anthropic.Anthropic(base_url=base, api_key=key or "none", max_retries=0, timeout=120)
    check_messages(client, model)
    check_blocks(client, model)
    check_count_tokens(client, model)
    check_stream_left_early(client, model)
    check_unknown_model(client)
    check_context_overflow(client, model, context)
    check_large_body(client, model)
    if key:
        check_wrong_key(base, model)
    print("anthropic", anthropic.__version__, "ok")


if __name__ == "__main__":
    main()
