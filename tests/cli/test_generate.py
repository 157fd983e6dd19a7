"""`teratron generate`: JSON lines, interruptions, layouts, and a session in a terminal."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from program import BINARY, MOCK, environment, message, needs_binary, teratron, train, wait_for
from terminal import TerminalSession

pytestmark = needs_binary

MOCK_T5 = """--encoder-num-layers 2 --decoder-num-layers 2 --hidden-size 32 --num-attention-heads 4 --kv-channels 8
    --ffn-hidden-size 64 --encoder-seq-length 16 --decoder-seq-length 16 --max-position-embeddings 16 --mock-data
    --tokenizer-type NullTokenizer --vocab-size 60 --micro-batch-size 2 --lr 1e-3 --init-method-std 0.3 --device cpu""".split()

LINES = [{"prompt": "1 2 3", "max_new_tokens": 4, "seed": 3},
         {"tokens": [5, 6], "top_k": 1, "logprobs": True, "max_new_tokens": 3},
         {"tokens": [5, 6], "num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 3},
         {"prompt": "7", "num_return_sequences": 2, "max_new_tokens": 6, "top_p": 0.9, "top_p_decay": 0.5},
         {"prompt": "7 8", "max_new_tokens": 0, "logprobs": True}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(*MOCK, "--num-layers", "4", "--train-iters", "1", "--save", folder)
    return folder


def write_lines(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def answers(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def generate(checkpoint, folder, *flags, launch=(), **expected):
    result = teratron(*launch, "generate", "--load", checkpoint, "--device", "cpu", "--input", folder / "in.jsonl", "--output",
                      folder / "out.jsonl", *flags, **expected)
    return result, answers(folder / "out.jsonl")


def test_answers_have_the_fields_of_their_requests(checkpoint, tmp_path):
    write_lines(tmp_path / "in.jsonl", LINES)
    result, (text, greedy, beams, several, scored) = generate(checkpoint, tmp_path)
    assert "5 answers" in result.stdout and "tokens/s" in result.stdout
    assert list(text) == ["text", "tokens", "finish_reason"] and text["finish_reason"] in ("stop", "length")
    assert text["text"].split() == [str(id) for id in text["tokens"] if id != 60]
    assert len(greedy["logprobs"]) == 1 + len(greedy["tokens"]) and max(greedy["logprobs"]) < 0
    assert [choice["score"] for choice in beams["choices"]] == sorted((choice["score"] for choice in beams["choices"]), reverse=True)
    assert several["choices"][0]["tokens"] != several["choices"][1]["tokens"]
    assert scored["tokens"] == [] and len(scored["logprobs"]) == 1
    assert not list(tmp_path.glob("*.partial"))


def test_bad_lines_are_errors_and_the_others_are_answered(checkpoint, tmp_path):
    bad = [({"tokns": [5]}, "unknown field 'tokns'. Did you mean tokens?"), ("nonsense", "not valid JSON"), ("[1]", "not a JSON object"),
           ({"tokens": [61], "top_k": 2, "top_p": 0.5, "temperature": 0}, "token 61 is not in the vocabulary of 61 tokens"),
           ({"tokens": [1], "temperature": "hot"}, "temperature is not a number"), ({"prompt": "one"}, "one"),
           ({"tokens": [1] * 16}, "16 tokens and the model 16 positions"), ({"tokens": [1], "num_beams": 3, "top_k": 4}, "does not sample"),
           ({"prompt": "1", "tokens": [1]}, "both given"), ({"tokens": [1], "encoder_tokens": [2]}, "encoder_tokens"),
           ({"tokens": "1 2"}, "tokens is not a list of token ids"), ({}, "neither prompt nor tokens")]
    write_lines(tmp_path / "in.jsonl", [LINES[0], *[line for line, _ in bad], LINES[0]])
    result, lines = generate(checkpoint, tmp_path, code=3)
    assert "out.jsonl: 2 answers," in result.stdout
    assert lines[0] == lines[-1] and "tokens" in lines[0]
    for number, ((_, says), answer) in enumerate(zip(bad, lines[1:-1]), start=2):
        assert says in answer["error"] and f"in.jsonl:{number}: " in result.stderr, (answer, result.stderr)
    assert "temperature = 0" in lines[4]["error"] and "exclude each other" in lines[4]["error"], "all that is wrong"
    for number in (6, 11):
        assert "neither" not in lines[number]["error"] and result.stderr.count(f"in.jsonl:{number + 1}: ") == 1, "one problem, one message"
    assert f"{len(bad)} of {len(lines)} lines have errors" in result.stderr


def test_requests_of_more_rows_than_the_engine_opened_with(checkpoint, tmp_path):
    """Accelerate's megatron_generate with num_beams=20, and 30 answers: a CPU opens with 16 rows."""
    wide = [{"prompt": "1 2 3", "num_beams": 20, "num_return_sequences": 20, "length_penalty": 1.5, "max_new_tokens": 4},
            {"prompt": "4 5", "num_return_sequences": 30, "max_new_tokens": 4, "seed": 5}]
    write_lines(tmp_path / "in.jsonl", [LINES[1], *wide, LINES[0]])
    _, (greedy, beams, samples, last) = generate(checkpoint, tmp_path)
    scores = [choice["score"] for choice in beams["choices"]]
    assert len(scores) == 20 and scores == sorted(scores, reverse=True) and len(samples["choices"]) == 30
    _, opened_with_40 = generate(checkpoint, tmp_path, "--inference-max-requests", "40")
    assert opened_with_40[2] == samples and opened_with_40[0]["tokens"] == greedy["tokens"]
    assert [choice["score"] for choice in opened_with_40[1]["choices"]] == pytest.approx(scores, abs=1e-5)
    refused, lines = generate(checkpoint, tmp_path, "--inference-max-requests", "4", code=3)
    for number in (1, 2):
        assert "a request may have 4" in lines[number]["error"] and "Raise --inference-max-requests" in lines[number]["error"]
    assert lines[0]["tokens"] == greedy["tokens"] and lines[3] == last, refused.stderr
    texts = teratron("generate", "--load", checkpoint, "--device", "cpu", "--prompt", "1 2 3", "--num-beams", "20", "--length-penalty",
                     "1.5", "--max-new-tokens", "4").stdout
    assert texts.startswith("1 2 3")
    message(teratron("generate", "--load", checkpoint, "--prompt", "1", "--num-beams", "20", "--inference-max-requests", "8", code=2),
            "--num-beams", "--inference-max-requests is 8")


