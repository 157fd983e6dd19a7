"""The openai package, whole answers and streams, and its errors."""

import pytest
from server import needs_binary, serving

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
