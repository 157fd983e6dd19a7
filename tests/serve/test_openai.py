"""/v1/completions and /v1/chat/completions."""

import json
import math

import pytest
from server import DEVICE, POSITIONS, needs_binary, serving, teratron

pytestmark = needs_binary

GREEDY = {"temperature": 0, "max_tokens": 8}


def text(reply):
    assert reply.status == 200, reply.text
    return reply.json["choices"][0]["text"]


def test_an_answer(server):
    reply = server.completion(model=server.name, prompt="The cat", **GREEDY).json
    assert list(reply) == ["id", "object", "created", "model", "choices", "usage"]
    assert reply["object"] == "text_completion" and reply["id"].startswith("cmpl-") and reply["model"] == server.name
    (choice,) = reply["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] in ("stop", "length") and choice["logprobs"] is None
    usage = reply["usage"]
    assert usage["completion_tokens"] <= 8 and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_texts_are_those_of_the_command(server, run, tmp_path):
    prompts = ["The cat", "The owl likes", "dog"]
    options = [{"top_k": 1}, {"top_p": 0.8, "seed": 7}, {"temperature": 0.7, "top_k": 5, "seed": 9, "stop": ["e", "\n"]}]
    lines = [{"prompt": prompt, "max_new_tokens": 20, **each} for prompt in prompts for each in options]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    teratron("generate", "--load", run, "--device", DEVICE, "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for line, answer in zip(lines, answers):
        fields = {"max_tokens": line.pop("max_new_tokens"), **line}
        reply = server.completion(**fields).json["choices"][0]
        assert (reply["text"], reply["finish_reason"]) == (answer["text"], answer["finish_reason"]), fields


def test_prompts_of_every_form(server):
    one, other = (text(server.completion(prompt=prompt, **GREEDY)) for prompt in ("The cat", "dog"))
    choices = server.completion(prompt=["The cat", "dog"], **GREEDY).json["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, one), (1, other)]
    ids = [8, 9, 10]
    assert text(server.completion(prompt=ids, **GREEDY)) == text(server.completion(prompt=[ids], **GREEDY))
    assert server.completion(prompt="", **GREEDY).status == 200
    assert server.completion(prompt=[ids, ids], n=2, max_tokens=3).json["choices"][3]["index"] == 3


def test_samples_differ_and_seeds_repeat_them(server):
    request = {"prompt": "The", "n": 3, "seed": 11, "max_tokens": 16}
    first, second = (server.completion(**request).json["choices"] for _ in range(2))
    assert first == second and len({choice["text"] for choice in first}) == 3
    assert text(server.completion(**{**request, "seed": 12})) != first[0]["text"]


def test_log_probabilities(server):
    whole = server.completion(prompt="The cat", echo=True, logprobs=2, **GREEDY).json["choices"][0]
    assert whole["text"].startswith("The cat")
    values = whole["logprobs"]
    assert list(values) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"] and len({len(each) for each in values.values()}) == 1
    assert values["token_logprobs"][0] is None and values["top_logprobs"][0] is None and values["text_offset"][0] == 0
    for token, value, top in list(zip(*list(values.values())[:3]))[1:]:
        assert top[token] == value and len(top) in (2, 3) and max(top.values()) <= 0
    answer = server.completion(prompt="The cat", logprobs=2, **GREEDY).json["choices"][0]["logprobs"]
    count = len(answer["tokens"])
    assert values["token_logprobs"][-count:] == pytest.approx(answer["token_logprobs"], abs=1e-5)
    # Greedy: each chosen token is the most probable.
    assert all(max(top, key=top.get) == token for token, top in zip(answer["tokens"], answer["top_logprobs"]))
    scored = server.completion(prompt="The cat", echo=True, logprobs=0, max_tokens=0).json
    assert scored["choices"][0]["text"] == "The cat" and scored["usage"]["completion_tokens"] == 0
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(values["token_logprobs"][:-count], abs=1e-5)


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": 3}, {"stop": ["t", "fi"]}, {"echo": True, "n": 2}, {"prompt": ["dog", "owl"]}])
def test_streams_are_whole_answers_in_pieces(server, more):
    request = {"prompt": "The", "seed": 3, "max_tokens": 24, "stream_options": {"include_usage": True}, **more}
    whole = server.completion(**{**request, "stream_options": None}).json
    *events, last = server.stream(**request)
    assert last["usage"] == whole["usage"] and last["choices"] == []
    for choice in whole["choices"]:
        pieces = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [choice["finish_reason"]]
        if "logprobs" in more:
            parts = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
            joined = {name: sum((part[name] for part in parts), []) for name in choice["logprobs"]}
            assert joined == choice["logprobs"]


def test_a_chat_is_the_completion_of_its_template(server):
    prompt = "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    reply = server.ask("POST", "/v1/chat/completions", {"messages": messages, **GREEDY}).json
    assert reply["object"] == "chat.completion" and reply["choices"][0]["message"]["role"] == "assistant"
    expected = server.completion(prompt=prompt, stop=["<|im_end|>"], **GREEDY).json
    assert reply["choices"][0]["message"]["content"] == expected["choices"][0]["text"]
    assert reply["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


def test_a_chat_streams_with_log_probabilities(server):
    request = {"seed": 4, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    whole = server.chat(**request).json["choices"][0]
    first, *events = server.stream("/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], **request)
    assert first["object"] == "chat.completion.chunk" and first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["delta"].get("content", "") for piece in pieces) == whole["message"]["content"]
    assert sum((piece["logprobs"]["content"] for piece in pieces if piece["logprobs"]), []) == whole["logprobs"]["content"]
    for entry in whole["logprobs"]["content"]:
        assert list(entry) == ["token", "logprob", "bytes", "top_logprobs"] and len(entry["top_logprobs"]) == 2
        assert math.isclose(entry["top_logprobs"][0]["logprob"], max(each["logprob"] for each in entry["top_logprobs"]))


BAD = [("prompt", {}, "there is no prompt"), ("prompt", {"prompt": 5}, "prompt is not a text"), ("prompt", {"prompt": []}, "prompt is not"),
       ("prompt", {"prompt": [["a"], 5]}, "prompt is not"), ("prompt", {"prompt": [300]}, "token 300 is not in the vocabulary"),
       ("prompt", {"prompt": [1 << 40]}, "prompt is not"), ("max_tokens", {"max_tokens": 1.5}, "max_tokens is not an integer"),
       ("max_tokens", {"max_tokens": -1}, "max_tokens: -1 is below 0"), ("max_tokens", {"max_tokens": 0}, "no new tokens are asked for"),
       ("temperature", {"temperature": "hot"}, "temperature is not a number"), ("temperature", {"temperature": -1}, "not in [0, 100]"),
       ("temperature", {"temperature": True}, "temperature is not a number"), ("top_p", {"top_p": 0}, "not in (0, 1]"), ("top_p", {"top_p": 2}, "not in (0, 1]"),
       ("logit_bias", {"logit_bias": {"x": 1}}, "Write ids of tokens"), ("stop", {"stop": [1]}, "stop is not"), ("stop", {"stop": [""]}, "ends every answer"),
       ("stop", {"stop": ["x"] * 17}, "17 texts"), ("n", {"n": 0}, "below 1"), ("n", {"n": 257}, "257 sequences at once"),
       ("top_logprobs", {"logprobs": 21}, "not in [0, 20]"), ("best_of", {"best_of": 3}, "best_of is not supported"),
       ("presence_penalty", {"presence_penalty": 3}, "not in [-2, 2]"), ("min_p", {"min_p": 2}, "not in [0, 1]"), ("temprature", {"temprature": 1}, "Did you mean temperature?"),
       ("stream", {"stream": "yes"}, "stream is not true or false"), ("seed", {"seed": 1 << 64}, "seed is not an integer"),
       ("prompt", {"max_tokens": POSITIONS}, "maximum context length is 2048")]


@pytest.mark.parametrize("param, fields, says", BAD)
def test_wrong_fields_are_named(server, param, fields, says):
    reply = server.completion(**({"prompt": "The", **fields} if fields else {}))
    assert reply.status == 400 and says in reply.message, reply.text
    assert reply.json["error"]["param"] == param and reply.json["error"]["type"] == "invalid_request_error"


def test_sampling_fields_of_clients(server):
    """What OpenAI's, LangChain's and vLLM's clients set: biases and penalties move the choice as they say."""
    whole = {"prompt": "The cat", "max_tokens": 6, "temperature": 0}
    plain = server.completion(**whole, logprobs=0).json["choices"][0]
    token = server.ask("POST", "/tokenize", {"prompt": " dog"}).json["tokens"][-1]
    forced = server.completion(**whole, logit_bias={str(token): 100}).json["choices"][0]["text"]
    assert forced == server.ask("POST", "/detokenize", {"tokens": [token] * 6}).json["prompt"]
    assert forced != plain["text"]
    changing = server.completion(**whole, logit_bias={str(token): 3}, presence_penalty=2, frequency_penalty=2, repetition_penalty=50).json
    ids = server.ask("POST", "/tokenize", {"prompt": changing["choices"][0]["text"]}).json["tokens"]
    assert ids.count(token) < 6
    every = {"prompt": "The cat", "max_tokens": 6, "seed": 3, "top_p": 0.9, "top_k": 20, "min_p": 0.01}
    assert server.completion(**every).json["choices"] == server.completion(**every).json["choices"]
    greedy = server.completion(**{**every, "min_p": 1}).json["choices"][0]["text"]
    assert greedy == server.completion(**{**whole, "seed": 3}).json["choices"][0]["text"]


def test_texts_and_tokens(server):
    reply = server.ask("POST", "/tokenize", {"prompt": "The dog eats", "model": "m"}).json
    assert reply["count"] == len(reply["tokens"]) > 0 and reply["max_model_len"] == POSITIONS
    assert server.ask("POST", "/detokenize", {"tokens": reply["tokens"]}).json == {"prompt": "The dog eats"}
    chat = server.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json["tokens"]
    assert server.ask("POST", "/detokenize", {"tokens": chat}).json["prompt"] == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    for body, says in [({}, "neither prompt nor messages"), ({"prompt": "a", "colour": 1}, "colour")]:
        reply = server.ask("POST", "/tokenize", body)
        assert reply.status == 400 and says in reply.message
    assert "no token" in server.ask("POST", "/detokenize", {"tokens": [1 << 30]}).message


def test_all_that_is_wrong_is_said_at_once(server):
    message = server.completion(prompt="a", temperature="x", n="y", colour=1).message
    assert all(word in message for word in ("temperature", "n is not", "colour"))


@pytest.mark.parametrize("body, says", [
    ({}, "there are no messages"), ({"messages": []}, "messages is not"), ({"messages": [5]}, "messages[0] is not an object"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"), ({"messages": [{"content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "tool_calls"), ({"max_tokens": 0}, "below 1"),
    ({"top_logprobs": 2}, "without logprobs"), ({"tools": [{}]}, "tools[0] is not a function with a name")])
def test_wrong_chats(server, body, says):
    full = body if not body or "messages" in body else {"messages": [{"role": "user", "content": "a"}], **body}
    reply = server.ask("POST", "/v1/chat/completions", full)
    assert reply.status == 400 and says in reply.message, reply.text


@pytest.mark.parametrize("name", ["llama2", "gemma"])
def test_roles_out_of_order(run, name):
    with serving(run, "--chat-template", name) as server:
        assert server.ask("GET", "/v1/models").json["data"][0]["chat_template"] == name
        messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        reply = server.ask("POST", "/v1/chat/completions", {"messages": messages})
        assert reply.status == 400 and reply.json["error"]["param"] == "messages" and "messages[1]" in reply.message and "'assistant' is next" in reply.message