def test_equal_prompts_are_different_samples(checkpoint, tmp_path):
    line = {"prompt": "1 2", "max_new_tokens": 12}
    write_lines(tmp_path / "in.jsonl", [line, line, line | {"num_return_sequences": 3}, line, line | {"seed": 4}, line | {"seed": 4}])
    _, lines = generate(checkpoint, tmp_path)
    choices = [choice["text"] for answer in lines for choice in answer.get("choices", [answer])]
    assert len(set(choices[:6])) == 6 and choices[6] == choices[7]
    said = teratron("generate", "--load", checkpoint, "--device", "cpu", "--max-new-tokens", 12, "--prompt", *["1 2"] * 3).stdout
    assert len(set(said.strip().split("\n\n"))) == 3, said


def test_lines_share_no_random_numbers(checkpoint, tmp_path):
    """So hot that a token follows from its random number alone: prompts of one length would give one text."""
    lines = [{"tokens": tokens, "max_new_tokens": 12, "temperature": 100} for tokens in ([5, 6], [7, 8], [30, 31], [5, 6])]
    write_lines(tmp_path / "in.jsonl", [*lines, *(line | {"random_seed": 8} for line in lines)])
    texts = [answer["tokens"] for answer in generate(checkpoint, tmp_path)[1]]
    pairs = [(one, other) for part in (texts[:4], texts[4:]) for i, one in enumerate(part) for other in part[:i]]
    alike = [sum(a == b for a, b in zip(*pair)) / min(map(len, pair)) for pair in pairs]
    assert max(alike[:6]) < 0.5 < min(alike[6:]), alike
    assert [answer["tokens"] for answer in generate(checkpoint, tmp_path)[1]] == texts, "the flags' seed"
    other = [answer["tokens"] for answer in generate(checkpoint, tmp_path, "--seed", "9")[1]]
    assert other[4:] == texts[4:] and all(a != b for a, b in zip(other[:4], texts[:4]))


