"""The openai package, whole answers and streams, and its errors."""

import json
import math

import pytest
from server import HERMES, needs_binary, serving

openai = pytest.importorskip("openai", reason="needs tests/clients/requirements.txt (./run test --long)")
pytestmark = needs_binary


def client_of(server, key="none"):
    return openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def test_models(client):
    assert [model.id for model in client.models.list()] == ["run"]
    assert client.models.retrieve("run").owned_by == "teratron"


def test_completions(client):
    request = {"model": "run", "prompt": ["The cat", "dog"], "max_tokens": 12, "seed": 3, "logprobs": 2, "n": 2}
    whole = client.completions.create(**request)
    assert len(whole.choices) == 4 and whole.usage.completion_tokens > 0
    assert all(len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) for choice in whole.choices)
    texts = [""] * 4
    for chunk in client.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_chats(client):
    request = {"model": "run", "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}], "max_tokens": 16,
               "seed": 5, "extra_body": {"top_k": 20}}
    whole = client.chat.completions.create(**request, logprobs=True, top_logprobs=3)
    message = whole.choices[0].message
    assert message.role == "assistant" and len(whole.choices[0].logprobs.content[0].top_logprobs) == 3
    text, usage = "", None
    for chunk in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == message.content and usage == whole.usage


def test_a_stream_that_is_closed_frees_its_place(client, server):
    stream = client.completions.create(model="run", prompt="The", max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    from server import wait_for
    wait_for(server.is_idle, "an idle server")


def test_errors(client, run):
    with pytest.raises(openai.BadRequestError, match="not in .0, 1.") as caught:
        client.completions.create(model="run", prompt="a", top_p=3)
    assert caught.value.param == "top_p" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="this server has 'run'"):
        client.completions.create(model="gpt-4", prompt="a")
    with serving(run, "--api-key", "right") as locked:
        with pytest.raises(openai.AuthenticationError):
            client_of(locked, "wrong").models.list()
        assert client_of(locked, "right").models.list().data


TOOLS = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"type": "string", "enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False}}}]


@pytest.fixture(scope="module")
def caller(run, tmp_path_factory):
    """A client of a server whose template writes tools."""
    template = tmp_path_factory.mktemp("template") / "hermes.jinja"
    template.write_text(HERMES)
    with serving(run, "--chat-template", template) as server:
        yield client_of(server)


def test_functions(caller):
    messages = [{"role": "user", "content": "Weather?"}]
    request = {"model": "run", "tools": TOOLS, "tool_choice": "required", "max_tokens": 300, "seed": 1, "parallel_tool_calls": False}
    choice = caller.chat.completions.create(messages=messages, **request).choices[0]
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert choice.finish_reason == "tool_calls" and call.function.name == "weather" and arguments["unit"] in ("C", "F")
    # The answer goes back as the client has it, with the result.
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "17"}]
    assert caller.chat.completions.create(model="run", messages=messages, tools=TOOLS, max_tokens=8).choices[0].message is not None
    with caller.chat.completions.stream(messages=messages[:1], **request) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and final.message.tool_calls[0].function.arguments == call.function.arguments
    assert final.message.tool_calls[0].function.parsed_arguments == arguments


def test_parsed_answers(client):
    pydantic = pytest.importorskip("pydantic")
    Colour = __import__("enum").Enum("Colour", {"red": "red", "green": "green"})
    Part = pydantic.create_model("Part", size=(int, ...), colour=(Colour, ...))
    Whole = pydantic.create_model("Whole", part=(Part, ...), other=(Part | None, ...), done=(bool, ...))
    for seed in range(4):
        parsed = client.chat.completions.parse(model="run", messages=[{"role": "user", "content": "A whole"}], response_format=Whole, max_tokens=400, seed=seed)
        assert isinstance(parsed.choices[0].message.parsed, Whole)
    plain = client.chat.completions.create(model="run", messages=[{"role": "user", "content": "JSON"}], max_tokens=5, response_format={"type": "json_object"})
    assert plain.choices[0].message.content.lstrip().startswith("{")


def test_embeddings(client):
    """The client asks for base64 unless told otherwise."""
    many = client.embeddings.create(model="run", input=["The cat", "dog"])
    floats = client.embeddings.create(model="run", input="The cat", encoding_format="float")
    assert len(many.data) == 2 and many.usage.total_tokens > 0
    assert all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5) for a, b in zip(many.data[0].embedding, floats.data[0].embedding))
    with pytest.raises(openai.BadRequestError, match="dimensions is not supported"):
        client.embeddings.create(model="run", input="a", dimensions=8)
