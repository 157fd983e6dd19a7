"""/v1/embeddings: the mean of the last states, compared with transformers'."""

import base64
import json
import struct

import pytest
from server import POSITIONS, needs_binary, serving, teratron

pytestmark = needs_binary


def embed(server, given, **fields):
    reply = server.ask("POST", "/v1/embeddings", {"input": given, **fields})
    assert reply.status == 200, reply.text
    return reply.json


def test_inputs_of_every_form(server):
    tokens = server.ask("POST", "/tokenize", {"prompt": "The owl likes mice"}).json["tokens"]
    one = embed(server, "The owl likes mice", model="run", user="u")
    (entry,) = one["data"]
    assert one["object"] == "list" and one["model"] == "run" and entry["object"] == "embedding" and entry["index"] == 0
    assert one["usage"] == {"prompt_tokens": len(tokens), "total_tokens": len(tokens)} and len(entry["embedding"]) == 32
    assert embed(server, tokens)["data"] == one["data"]
    many = embed(server, ["dog", "The owl likes mice", "a"])
    assert [each["index"] for each in many["data"]] == [0, 1, 2]
    assert many["data"][1]["embedding"] == pytest.approx(entry["embedding"], rel=1e-5, abs=1e-6)
    assert embed(server, [tokens, [3]])["data"][0]["embedding"] == pytest.approx(entry["embedding"], rel=1e-5, abs=1e-6)
    packed = embed(server, "The owl likes mice", encoding_format="base64")["data"][0]["embedding"]
    assert struct.unpack("<32f", base64.b64decode(packed)) == pytest.approx(entry["embedding"], rel=1e-6)


def test_the_mean_of_the_last_states(server, run, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    teratron("ckpt", "convert", "--to-hf", tmp_path / "hf", "--load", run)
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    # The longer one is read in several steps.
    for ids in ([5], [3, 1, 4, 1, 5, 9], [i % 200 for i in range(1500)], [7] * POSITIONS):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).last_hidden_state[0].mean(0).tolist()
        assert embed(server, ids)["data"][0]["embedding"] == pytest.approx(expected, rel=1e-3, abs=2e-4)


def test_they_join_generation_and_stages(server, run):
    given = ["The cat", "dog " * 50]
    alone = [each["embedding"] for each in embed(server, given)["data"]]
    connections = [server.send("POST", "/v1/completions", {"prompt": "The", "max_tokens": 40, "seed": i}) for i in range(3)]
    together = [each["embedding"] for each in embed(server, given)["data"]]
    for connection in connections:
        assert json.loads(connection.getresponse().read())["choices"]
    assert together[0] == pytest.approx(alone[0], rel=1e-4, abs=1e-5) and together[1] == pytest.approx(alone[1], rel=1e-4, abs=1e-5)
    with serving(run, "--pp", "2", launch=("launch", "--nproc-per-node", "2", "--")) as staged:
        for mine, other in zip(alone, embed(staged, given)["data"]):
            assert other["embedding"] == pytest.approx(mine, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("fields, param, says", [
    ({}, "input", "there is no input"), ({"input": ""}, "input", "a text is empty"), ({"input": []}, "input", "input is not a text"),
    ({"input": ["a", ""]}, "input", "a text is empty"), ({"input": "a", "dimensions": 8}, "dimensions", "dimensions is not supported"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format", "there is no encoding_format"), ({"input": "a", "inptu": 1}, "inptu", "unknown field"),
    ({"input": [1 << 20]}, "input", "is not in the vocabulary"), ({"input": [5] * (POSITIONS + 1)}, "input", "maximum context length")])
def test_wrong_requests(server, fields, param, says):
    reply = server.ask("POST", "/v1/embeddings", fields)
    assert reply.status == 400 and says in reply.message and reply.json["error"]["param"] == param, reply.text


def test_unknown_models(server):
    assert server.ask("POST", "/v1/embeddings", {"input": "a", "model": "x"}).status == 404
