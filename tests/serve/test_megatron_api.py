"""PUT /api: Megatron-LM's text generation server."""

import gzip
import json
import math

import pytest
from server import POSITIONS, needs_binary, serving, teratron

pytestmark = needs_binary

# In the order of the checks: the fields, the text, the status.
BAD = [({}, "prompts argument required", 400),
       ({"prompts": ["a"], "max_len": 4}, "max_len is no longer used.  Replace with tokens_to_generate", 400),
       ({"prompts": ["a"], "sentences": ["a"]}, "sentences is no longer used.  Replace with prompts", 400),
       ({"prompts": "a"}, "prompts is not a list of strings", 400),
       ({"prompts": [1]}, "prompts is not a list of strings", 400),
       ({"prompts": []}, "prompts is empty", 400),
       ({"prompts": ["a"] * 129}, "Maximum number of prompts is 128", 400),
       ({"tokens_to_generate": 1.0}, "tokens_to_generate must be an integer greater than 0", 200),
       ({"tokens_to_generate": -1}, "tokens_to_generate must be an integer greater than or equal to 0", 200),
       ({"logprobs": 1}, "logprobs must be a boolean value", 200),
       ({"tokens_to_generate": 0}, "tokens_to_generate=0 implies logprobs should be True", 200),
       ({"temperature": 0}, "temperature must be a positive number less than or equal to 100.0", 200),
       ({"temperature": "1"}, "temperature must be a positive number less than or equal to 100.0", 200),
       ({"temperature": 101}, "temperature must be a positive number less than or equal to 100.0", 200),
       ({"top_k": 1.5}, "top_k must be an integer equal to or greater than 0 and less than or equal to 1000", 200),
       ({"top_k": 1001}, "top_k must be equal to or greater than 0 and less than or equal to 1000", 200),
       ({"top_p": 1}, "top_p must be a positive float less than or equal to 1.0", 200),
       ({"top_p": 0.5, "top_k": 2}, "cannot set both top-k and top-p samplings.", 200),
       ({"top_p": 1.5}, "top_p must be less than or equal to 1.0", 200),
       ({"top_p": 0.5, "top_p_decay": 1}, "top_p_decay must be a positive float less than or equal to 1.0", 200),
       ({"top_p_decay": 0.5}, "top_p_decay cannot be set without top_p", 200),
       ({"top_p": 0.5, "top_p_decay": 1.5}, "top_p_decay must be less than or equal to 1.0", 200),
       ({"top_p": 0.5, "top_p_bound": 1}, "top_p_bound must be a positive float less than or equal to top_p", 200),
       ({"top_p_bound": 0.5}, "top_p_bound cannot be set without top_p", 200),
       ({"top_p": 0.5, "top_p_bound": 0.6}, "top_p_bound must be greater than 0 and less than top_p", 200),
       ({"add_BOS": 1}, "add_BOS must be a boolean value", 200),
       ({"prompts": ["a", ""]}, "Empty prompts require add_BOS=true", 200),
       ({"stop_on_double_eol": 0}, "stop_on_double_eol must be a boolean value", 200),
       ({"stop_on_eol": 0}, "stop_on_eol must be a boolean value", 200),
       ({"prevent_newline_after_colon": 0}, "prevent_newline_after_colon must be a boolean value", 200),
       ({"random_seed": 1.5}, "random_seed must be integer", 200),
       ({"random_seed": -1}, "random_seed must be a positive integer", 200),
       ({"no_log": 1}, "no_log must be a boolean value", 200),
       ({"beam_width": 1.5}, "beam_width must be integer", 200),
       ({"beam_width": 0}, "beam_width must be an integer > 1", 200),
       ({"beam_width": 2, "prompts": ["a", "b"]}, "When doing beam_search, batch size must be 1", 200),
       ({"stop_token": "x"}, "stop_token must be an integer", 200),
       ({"length_penalty": 1}, "length_penalty must be a float", 200),
       ({"tokens_to_generate": POSITIONS}, "Length of prompt + tokens_to_generate longer than allowed", 200),
       ({"prompts": ["The cat " * POSITIONS]}, "Length of prompt + tokens_to_generate longer than allowed", 200),
       ({"beam_width": 2, "prompts": ["The cat " * POSITIONS]}, "context length + tokens_to_generate too large", 200)]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_errors_have_megatrons_texts_and_status(server, number):
    fields, text, status = BAD[number]
    reply = server.api(**({"prompts": ["a"], **fields} if fields else {}))
    assert (reply.json, reply.status) == (text, status)


def test_the_first_of_several_errors_is_the_answer(server):
    for (first, text, _), (second, _, _) in zip(BAD[7:], BAD[12:]):
        if not first.keys() & second.keys() and "top" not in str(first) + str(second):
            assert server.api(**{"prompts": ["a"], **second, **first}).json == text, (first, second)


