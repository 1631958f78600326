"""Drives a server with the `ollama` package as an application would.

Usage: ollama_package.py BASE MODEL CONTEXT [KEY]

See openai_package.py; the arguments are the same.
"""

import sys

import ollama

HELLO = [{"role": "user", "content": "Say hello."}]
SHORT = {"num_predict": 12, "temperature": 0, "seed": 7}


def check_lists(client: ollama.Client, model: str) -> None:
    listed = [entry.model for entry in client.list().models]
    assert any(model in name for name in listed), listed
    assert client.show(model).capabilities, client.show(model)
    assert any(model in entry.model for entry in client.ps().models), client.ps()


def check_chat(client: ollama.Client, model: str) -> None:
    whole = client.chat(model=model, messages=HELLO, options=SHORT)
    assert whole.done and whole.message.role == "assistant" and whole.message.content.strip(), whole
    assert whole.eval_count > 0 and whole.prompt_eval_count > 0, whole
    chunks = list(client.chat(model=model, messages=HELLO, options=SHORT, stream=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content, (chunks, whole)
    assert chunks[-1].done and chunks[-1].done_reason in ("stop", "length"), chunks[-1]


def check_generate(client: ollama.Client, model: str) -> None:
    whole = client.generate(model=model, prompt="Once upon a time", options=SHORT)
    assert whole.done and whole.response, whole
    text = "".join(chunk.response for chunk in client.generate(model=model, prompt="Once upon a time", options=SHORT, stream=True))
    assert text == whole.response, (text, whole)


def check_unknown_model(client: ollama.Client) -> None:
    try:
        client.chat(model="nobody/here", messages=HELLO)
    except ollama.ResponseError as refusal:
        assert refusal.status_code == 404 and "nobody/here" in refusal.error, refusal
    else:
        raise AssertionError("an unknown model was served")


def main() -> None:
    base, model = sys.argv[1], sys.argv[2]
    key = sys.argv[4] if len(sys.argv) > 4 else None
    client = ollama.Client(host=base, headers={"authorization": f"Bearer {key}"} if key else None, timeout=120)
    check_lists(client, model)
    check_chat(client, model)
    check_generate(client, model)
    check_unknown_model(client)
    print("ollama ok")


if __name__ == "__main__":
    main()