def test_requests_at_the_edges(checkpoint, tmp_path):
    """A search without new tokens scores the prompt; the lowest temperature is greedy; a beam ends at a text."""
    prompt = {"tokens": [5, 6, 7]}
    scored = prompt | {"max_new_tokens": 0, "logprobs": True}
    greedy = prompt | {"max_new_tokens": 8}
    write_lines(tmp_path / "in.jsonl", [scored, scored | {"num_beams": 3}, greedy | {"top_k": 1}, greedy | {"temperature": 1e-310},
                                        greedy | {"temperature": 5e-324, "top_p": 0.9}, greedy | {"num_beams": 2}])
    _, lines = generate(checkpoint, tmp_path)
    assert lines[1]["logprobs"] == lines[0]["logprobs"] and lines[1]["tokens"] == []
    assert lines[2]["tokens"] == lines[3]["tokens"] == lines[4]["tokens"]
    beam = lines[5]["text"]
    middle = beam.split()[2]
    write_lines(tmp_path / "in.jsonl", [greedy | {"num_beams": 2, "stop": f" {middle} "}])
    _, (stopped,) = generate(checkpoint, tmp_path)
    assert f" {middle} " not in stopped["text"] + " "


def test_a_line_replaces_the_filter_of_the_flags(checkpoint, tmp_path):
    """top_k and top_p exclude each other: the one of a line counts, not that of the flags."""
    line = {"prompt": "1 2", "max_new_tokens": 9, "seed": 5}
    write_lines(tmp_path / "in.jsonl", [line | {"top_k": 1}, line | {"top_p": 0.3}, line | {"top_p": 0}, line])
    alone = generate(checkpoint, tmp_path)[1]
    with_top_p = generate(checkpoint, tmp_path, "--top-p", "0.3")[1]
    assert with_top_p == [alone[0], alone[1], alone[2], alone[1]]
    assert generate(checkpoint, tmp_path, "--top-k", "1")[1] == [alone[0], alone[1], alone[0], alone[0]]


@pytest.mark.parametrize("layout", [["--tp", "2"], ["--pp", "2"], ["--tp", "2", "--pp", "2"]])
def test_layouts_give_the_same_texts(checkpoint, tmp_path, layout):
    write_lines(tmp_path / "in.jsonl", LINES)
    _, alone = generate(checkpoint, tmp_path)
    ranks = 4 if len(layout) == 4 else 2
    _, cut = generate(checkpoint, tmp_path, *layout, launch=["launch", "--nproc-per-node", ranks, "--log-dir", tmp_path / "logs", "--"])
    flat = [choice for lines in (alone, cut) for answer in lines for choice in answer.get("choices", [answer])]
    half = len(flat) // 2
    for one, other in zip(flat[:half], flat[half:]):
        assert one["tokens"] == other["tokens"] and one["text"] == other["text"]
        assert one.get("logprobs", []) == pytest.approx(other.get("logprobs", []), abs=1e-5)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    teratron("pretrain", "t5", *MOCK_T5, "--train-iters", "1", "--save", folder)
    return folder