def test_answers_hold_the_prompt_and_its_continuation(server):
    prompts = ["The cat", "The owl likes"]
    answer = server.api(prompts=prompts, tokens_to_generate=6, top_k=1, logprobs=True).json
    assert list(answer) == ["text", "segments", "logprobs"]
    for prompt, text, segments, logprobs in zip(prompts, answer["text"], answer["segments"], answer["logprobs"]):
        assert text.startswith(prompt) and len(text) > len(prompt)
        assert len(logprobs) == len(segments) - 1 and max(logprobs) < 0
        assert "\ufffd" in text or "".join(segments) == text
    alone = [server.api(prompts=[prompt], tokens_to_generate=6, top_k=1).json for prompt in prompts]
    assert [each["text"][0] for each in alone] == answer["text"] and alone[0]["logprobs"] is None
    assert server.completion(prompt=prompts[0], max_tokens=6, temperature=0).json["choices"][0]["text"] == answer["text"][0][len(prompts[0]):]


@pytest.mark.parametrize("headers", [
    {"Content-Type": "application/json; charset=UTF-8", "Accept-Encoding": "gzip, deflate", "Accept": "*/*", "Connection": "keep-alive"},
    {"Content-Type": "application/json", "Connection": "close"}], ids=["requests", "urllib"])
def test_text_generation_cli(server, headers):
    """What Megatron-LM's text_generation_cli.py HOST:PORT sends, and what it prints of the answer."""
    body = json.dumps({"prompts": ["The cat"], "tokens_to_generate": 5})
    connection = server.send("PUT", "/api", body, headers)
    response = connection.getresponse()
    data = response.read()
    answer = json.loads(gzip.decompress(data) if response.headers.get("Content-Encoding") == "gzip" else data)
    assert response.status == 200 and answer["text"][0].startswith("The cat") and len(answer["text"]) == 1
    refused = server.ask("PUT", "/api", json.dumps({"prompts": [""], "tokens_to_generate": 5}), {**headers, "Accept-Encoding": ""})
    assert refused.status == 200 and refused.json == "Empty prompts require add_BOS=true"


def test_scores_of_a_prompt(server):
    answer = server.api(prompts=["The cat sees mice."], tokens_to_generate=0, logprobs=True).json
    assert answer["text"] == ["The cat sees mice."] and len(answer["logprobs"][0]) == len(answer["segments"][0]) - 1


def test_seeds_and_begin_of_text(server):
    request = {"prompts": ["The"], "tokens_to_generate": 12, "random_seed": 5, "top_p": 0.9, "top_p_decay": 0.9, "top_p_bound": 0.2}
    assert server.api(**request).json == server.api(**request).json
    assert len({server.api(prompts=["The"], tokens_to_generate=12).json["text"][0] for _ in range(4)}) > 1
    assert server.api(prompts=[""], add_BOS=True, tokens_to_generate=2).json["segments"][0][0] == "<|endoftext|>"


def test_a_beam_is_answered_whole(server):
    answer = server.api(prompts=["The cat"], tokens_to_generate=5, beam_width=3, length_penalty=1.0).json
    assert list(answer) == ["text", "segments", "scores"]
    assert len(answer["text"]) == 3 and answer["scores"] == sorted(answer["scores"], reverse=True)
    assert all(math.isfinite(score) for score in answer["scores"])


def test_a_beam_wider_than_the_engine_opened_with(server, run):
    """Accelerate's example, between other requests; a limit that the user set is kept."""
    request = {"prompts": ["The purpose of life is"], "tokens_to_generate": 8, "beam_width": 20, "length_penalty": 1.5}
    before = server.api(prompts=["The cat"], tokens_to_generate=6, top_k=1).json
    answer = server.api(**request).json
    assert len(answer["text"]) == 20 and answer["scores"] == sorted(answer["scores"], reverse=True)
    assert server.completion(prompt="The", n=18, max_tokens=3).json["choices"][17]["index"] == 17
    assert server.api(prompts=["The cat"], tokens_to_generate=6, top_k=1).json == before
    with serving(run, "--inference-max-requests", "4") as small:
        refused = small.api(**request)
        assert "a request may have 4" in str(refused.json) and "--inference-max-requests" in str(refused.json)


def test_strict_errors_token_limit_and_log(run, tmp_path):
    with serving(run, "--api-strict", "--max-tokens-to-oom", "100", log=tmp_path / "err") as server:
        assert server.api(prompts=["a"], temperature=0).status == 400
        reply = server.api(prompts=["a", "The cat"], tokens_to_generate=60)
        assert reply.json.startswith("Too many tokens.  1") and reply.json.endswith(" is greater than 100")
        assert server.completion(prompt="a", max_tokens=101).status == 413
        assert server.api(prompts=["a\u001b[2J"], tokens_to_generate=1).status == 200
        assert server.api(prompts=["silent"], tokens_to_generate=1, no_log=True).status == 200
        log = server.stop()
        assert "request IP: 127.0.0.1" in log and json.dumps("a\u001b[2J") in log and "start time:  2" in log and "silent" not in log


def test_a_checkpoint_of_megatron_is_served_as_it_is(run, server, tmp_path):
    """The same answers as of the model that it was exported from."""
    teratron("ckpt", "convert", "--load", run, "--to-megatron", tmp_path / "theirs", "--megatron-names", "v2")
    flags = ["--load", tmp_path / "theirs", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", run.parent / "tokenizer"]
    question = {"prompts": ["The cat sees"], "tokens_to_generate": 8, "top_k": 1}
    with serving(flags) as other:
        assert any("is a checkpoint of Megatron-LM" in line for line in other.lines)
        assert other.name == "theirs" and other.api(**question).json == server.api(**question).json
