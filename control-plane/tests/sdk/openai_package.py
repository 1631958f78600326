"""Drives a server with the `openai` package as an application would.

Usage: openai_package.py BASE MODEL CONTEXT [KEY]

BASE is the server without `/v1`, CONTEXT the tokens one conversation may have. Every check raises on
failure; the exit code is then 1. With KEY, a wrong key is tried too (a server without keys takes any), and
what only a real engine does (refusing images) is not.
"""

import json
import sys

import openai


def check_models(client: openai.OpenAI, model: str) -> None:
    listed = [entry.id for entry in client.models.list()]
    assert model in listed, listed
    assert client.models.retrieve(model).id == model


def check_chat(client: openai.OpenAI, model: str) -> None:
    request = dict(
        model=model,
        messages=[{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Say hello."}],
        max_tokens=16,
        temperature=0,
        seed=7,
    )
    whole = client.chat.completions.create(**request)
    text = whole.choices[0].message.content
    assert text and text.strip(), whole
    assert whole.model == model, whole.model
    assert whole.choices[0].finish_reason in ("stop", "length"), whole
    assert whole.usage.prompt_tokens > 0 and whole.usage.completion_tokens > 0, whole.usage

    pieces, usage, finish = [], None, None
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        assert chunk.model == model, chunk.model
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    assert "".join(pieces) == text, (pieces, text)
    assert finish in ("stop", "length") and usage.completion_tokens > 0, (finish, usage)


def check_stream_left_early(client: openai.OpenAI, model: str) -> None:
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Count to a thousand."}], max_tokens=1000, stream=True
    )
    for number, _chunk in enumerate(stream):
        if number == 3:
            break
    stream.close()


def check_completions(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, seed=7)
    assert whole.choices[0].text and whole.object == "text_completion", whole
    stream = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, seed=7, stream=True)
    text = "".join(choice.text for chunk in stream for choice in chunk.choices)
    assert text == whole.choices[0].text, (text, whole)


def check_responses(client: openai.OpenAI, model: str, translated: bool) -> None:
    """Where Lifeboat translates, a reply that its limit cuts says so, and every event has its number."""
    reply = client.responses.create(model=model, input="Say hello.", max_output_tokens=16)
    events = list(client.responses.create(model=model, input="Say hello.", max_output_tokens=16, stream=True))
    last = events[-1].response
    assert reply.output_text.strip(), reply
    assert events[0].type == "response.created" and events[-1].type == f"response.{last.status}", events
    if translated:
        for whole in (reply, last):
            assert whole.status == ("incomplete" if whole.usage.output_tokens == 16 else "completed"), whole
        assert [event.sequence_number for event in events] == list(range(len(events))), events


def check_embeddings(client: openai.OpenAI, model: str) -> None:
    """A chat model has no embeddings; a server that gives them anyway must give vectors."""
    try:
        reply = client.embeddings.create(model=model, input=["one", "two"])
    except openai.APIStatusError as refusal:
        assert refusal.status_code in (400, 403, 404, 501), refusal
        assert refusal.body and refusal.body["message"], refusal.body
    else:
        assert len(reply.data) == 2 and len(reply.data[0].embedding) > 8, reply


def check_schema(client: openai.OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "green"]}, "number": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["colour", "number"],
        "additionalProperties": False,
    }
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name a colour and a number."}],
        response_format={"type": "json_schema", "json_schema": {"name": "pair", "schema": schema, "strict": True}},
        max_tokens=64,
        temperature=0,
    )
    pair = json.loads(reply.choices[0].message.content)
    assert pair["colour"] in ("red", "green") and 0 <= pair["number"] <= 9, pair


def check_image(client: openai.OpenAI, model: str) -> None:
    """A model without sight refuses an image as the client's mistake."""
    pixel = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": pixel}}]
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}], max_tokens=4)
    except openai.BadRequestError as refusal:
        assert refusal.body["message"], refusal.body
    else:
        raise AssertionError("a model without sight took an image")


def check_unknown_model(client: openai.OpenAI) -> None:
    try:
        client.chat.completions.create(model="nobody/here", messages=[{"role": "user", "content": "hi"}])
    except openai.NotFoundError as refusal:
        assert refusal.code == "model_not_found", refusal.body
        assert "nobody/here" in refusal.body["message"], refusal.body
    else:
        raise AssertionError("an unknown model was served")


def check_context_overflow(client: openai.OpenAI, model: str, context: int) -> None:
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * (context * 2)}], max_tokens=8)
    except openai.BadRequestError as refusal:
        assert refusal.code == "context_length_exceeded", refusal.body
    else:
        raise AssertionError("a prompt beyond the context was served")


def check_large_body(client: openai.OpenAI, model: str) -> None:
    """3 MB of a field the model does not see must pass; 3 MB of prompt must be refused as too long, not as too large."""
    padding = "x" * 3_000_000
    reply = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=4, extra_body={"padding": padding}
    )
    assert reply.choices[0].finish_reason, reply
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 600_000}], max_tokens=4)
    except openai.BadRequestError as refusal:
        assert refusal.code == "context_length_exceeded", refusal.body
    else:
        raise AssertionError("3 MB of prompt were served")


def check_wrong_key(base: str, model: str) -> None:
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="lb_wrong", max_retries=0)
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
    except openai.AuthenticationError as refusal:
        assert refusal.code == "invalid_api_key", refusal.body
    else:
        raise AssertionError("a wrong key was let in")


def main() -> None:
    base, model, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
    key = sys.argv[4] if len(sys.argv) > 4 else None
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=key or "none", max_retries=0, timeout=120)
    check_models(client, model)
    check_chat(client, model)
    check_stream_left_early(client, model)
    check_completions(client, model)
    check_responses(client, model, translated=not key)
    check_embeddings(client, model)
    check_unknown_model(client)
    check_context_overflow(client, model, context)
    check_large_body(client, model)
    check_schema(client, model)
    if key:
        check_wrong_key(base, model)
    else:
        check_image(client, model)
    print("openai", openai.__version__, "ok")


if __name__ == "__main__":
    main()
