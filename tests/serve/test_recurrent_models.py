"""Models whose layers keep states of constant size: served, streamed, cancelled, evaluated; texts that depend on nothing else."""

import contextlib
import json
import math
import os
import time

import pytest
from server import CHATML, DEVICE, TEXT, needs_binary, serving, teratron, wait_for

pytestmark = needs_binary

MODEL = ["--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 64, "--max-position-embeddings", 4096, "--normalization", "RMSNorm",
         "--mamba-num-heads", 4, "--mamba-head-dim", 16, "--mamba-num-groups", 2, "--mamba-state-dim", 8, "--linear-num-key-heads", 2,
         "--linear-num-value-heads", 4, "--linear-key-head-dim", 8, "--linear-value-head-dim", 8, "--init-method-std", "0.4"]
KINDS = {"mamba": ["mamba", "--hybrid-layer-pattern", "MM", "--position-embedding-type", "none"],
         "hybrid": ["mamba", "--hybrid-layer-pattern", "M*-GH", "--position-embedding-type", "none"],
         "gdn": ["gpt", "--num-layers", 2, "--experimental-attention-variant", "gdn", "--linear-attention-freq", 2,
                 "--attention-output-gate", "--position-embedding-type", "rope"]}
LONG = bool(os.environ.get("TERATRON_LONG_TESTS"))
SLOW = {"TERATRON_FAULT": "generate.step:delay=30"}
PROMPTS = ["The cat", "T", TEXT * 3, "The owl likes mice.\nThe dog"]  # one longer than a step's share


# The hybrid has layers of every kind; the others serve what is nearly the same.
@pytest.fixture(scope="module", params=KINDS if LONG else ["hybrid"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "text.txt").write_text(TEXT)
    teratron("tokenizer", "train", "--input", folder / "text.txt", "--vocab-size", "300", "--output", folder / "tokenizer", "--special-tokens",
             "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    teratron("pretrain", *KINDS[request.param], *MODEL, "--micro-batch-size", 2, "--global-batch-size", 2, "--lr", "1e-2", "--eval-iters", 0, "--device",
             "cpu", "--num-threads", 1, "--mock-data", "--train-iters", 2, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
             folder / "tokenizer", "--save", folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def server(run):
    with serving(run) as started:
        yield started


def commands_answers(run, folder, lines, *flags):
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    teratron("generate", "--load", run, "--device", DEVICE, "--num-threads", 1, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl", *flags)
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def lines_of(**options):
    return [{"prompt": prompt, "max_new_tokens": 24, **options} for prompt in PROMPTS]


def test_a_text_is_its_own(run, tmp_path):
    """Alone, in a batch, with few places so that slots are taken again."""
    lines = lines_of(top_k=1, logprobs=True)
    together = commands_answers(run, tmp_path, lines)
    alone = [commands_answers(run, tmp_path, [line])[0] for line in lines]
    one_by_one = commands_answers(run, tmp_path, lines, "--inference-max-requests", 1)
    for answers in (alone, one_by_one):
        for answer, expected in zip(answers, together, strict=True):
            assert answer["tokens"] == expected["tokens"] and answer["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-4)


def test_beams_and_samples_share_a_prompt(run, tmp_path):
    beams = commands_answers(run, tmp_path, lines_of(num_beams=3, num_return_sequences=3))
    assert all(len({tuple(choice["tokens"]) for choice in answer["choices"]}) == 3 for answer in beams)
    alone = commands_answers(run, tmp_path, [{"prompt": PROMPTS[2], "max_new_tokens": 24, "num_beams": 3, "num_return_sequences": 3}])[0]
    assert [choice["tokens"] for choice in alone["choices"]] == [choice["tokens"] for choice in beams[2]["choices"]]
    samples = commands_answers(run, tmp_path, [{"prompt": "The", "max_new_tokens": 12, "num_return_sequences": 4, "seed": 5}] * 2)
    assert samples[0]["choices"] == samples[1]["choices"]


def test_a_server_answers_as_the_command(run, server, tmp_path):
    expected = commands_answers(run, tmp_path, lines_of(top_k=1))
    replies = [server.send("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 24, "top_k": 1}) for prompt in PROMPTS]
    for connection, answer in zip(replies, expected):
        with contextlib.closing(connection):
            assert json.loads(connection.getresponse().read())["choices"][0]["text"] == answer["text"]
    events = server.stream(prompt=PROMPTS[3], max_tokens=24, top_k=1)
    assert "".join(event["choices"][0]["text"] for event in events) == expected[3]["text"]
    assert server.chat("Hello", max_tokens=4).status == 200


def test_who_leaves_frees_a_state(run):
    """Slots are taken by others, from whose texts nothing of the first ones is left."""
    with serving(run, "--inference-max-requests", 2, **SLOW) as server:
        fields = {"prompt": "The cat", "max_tokens": 8, "top_k": 1, "ignore_eos": True}
        expected = server.completion(**fields).json["choices"][0]["text"]
        for _ in range(2):
            connections = [server.send("POST", "/v1/completions", {"prompt": "owl " * 40, "max_tokens": 3000, "stream": True, "ignore_eos": True})
                           for _ in range(2)]
            responses = [connection.getresponse() for connection in connections]
            assert all(response.readline().startswith(b"data: ") for response in responses)
            for leaving in (*connections, *responses):
                leaving.close()
            wait_for(server.is_idle, "an idle server")
            assert server.completion(**fields).json["choices"][0]["text"] == expected


def test_evaluation_scores_what_generation_says(run, tmp_path):
    answer = commands_answers(run, tmp_path, [{"prompt": PROMPTS[3], "max_new_tokens": 6, "top_k": 1, "logprobs": True}])[0]
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": PROMPTS[3], "answer": answer["text"].strip() or "x", "max_new_tokens": 6}) + "\n"
                                         + json.dumps({"context": "The cat", "choices": [" sees fish", " x"], "answer": 0}) + "\n")
    teratron("eval", "--load", run, "--device", DEVICE, "--num-threads", 1, "--data", tmp_path / "data.jsonl", "--json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures and all(math.isfinite(value) for value in figures.values() if isinstance(value, float))


def test_the_time_of_a_token_does_not_grow(run, tmp_path):
    """A model of states alone; twenty times the context. Generous: both runs load the program."""
    if "mamba" not in str(run.parent.name):
        pytest.skip("keys and values grow" if LONG else "times a model without attention (--long)")
    seconds = []
    for count in (40, 800):
        begin = time.monotonic()
        commands_answers(run, tmp_path, [{"tokens": [7] * 4 * count, "max_new_tokens": 200, "top_k": 1, "seed": 2}])
        seconds.append(time.monotonic() - begin)
    assert seconds[1] < 4 * seconds[0] + 2