SOURCES = [{"encoder_tokens": [5, 6, 7], "tokens": [1], "top_k": 1, "max_new_tokens": 6, "logprobs": True},
           {"encoder_tokens": [5], "tokens": [1, 2], "max_new_tokens": 5, "seed": 4},
           {"prompt": "8 9 3", "tokens": [1], "num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 4},
           {"encoder_tokens": [9] * 12, "tokens": [3], "num_return_sequences": 2, "max_new_tokens": 4}]


@pytest.mark.parametrize("layout", [["--tp", "2"], ["--pp", "2"], ["--tp", "2", "--pp", "2"]])
def test_t5_answers_sources_in_every_layout(t5, tmp_path, layout):
    write_lines(tmp_path / "in.jsonl", SOURCES)
    _, alone = generate(t5, tmp_path)
    assert len(alone[0]["tokens"]) == 6 and len(alone[0]["logprobs"]) == 6
    split = ["--pipeline-model-parallel-split-rank", "1"] if "--pp" in layout else []
    launch = ["launch", "--nproc-per-node", 4 if len(layout) == 4 else 2, "--log-dir", tmp_path / "logs", "--"]
    _, cut = generate(t5, tmp_path, *layout, *split, launch=launch)
    for one, other in zip(alone, cut):
        choices = [answer.get("choices", [answer]) for answer in (one, other)]
        assert [choice["tokens"] for choice in choices[0]] == [choice["tokens"] for choice in choices[1]]
    assert cut[0]["logprobs"] == pytest.approx(alone[0]["logprobs"], abs=1e-5)


def test_t5_refuses_bad_sources(t5, tmp_path):
    bad = [({"tokens": [1]}, "neither prompt nor encoder_tokens"), ({"encoder_tokens": [5]}, "no token with which the decoder begins"),
           ({"encoder_tokens": [5], "prompt": "5", "tokens": [1]}, "both given"), ({"encoder_tokens": [], "tokens": [1]}, "no tokens"),
           ({"encoder_tokens": [5] * 17, "tokens": [1]}, "17 tokens and the model 16 positions"),
           ({"encoder_tokens": [500], "tokens": [1]}, "token 500 is not in the vocabulary"), ({"encoder_token": [5]}, "encoder_tokens?"),
           ({"encoder_tokens": 5, "tokens": [1]}, "encoder_tokens is not a list of token ids"),
           ({"encoder_tokens": [5], "tokens": "1"}, "tokens is not a list of token ids")]
    write_lines(tmp_path / "in.jsonl", [line for line, _ in bad])
    result, lines = generate(t5, tmp_path, code=3)
    for (_, says), answer in zip(bad, lines):
        assert says in answer["error"], answer
    for answer in lines[-2:]:
        assert "neither" not in answer["error"] and "begins" not in answer["error"], "one problem, one message"
    launch = ["launch", "--nproc-per-node", 2, "--log-dir", tmp_path / "logs", "--"]
    message(teratron(*launch, "generate", "--load", t5, "--device", "cpu", "--prompt", "1", "--pp", "2", code=2),
            "--pipeline-model-parallel-split-rank")
    message(teratron("generate", "--load", t5, "--device", "cpu", "--num-samples", "2", code=2), "without a source")


def test_texts_during_training(tmp_path):
    (tmp_path / "prompts").write_text("1 2 3\n4\n")
    sampling = ["--generate-interval", "2", "--generate-prompts", tmp_path / "prompts"]
    plain = train(*MOCK, "--train-iters", "4", "--log-interval", "1")
    sampled = train(*MOCK, "--train-iters", "4", "--log-interval", "1", "--run-dir", tmp_path / "run", "--tensorboard-dir",
                    tmp_path / "tensorboard", *sampling)
    losses = [[line.split("lm loss:")[1].split("|")[0] for line in result.stdout.splitlines() if "lm loss:" in line]
              for result in (plain, sampled)]
    assert losses[0] == losses[1] and len(losses[0]) >= 4
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    texts = [(event["iteration"], event["prompt"]) for event in events if event["type"] == "sample"]
    assert texts == [(2, "1 2 3"), (2, "4"), (4, "1 2 3"), (4, "4")]
    assert "1 2 3" in (tmp_path / "run" / "report.html").read_text()
    assert any(b"samples" in file.read_bytes() for file in (tmp_path / "tensorboard").glob("events*"))
    message(train(*MOCK, "--train-iters", "4", "--generate-interval", "2", code=2), "--generate-prompts")
    message(train(*MOCK, "--train-iters", "4", *sampling[:3], tmp_path / "none", code=2), "none")


def test_wrong_pipelines(checkpoint, tmp_path):
    launch = ["launch", "--nproc-per-node", 3, "--log-dir", tmp_path, "--"]
    result = teratron(*launch, "generate", "--load", checkpoint, "--device", "cpu", "--prompt", "1", "--pp", "2", code=2)
    message(result, "pipeline_model_parallel_size = 2 does not divide the 3 ranks")


def test_an_interrupted_run_goes_on(checkpoint, tmp_path):
    lines = [{"tokens": [id % 60], "max_new_tokens": 14, "seed": id} for id in range(1499)]
    lines.insert(0, {"tokens": ["bad"]})
    write_lines(tmp_path / "in.jsonl", lines)
    command = ["generate", "--load", str(checkpoint), "--device", "cpu", "--input", str(tmp_path / "in.jsonl"), "--output",
               str(tmp_path / "out.jsonl")]
    with subprocess.Popen([BINARY, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) as process:
        partial = []
        while process.poll() is None and not (partial and partial[0].stat().st_size > 2000):
            time.sleep(0.01)
            partial = list(tmp_path.glob("out.jsonl.*.partial"))
        assert process.poll() is None, "it was not interrupted"
        process.send_signal(signal.SIGKILL)
    done = partial[0].read_text().count("\n")
    with open(partial[0], "a") as file:
        file.write('{"text": "cut o')
    assert not (tmp_path / "out.jsonl").exists()
    result, resumed = generate(checkpoint, tmp_path, code=3)
    assert f"has the answers to {done} of 1500 lines: going on" in result.stderr
    assert "out.jsonl: 1499 answers," in result.stdout and "1 of 1500 lines have errors" in result.stderr
    (tmp_path / "out.jsonl").unlink()
    _, whole = generate(checkpoint, tmp_path, code=3)
    assert resumed == whole and len(whole) == 1500


def test_a_damaged_partial_file_is_answered_again(checkpoint, tmp_path):
    """A changed answer, a lost line, a doubled one: what follows the first of them is not taken over."""
    write_lines(tmp_path / "in.jsonl", [{"tokens": [id % 60], "max_new_tokens": 4, "seed": id} for id in range(40)])
    _, whole = generate(checkpoint, tmp_path)
    (tmp_path / "out.jsonl").unlink()

    def damages(line, lines):
        yield [*lines[:line], lines[line].replace('"tokens":[', '"tokens":[1', 1), *lines[line + 1:]]
        yield [*lines[:line], *lines[line + 1:]]
        yield [*lines[:line + 1], *lines[line:]]

    command = ["generate", "--load", checkpoint, "--device", "cpu", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"]
    teratron(*command, code=-signal.SIGKILL, fault="file.rename:kill")
    (partial,) = tmp_path.glob("out.jsonl.*.partial")
    sound = partial.read_text().splitlines()
    assert len(sound) == 40
    for kind, lines in enumerate(damages(17, sound)):
        partial.write_text("\n".join(lines) + "\n")
        result, again = generate(checkpoint, tmp_path)
        kept = 18 if kind == 2 else 17
        assert f"{partial}:{kept + 1} is damaged" in result.stderr and f"answers to {kept} of 40 lines: going on" in result.stderr
        assert again == whole
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_two_runs_on_one_output(checkpoint, tmp_path):
    write_lines(tmp_path / "in.jsonl", [{"tokens": [1], "max_new_tokens": 4}])
    command = ["generate", "--load", checkpoint, "--device", "cpu", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl"]
    with subprocess.Popen([BINARY, *map(str, command)], stdout=subprocess.DEVNULL, env=environment("file.rename:delay=3000")) as first:
        wait_for((tmp_path / "out.jsonl.lock").exists, "the first")
        message(teratron(*command, "--temperature", "0.5", code=2), "another run is writing it", "out.jsonl")
        assert first.wait(timeout=30) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_input_without_output(checkpoint, tmp_path):
    write_lines(tmp_path / "in.jsonl", LINES)
    command = ["generate", "--load", checkpoint, "--input", tmp_path / "in.jsonl"]
    message(teratron(*command, code=2), "--output")
    message(teratron(*command, "--output", tmp_path / "out", "--prompt", "1", code=2), "prompts are given")
    message(teratron("generate", "--load", checkpoint, "--input", tmp_path / "none", "--output", tmp_path / "out", code=3), "none")


def test_a_file_of_prompts(checkpoint, tmp_path):
    """A line is a prompt, also the last one and one with Megatron-LM's word "stop"."""
    prompts, flags = tmp_path / "prompts.txt", ["--load", checkpoint, "--device", "cpu", "--max-new-tokens", "3", "--seed", "5"]
    prompts.write_text("1 2 3\n\n7\n4 5")
    printed = teratron("generate", *flags, "--sample-input-file", prompts).stdout
    texts = (tmp_path / "prompts.txt.out").read_text()
    first, second, third = texts.split("\n\n")[:3]
    assert first.startswith("1 2 3") and second.startswith("7") and third.startswith("4 5") and all(len(t.split()) > 3 for t in (first,))
    assert first in printed and third in printed
    teratron("generate", *flags, "--sample-input-file", prompts, "--sample-output-file", tmp_path / "named")
    assert (tmp_path / "named").read_text() == texts
    alone = teratron("generate", *flags, "--prompt", "1 2 3").stdout
    assert first in alone and len(list(tmp_path.iterdir())) == 3


def test_a_session_in_a_terminal(checkpoint):
    session = TerminalSession("generate", "--load", checkpoint, "--device", "cpu", "--greedy", "--max-new-tokens", "3")
    session.read("> ")

    def ask(keys, until):
        session.output = ""
        os.write(session.terminal, keys)
        session.read(until)
        return session.output

    first = ask(b"1 2\r", "\n\r> ")
    assert len(first.split("\n")[-2].split()) == 3, first
    # An erased letter, the history, a cursor in the middle.
    assert "error" in ask(b"one\r", "\n\r> ")
    again = ask(b"\x1b[A\x1b[A\r", "\n\r> ")
    assert again.split("\n")[-2] == first.split("\n")[-2]
    edited = ask(b"1 x\x7f3\x1b[D\x7f\x1b[C\r", "\n\r> ")
    assert "13" in edited
    ask(b"three\x03", "three\r> \x1b[K")
    assert session.screen.lines[-1] == "> ", "Ctrl-C empties the line"
    os.write(session.terminal, b"\x04")
    assert session.exit_code() == 0


def test_examples(checkpoint, tmp_path):
    """The scripts with the flags of a machine without a GPU."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    write_lines(tmp_path / "in.jsonl", LINES)
    wrapper = tmp_path / "teratron"
    wrapper.write_text(f'#!/bin/bash\nexec "{BINARY}" "$@" --device cpu\n')
    wrapper.chmod(0o755)

    def run(*command):
        done = subprocess.run(["bash", *map(str, command)], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              env={**environment(), "TERATRON": str(wrapper), "NEW_TOKENS": "3"}, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run(examples / "generate_text.sh", checkpoint, "prompts", "1 2", "3 4").startswith("1 2")
    run(examples / "generate_text.sh", checkpoint, "samples", tmp_path / "samples")
    assert len(answers(tmp_path / "samples")) == 100
    run(examples / "megatron_lm_gpt_generate.sh", checkpoint, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert len(answers(tmp_path / "out.jsonl")) == len(LINES)


def test_bench_of_generation(tmp_path):
    result = teratron("bench", "generate", "--shape", "llama-56m", "--precision", "fp32", "--device", "cpu", "--num-layers", "2",
                      "--prompt-tokens", "8", "--new-tokens", "4", "--batch", "2", "--json", tmp_path / "json")
    assert "of the limit" in result.stdout
    measured = json.loads((tmp_path / "json").read_text())
    assert measured["tokens_per_second"] > 0 and 0 < measured["share_of_limit"] < 1.5
