"""Calls tools with the `openai` package as an application would: chat completions and responses, whole and streamed.

Usage: openai_tools.py BASE MODEL [KEY]

BASE is the server without `/v1`. The engine has to be a simulated one: it obeys `tool_choice` and fails on demand. Every check raises on failure.
"""

import json
import sys

import openai
import pydantic
from common import BROKEN, QUESTION, RESULT, SCHEMA, check_input

MESSAGES = [{"role": "user", "content": QUESTION}]
FUNCTION = {"name": "weather", "description": "The weather in a town.", "parameters": SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}, {"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", **tool["function"], "strict": False} for tool in CHAT_TOOLS]


class Forecast(pydantic.BaseModel):
    class Wind(pydantic.BaseModel):
        knots: float

    town: str
    wind: Wind
    warnings: list[str]


def check_chat_call(client: openai.OpenAI, model: str) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    request = dict(model=model, messages=MESSAGES, tools=CHAT_TOOLS, tool_choice=named, max_tokens=64, temperature=0)
    choice = client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls" and not choice.message.content, choice
    [call] = choice.message.tool_calls
    assert call.type == "function" and call.id and call.function.name == "weather", call
    check_input(json.loads(call.function.arguments))

    # By hand, as older applications put a stream together.
    calls, finish, usage, pieces = {}, None, None, 0
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for part in chunk.choices:
            finish = part.finish_reason or finish
            assert not part.delta.content, chunk
            for piece in part.delta.tool_calls or []:
                told = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "arguments": ""})
                told["arguments"] += piece.function.arguments or ""
                pieces += 1
    assert finish == "tool_calls" and usage.completion_tokens > 0 and pieces > 2, (finish, usage, pieces)
    [told] = calls.values()
    assert told["id"] and told["name"] == "weather" and told["arguments"] == call.function.arguments, told

    # And by the package itself.
    with client.chat.completions.stream(**request) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds, kinds
    assert final.finish_reason == "tool_calls" and final.message.tool_calls[0].function.arguments == call.function.arguments, final

    told = [*MESSAGES, choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    for more in ({}, {"tool_choice": "auto"}):
        answer = client.chat.completions.create(model=model, messages=told, tools=CHAT_TOOLS, max_tokens=16, temperature=0, **more)
        assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls, answer
        assert answer.choices[0].finish_reason in ("stop", "length"), answer
    stream = client.chat.completions.create(model=model, messages=told, tools=CHAT_TOOLS, max_tokens=16, temperature=0, stream=True)
    text = "".join(part.delta.content or "" for chunk in stream for part in chunk.choices)
    assert text == answer.choices[0].message.content, (text, answer)


def check_cut_call(client: openai.OpenAI, model: str) -> None:
    """A call that does not fit is no call: the reply says that it was cut, in each dialect."""
    chat = client.chat.completions.create(model=model, messages=MESSAGES, tools=CHAT_TOOLS, tool_choice="required", max_tokens=1)
    assert chat.choices[0].finish_reason in ("length", "tool_calls"), chat
    named = {"type": "function", "name": "weather"}
    cut = client.responses.create(model=model, input=QUESTION, tools=RESPONSE_TOOLS, tool_choice=named, max_output_tokens=2)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens", cut


def check_response_call(client: openai.OpenAI, model: str) -> None:
    request = dict(
        model=model, input=MESSAGES, tools=RESPONSE_TOOLS, tool_choice={"type": "function", "name": "weather"}, max_output_tokens=64
    )
    whole = client.responses.create(**request)
    [call] = [item for item in whole.output if item.type == "function_call"]
    assert whole.status == "completed" and call.name == "weather" and call.call_id and call.status == "completed", whole
    check_input(json.loads(call.arguments))
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens > 0, whole.usage

    events = list(client.responses.create(**request, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"], kinds
    assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"], kinds
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1 and "".join(deltas) == call.arguments == events[-3].arguments, deltas
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    assert events[-2].item.name == "weather" and events[-1].response.output[0].arguments == call.arguments, events[-2:]

    with client.responses.stream(**request) as stream:
        for _event in stream:
            pass
        final = stream.get_final_response()
    assert final.output[0].type == "function_call" and final.output[0].arguments == call.arguments, final

    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    told = [*MESSAGES, *(item.to_dict() for item in whole.output), result]
    answer = client.responses.create(model=model, input=told, tools=RESPONSE_TOOLS, max_output_tokens=64)
    assert answer.output_text and [item.type for item in answer.output] == ["message"], answer
    streamed = client.responses.create(model=model, input=told, tools=RESPONSE_TOOLS, max_output_tokens=64, stream=True)
    text = "".join(event.delta for event in streamed if event.type == "response.output_text.delta")
    assert text == answer.output_text, (text, answer)


def check_schema(client: openai.OpenAI, model: str) -> None:
    """What applications call structured output: the package sends the schema of a class and reads the reply as one."""
    parsed = client.chat.completions.parse(model=model, messages=MESSAGES, response_format=Forecast, max_tokens=128).choices[0].message.parsed
    assert isinstance(parsed, Forecast), parsed
    with client.chat.completions.stream(model=model, messages=MESSAGES, response_format=Forecast, max_tokens=128) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(streamed, Forecast), streamed
    response = client.responses.parse(model=model, input=QUESTION, text_format=Forecast, max_output_tokens=128)
    assert isinstance(response.output_parsed, Forecast), response


def check_broken_call(client: openai.OpenAI, model: str) -> None:
    """Half a call is never taken for a whole one."""
    broken = [{"role": "user", "content": BROKEN}]
    chat = dict(model=model, messages=broken, tools=CHAT_TOOLS[1:], tool_choice="required")
    response = dict(model=model, input=broken, tools=RESPONSE_TOOLS[1:], tool_choice="required")
    try:
        for _chunk in client.chat.completions.create(**chat, stream=True):
            pass
    except openai.APIError as failure:
        assert failure.code == "upstream_failed", failure.body
    else:
        raise AssertionError("a broken stream ended in order")
    events = list(client.responses.create(**response, stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.error.code == "server_error", events[-1]
    for call in (lambda: client.chat.completions.create(**chat), lambda: client.responses.create(**response)):
        try:
            call()
        except openai.InternalServerError as failure:
            assert failure.status_code == 502 and failure.code == "upstream_failed", failure.body
        else:
            raise AssertionError("a broken reply was taken for a whole one")


def main() -> None:
    base, model = sys.argv[1], sys.argv[2]
    key = sys.argv[3] if len(sys.argv) > 3 else "none"
    client = openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=120)
    check_chat_call(client, model)
    check_response_call(client, model)
    check_cut_call(client, model)
    check_broken_call(client, model)
    check_schema(client, model)
    print("openai", openai.__version__, "tools ok")


if __name__ == "__main__":
    main()
