"""Calls tools with the `anthropic` package as an application would, whole, streamed and by its own tool runner.

Usage: anthropic_tools.py BASE MODEL [KEY]

See openai_tools.py.
"""

import sys

import anthropic
import pydantic
from common import BROKEN, QUESTION, RESULT, SCHEMA, check_input

TOOLS = [{"name": "other", "input_schema": {"type": "object"}}, {"name": "weather", "description": "The weather in a town.", "input_schema": SCHEMA}]
MESSAGES = [{"role": "user", "content": QUESTION}]


class Forecast(pydantic.BaseModel):
    town: str
    knots: float


def check_call(client: anthropic.Anthropic, model: str) -> None:
    request = dict(model=model, messages=MESSAGES, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}, max_tokens=64)
    whole = client.messages.create(**request)
    [call] = whole.content
    assert whole.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "weather" and call.id, whole
    check_input(call.input)
    assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) > 0 < whole.usage.output_tokens, whole.usage

    events = list(client.messages.create(**request, stream=True))
    kinds = [event.type for event in events]
    pieces = [event.delta for event in events if event.type == "content_block_delta"]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert set(kinds[2:-3]) == {"content_block_delta"} and {piece.type for piece in pieces} == {"input_json_delta"}, events
    assert len([piece for piece in pieces if piece.partial_json]) > 1, pieces
    block = events[1].content_block
    assert block.type == "tool_use" and block.name == "weather" and block.id and block.input == {}, block
    assert events[-2].delta.stop_reason == "tool_use" and events[-2].usage.output_tokens > 0, events[-2]

    with client.messages.stream(**request) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[0].input == call.input == snapshots[-1], (final, snapshots)

    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": RESULT}]}
    told = [*MESSAGES, {"role": "assistant", "content": [call.to_dict()]}, {"role": "user", "content": [result]}]
    answer = client.messages.create(model=model, messages=told, tools=TOOLS, max_tokens=16)
    assert answer.stop_reason in ("end_turn", "max_tokens") and [block.type for block in answer.content] == ["text"], answer
    with client.messages.stream(model=model, messages=told, tools=TOOLS, max_tokens=16) as stream:
        text = "".join(stream.text_stream)
    assert text and text == answer.content[0].text, (text, answer)


def check_cut_call(client: anthropic.Anthropic, model: str) -> None:
    """A call that does not fit is told as cut, whatever of its input came."""
    request = dict(model=model, messages=MESSAGES, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}, max_tokens=2)
    assert client.messages.create(**request).stop_reason == "max_tokens"
    kinds = [event for event in client.messages.create(**request, stream=True) if event.type == "message_delta"]
    assert kinds[-1].delta.stop_reason == "max_tokens", kinds


def check_runner(client: anthropic.Anthropic, model: str) -> None:
    """The package's own loop: it calls the function and sends its result until the model has no more calls."""
    asked = []

    @anthropic.beta_tool
    def weather(town: str, days: int) -> str:
        """The weather in a town.

        Args:
            town: Which.
            days: For how long.
        """
        asked.append((town, days))
        return RESULT

    runner = client.beta.messages.tool_runner(
        model=model, messages=MESSAGES, tools=[weather], tool_choice={"type": "any"}, max_tokens=64, max_iterations=3
    )
    last = runner.until_done()
    assert len(asked) == 1 and isinstance(asked[0][0], str) and isinstance(asked[0][1], int), asked
    assert last.stop_reason in ("end_turn", "max_tokens") and last.content[0].text, last


def check_schema(client: anthropic.Anthropic, model: str) -> None:
    parsed = client.messages.parse(model=model, messages=MESSAGES, output_format=Forecast, max_tokens=128).parsed_output
    assert isinstance(parsed, Forecast), parsed


def check_broken_call(client: anthropic.Anthropic, model: str) -> None:
    """Half a call is never taken for a whole one."""
    broken = [{"role": "user", "content": BROKEN}]
    request = dict(model=model, messages=broken, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}, max_tokens=64)
    try:
        with client.messages.stream(**request) as stream:
            stream.get_final_message()
    except anthropic.APIStatusError as failure:
        assert failure.body["error"]["type"] == "api_error", failure.body
    else:
        raise AssertionError("a broken stream ended in order")
    try:
        client.messages.create(**request)
    except anthropic.InternalServerError as failure:
        assert failure.status_code == 502 and failure.body["error"]["type"] == "api_error", failure.body
    else:
        raise AssertionError("a broken reply was taken for a whole one")


def main() -> None:
    base, model = sys.argv[1], sys.argv[2]
    key = sys.argv[3] if len(sys.argv) > 3 else "none"
    client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=120)
    check_call(client, model)
    check_cut_call(client, model)
    check_broken_call(client, model)
    check_runner(client, model)
    check_schema(client, model)
    print("anthropic", anthropic.__version__, "tools ok")


if __name__ == "__main__":
    main()
