"""LangChain's classes for OpenAI's interface: chats, streams, functions, structured answers, embeddings."""

import contextlib
import json

import pytest
from server import HERMES, needs_binary, serving

langchain_openai = pytest.importorskip("langchain_openai", reason="needs tests/clients/requirements.txt (./run test --long)")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")
pytestmark = needs_binary


class Weather(pydantic.BaseModel):
    """The weather of a city."""
    unit: str = pydantic.Field(max_length=3, description="C or F")
    days: int


@pytest.fixture(scope="module")
def address(run, tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "hermes.jinja"
    template.write_text(HERMES)
    with serving(run, "--chat-template", template) as server:
        yield {"base_url": f"http://{server.host}:{server.port}/v1", "api_key": "none", "max_retries": 0, "model": "run"}


def test_chats_and_streams(address):
    chat = langchain_openai.ChatOpenAI(**address, max_tokens=16, seed=5, temperature=1)
    messages = [("system", "Be brief"), ("human", "Hello")]
    whole = chat.invoke(messages)
    assert whole.usage_metadata["output_tokens"] <= 16
    assert "".join(chunk.content for chunk in chat.stream(messages)) == whole.content
    assert "".join(chunk.content for chunk in chat.stream(messages, stream_usage=True)) == whole.content


def test_completions(address):
    model = langchain_openai.OpenAI(**address, max_tokens=8, temperature=0)
    assert model.invoke("The cat") == "".join(model.stream("The cat"))


def test_functions(address):
    chat = langchain_openai.ChatOpenAI(**address, max_tokens=300, seed=2).bind_tools([Weather], tool_choice="any")
    answer = chat.invoke("Rome?")
    assert answer.tool_calls and all(call["name"] == "Weather" for call in answer.tool_calls)
    Weather(**answer.tool_calls[0]["args"])
    gathered = None
    for chunk in chat.stream("Rome?"):
        gathered = chunk if gathered is None else gathered + chunk
    assert [(call["name"], call["args"]) for call in gathered.tool_calls] == [(call["name"], call["args"]) for call in answer.tool_calls]
    from langchain_core.messages import HumanMessage, ToolMessage
    results = [ToolMessage(content="17", tool_call_id=call["id"]) for call in answer.tool_calls]
    again = langchain_openai.ChatOpenAI(**address, max_tokens=8).invoke([HumanMessage("Rome?"), answer, *results])
    assert again.content is not None


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_answers(address, method):
    chat = langchain_openai.ChatOpenAI(**address, max_tokens=300, seed=2)
    assert isinstance(chat.with_structured_output(Weather, method=method).invoke("Weather in Rome"), Weather)


def test_json_mode(address, server):
    """Any object. LangChain refuses those that are cut, so that the random model is led to the ends of strings and objects."""
    ends = {str(token): 6 for text in ('"', "}", "]") for token in server.ask("POST", "/tokenize", {"prompt": text}).json["tokens"]}
    model = langchain_openai.ChatOpenAI(**address, max_tokens=300, logit_bias=ends)
    found = []
    for seed in range(12):
        with contextlib.suppress(openai.LengthFinishReasonError):
            found.append(json.loads(model.bind(response_format={"type": "json_object"}, seed=seed).invoke("Weather as JSON").content))
    assert found and all(isinstance(each, dict) for each in found)


def test_embeddings(address):
    """LangChain cuts texts by OpenAI's tokenizer unless told not to."""
    model = langchain_openai.OpenAIEmbeddings(**address, check_embedding_ctx_length=False)
    first, second = model.embed_documents(["The cat", "dog"])
    assert len(first) == len(second) == 32 and model.embed_query("The cat") == pytest.approx(first, rel=1e-4, abs=1e-5)
