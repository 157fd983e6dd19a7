"""Answers in JSON and calls of functions. The model has random weights: what is right about its answers is due to the forms."""

import json
import random
import re

import pytest
from server import CHATML, HERMES, needs_binary, serving

pytestmark = needs_binary

LLAMA = HERMES.replace('<tool_call>\n{\"name\"', '{"name"').replace('\"arguments\"', '"parameters"').replace("\n</tool_call>", "")
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 6}, "age": {"type": "integer"},
    "colour": {"enum": ["red", "green", None]}, "scores": {"type": "array", "items": {"type": "number", "minimum": -0.5, "exclusiveMaximum": 20}, "minItems": 1, "maxItems": 2},
    "code": {"type": "string", "pattern": "^[A-C]{2}-\\d?$"},
    "friend": {"oneOf": [{"$ref": "#/$defs/animal"}, {"type": "null"}]}},
    "required": ["name", "colour", "scores", "code", "friend"], "additionalProperties": False,
    "$defs": {"animal": {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"], "additionalProperties": False}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
    "type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "city": {"type": "string", "maxLength": 5}}, "required": ["unit", "city"]}}},
    {"type": "function", "function": {"name": "now"}}]


def check_person(value):
    assert set(value) >= {"name", "colour", "scores", "code", "friend"} and set(value) <= set(PERSON["properties"])
    assert 1 <= len(value["name"]) <= 6 and value["colour"] in ("red", "green", None) and 1 <= len(value["scores"]) <= 2
    assert isinstance(value.get("age", 0), int) and all(-0.5 <= score < 20 for score in value["scores"])
    assert re.search(PERSON["properties"]["code"]["pattern"], value["code"])
    assert value["friend"] in (None, {"kind": "cat"})


def check_call(call, names=("weather", "now")):
    arguments = json.loads(call["function"]["arguments"])
    assert call["type"] == "function" and call["id"].startswith("call_") and call["function"]["name"] in names
    if call["function"]["name"] == "now":
        assert arguments == {}
    else:
        assert list(arguments) == ["unit", "city"] and arguments["unit"] in ("C", "F") and len(arguments["city"]) <= 5


@pytest.fixture(scope="module")
def callers(run, tmp_path_factory):
    """Servers whose templates write calls in either form."""
    folder = tmp_path_factory.mktemp("templates")
    for name, text in (("hermes", HERMES), ("llama", LLAMA)):
        (folder / name).write_text(text)
    with serving(run, "--chat-template", folder / "hermes") as hermes, serving(run, "--chat-template", folder / "llama") as llama:
        yield {"hermes": hermes, "llama": llama}


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def test_answers_fit_the_schema(server):
    colours = set()
    for seed in range(12):
        request = {"max_tokens": 600, "seed": seed, "temperature": 1.5 if seed % 2 else 1.0, "response_format": schema_format(PERSON, strict=True)}
        choice = (server.chat(**request) if seed % 3 else server.completion(prompt="The cat", **request)).json["choices"][0]
        assert choice["finish_reason"] == "stop"
        value = json.loads(choice["message"]["content"] if seed % 3 else choice["text"])
        check_person(value)
        colours.add(value["colour"])
    assert len(colours) > 1, "the model chooses what the schema leaves open"


def test_any_json(server):
    ends = {str(token): 6 for text in ('"', "}", "]", ",") for token in server.ask("POST", "/tokenize", {"prompt": text}).json["tokens"]}
    stopped = 0
    for seed in range(6):
        choice = server.chat(max_tokens=400, seed=seed, response_format={"type": "json_object"}, logit_bias=ends).json["choices"][0]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
            stopped += 1
        assert choice["message"]["content"].lstrip().startswith("{")
    assert stopped >= 3
    cut = server.chat(max_tokens=3, seed=1, response_format={"type": "json_object"}).json["choices"][0]
    assert cut["finish_reason"] in ("length", "stop")
    assert server.chat(max_tokens=3, response_format={"type": "text"}).status == 200


def test_numbers_end_with_the_end_of_text(server):
    for seed in range(4):
        choice = server.completion(prompt="The", max_tokens=60, seed=seed, response_format=schema_format({"type": "integer"})).json["choices"][0]
        assert isinstance(json.loads(choice["text"]), int), choice


def test_streams_and_batches_give_the_same(server):
    request = {"max_tokens": 500, "response_format": schema_format(PERSON)}
    messages = [{"role": "user", "content": "Hello"}]
    alone = [server.chat(seed=seed, **request).json["choices"][0]["message"]["content"] for seed in range(4)]
    free = server.chat(seed=9, max_tokens=50).json["choices"][0]["message"]["content"]
    pieces = server.stream("/v1/chat/completions", messages=messages, seed=2, **request)
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == alone[2]
    connections = [server.send("POST", "/v1/chat/completions", {"messages": messages, "seed": seed, **request}) for seed in range(4)]
    connections.append(server.send("POST", "/v1/chat/completions", {"messages": messages, "seed": 9, "max_tokens": 50}))
    together = [json.loads(each.getresponse().read())["choices"][0]["message"]["content"] for each in connections]
    assert together == [*alone, free]
    three = server.chat(n=3, seed=2, **request).json["choices"]
    assert three[0]["message"]["content"] == alone[2]
    for choice in three:
        check_person(json.loads(choice["message"]["content"]))


@pytest.mark.parametrize("schema, says", [
    ({"type": "integer", "multipleOf": 3}, "'multipleOf' of JSON Schema is not supported"),
    ({"pattern": "(?=x)"}, "looking ahead or behind"), ({"properties": {"a": {"$ref": "#/x"}}}, "$ref"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no finite value"), ({"type": "strin"}, "there is no type")])
def test_schemas_that_are_not_supported(server, schema, says):
    reply = server.chat(max_tokens=5, response_format=schema_format(schema))
    assert reply.status == 400 and says in reply.message and reply.json["error"]["param"] == "response_format", reply.text


@pytest.mark.parametrize("form", ["hermes", "llama"])
def test_calls_that_must_be(callers, form):
    server, names = callers[form], set()
    messages = [{"role": "user", "content": "Hello"}]
    for seed in range(6):
        request = {"tools": TOOLS, "tool_choice": "required", "seed": seed, "max_tokens": 400, "logprobs": seed == 0}
        choice = server.chat(**request).json["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None, choice
        for call in choice["message"]["tool_calls"]:
            check_call(call)
            names.add(call["function"]["name"])
        first, *events = server.stream("/v1/chat/completions", messages=messages, **request)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        calls = []
        for event in events:
            delta = event["choices"][0]["delta"]
            assert set(delta) <= {"tool_calls"}
            for part in delta.get("tool_calls", []):
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
                else:
                    assert set(part) == {"index", "function"}
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        assert [call["function"] for call in calls] == [call["function"] for call in choice["message"]["tool_calls"]]
        assert [event["choices"][0]["finish_reason"] for event in events if event["choices"][0]["finish_reason"]] == ["tool_calls"]
    assert names
    named = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}, "max_tokens": 400}
    (call,) = server.chat(**named).json["choices"][0]["message"]["tool_calls"]
    check_call(call, ["weather"])
    one = server.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=400).json["choices"][0]["message"]["tool_calls"]
    assert len(one) == 1


def test_calls_among_texts(callers):
    """tool_choice auto: a call is found in the answer. A schema makes the model write one."""
    call = {"name": "weather", "parameters": {"unit": "C", "city": "Rome"}}
    for server in callers.values():
        request = {"tools": TOOLS[:1], "max_tokens": 300, "response_format": schema_format({"const": call}), "seed": random.randrange(1000)}
        choice = server.chat(**request).json["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
        plain = server.chat(**{**request, "tools": None}).json["choices"][0]
        assert json.loads(plain["message"]["content"]) == call and plain["finish_reason"] == "stop"
        none = server.chat(**{**request, "tool_choice": "none"}).json["choices"][0]
        assert json.loads(none["message"]["content"]) == call and none["finish_reason"] == "stop"


def test_conversations_with_calls_reach_the_template(callers):
    conversation = {"tools": TOOLS[1:], "messages": [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{\"zone\": 1, \"a\": [2]}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"}]}
    server = callers["hermes"]
    ids = server.ask("POST", "/tokenize", conversation).json["tokens"]
    assert server.ask("POST", "/detokenize", {"tokens": ids}).json["prompt"] == (
        '<|im_start|>system\n{"type": "function", "function": {"name": "now"}}\n<|im_end|>\n<|im_start|>user\nTime?<|im_end|>\n'
        '<|im_start|>assistant\n<tool_call>\n{"name": "now", "arguments": {"zone": 1, "a": [2]}}\n</tool_call><|im_end|>\n'
        '<|im_start|>tool\nnoon<|im_end|>\n<|im_start|>assistant\n')
    assert server.ask("POST", "/v1/chat/completions", {**conversation, "max_tokens": 4}).status == 200


def test_tools_that_a_template_does_not_write(server):
    assert "tools" not in CHATML
    reply = server.chat(tools=TOOLS, max_tokens=5)
    assert reply.status == 400 and reply.json["error"]["param"] == "tools" and "has no place for tools" in reply.message
    assert server.chat(tools=TOOLS, tool_choice="none", max_tokens=5).status == 200
