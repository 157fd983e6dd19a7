"""Mixture of experts on the command line: the same losses in every layout, also across a resume in another one."""

import json
import math
import re
import shutil

import pytest
from jobs import launch
from program import VOCABULARY, message, needs_binary, teratron
from safetensors.numpy import load_file, save_file

pytestmark = needs_binary

MODEL = ["--num-layers", "4", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "32",
         "--max-position-embeddings", "32", "--swiglu", "--disable-bias-linear", "--hidden-dropout", "0",
         "--attention-dropout", "0", "--num-experts", "8", "--moe-router-topk", "2", "--moe-ffn-hidden-size", "24",
         "--moe-aux-loss-coeff", "1e-2", "--moe-z-loss-coeff", "1e-3", "--moe-layer-freq", "([0]+[1]*3)", "--init-method-std", "0.1"]
RUN = [*MODEL, *VOCABULARY, "--mock-data", "--micro-batch-size", "1", "--global-batch-size", "4", "--lr", "1e-3",
       "--lr-decay-style", "constant", "--eval-iters", "0", "--device", "cpu", "--num-threads", "1", "--log-interval", "1", "--override-opt-param-scheduler",
       "--check-weight-hash-across-dp-replicas-interval", "2"]
QWEN = ["--position-embedding-type", "rope", "--normalization", "RMSNorm", "--untie-embeddings-and-output-weights", "--qk-layernorm"]
# Layouts by their number of ranks.
LAYOUTS = [
    (8, ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--expert-model-parallel-size", "4", "--moe-grouped-gemm",
         "--moe-token-dispatcher-type", "alltoall", "--use-distributed-optimizer"]),
    (4, ["--pipeline-model-parallel-size", "2", "--expert-model-parallel-size", "2"]),
    (4, ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--expert-model-parallel-size", "4",
         "--expert-tensor-parallel-size", "1", "--use-distributed-optimizer"]),
]


def run(logs, ranks, flags, iterations, *more):
    command = ["pretrain", "gpt", *RUN, "--train-iters", iterations, *flags, *more]
    if ranks > 1:
        command = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--log-dir", logs, "--", *command]
    return teratron(*command).stdout


def losses(text):
    """Per iteration: loss, load-balancing loss, z-loss."""
    number = r"([0-9.E+-]+)"
    return [tuple(map(float, row)) for row in re.findall(
        rf"lm loss: {number} \| load_balancing_loss: {number} \| z_loss: {number} \|", text)]


def assert_close(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other):
        assert a == pytest.approx(b, rel=2e-5), f"{a} {b}"


def test_layouts_and_resumes_have_the_losses_of_one_rank(tmp_path):
    whole = losses(run(tmp_path / "logs", 1, [], 8, "--save", tmp_path / "one", "--save-interval", "4"))
    assert len(whole) == 8 and whole[0][1] >= 1.0, whole
    for number, (ranks, flags) in enumerate(LAYOUTS):
        folder = tmp_path / str(number)
        first = run(tmp_path / "logs", ranks, flags, 4, "--save", folder, "--save-interval", "4")
        assert_close(losses(first), whole[:4])
        ranks, flags = LAYOUTS[(number + 1) % len(LAYOUTS)]
        assert_close(losses(run(tmp_path / "logs", ranks, flags, 8, "--load", folder)), whole[4:])


def test_loads_are_written(tmp_path):
    run(tmp_path / "logs", 1, ["--moe-expert-capacity-factor", "0.5"], 2, "--run-dir", tmp_path)
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    layers = [event["layers"] for event in events if event["type"] == "interval"][-1]
    assert sorted(layers["moe/expert_load"]) == ["1", "2", "3"]
    for layer, loads in layers["moe/expert_load"].items():
        assert len(loads) == 8 and math.isclose(sum(loads), 1.0, rel_tol=1e-9)
        assert 0.4 < layers["moe/drop_rate"][layer] < 1.0
        entropy = -sum(share * math.log(share) for share in loads if share > 0) / math.log(8)
        assert math.isclose(layers["moe/router_entropy"][layer], entropy, rel_tol=1e-9)


# Ranks and flags with which ranks share experts when a model is not trained.
SHARING = [(2, ["--ep", "2"]), (4, ["--tp", "1", "--ep", "4"]), (4, ["--tp", "2", "--ep", "4"]),
           (4, ["--tp", "2", "--ep", "2", "--etp", "2"]), (4, ["--pp", "2", "--ep", "2"])]
REQUESTS = [{"tokens": [1, 2, 3], "max_new_tokens": 9, "seed": 3, "logprobs": True},
            {"tokens": [5, 6], "top_k": 1, "logprobs": True, "max_new_tokens": 12},
            {"tokens": [7], "num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5},
            {"tokens": list(range(20)), "max_new_tokens": 0, "logprobs": True}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of two expert-parallel ranks."""
    folder = tmp_path_factory.mktemp("experts")
    run(folder / "logs", 2, ["--expert-model-parallel-size", "2"], 2, "--save", folder / "saved", "--init-method-std", "0.3")
    return folder / "saved"


def launched(ranks, backend, logs):
    return ["launch", "--nproc-per-node", ranks, "--backend", backend, "--log-dir", logs, "--"] if ranks > 1 else []


@pytest.fixture(params=[(*layout, backend) for layout in SHARING for backend in ("threads", "processes")[:1 + (layout == SHARING[2])]],
                ids=lambda layout: " ".join((*layout[1], layout[2])))
def sharing(request, tmp_path):
    """The words before a command, and its flags."""
    ranks, flags, backend = request.param
    return launched(ranks, backend, tmp_path / "logs"), flags


def answers(folder, source, launch=(), flags=()):
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in REQUESTS))
    teratron(*launch, "generate", *source, "--device", "cpu", "--num-threads", "1", "--input", folder / "in.jsonl", "--output",
             folder / "out.jsonl", *flags)
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return [choice for answer in lines for choice in answer.get("choices", [answer])]


def assert_same_answers(one, other):
    assert len(one) == len(other) == 5
    for a, b in zip(one, other):
        assert a["tokens"] == b["tokens"], (a, b)
        assert a.get("logprobs", []) == pytest.approx(b.get("logprobs", []), abs=1e-5)


def test_ranks_that_share_experts_generate_the_texts_of_one(checkpoint, sharing, tmp_path):
    alone = answers(tmp_path, ["--load", checkpoint])
    assert len(alone[1]["tokens"]) >= 1 and len(alone[4]["logprobs"]) == 19
    assert_same_answers(answers(tmp_path, ["--load", checkpoint], *sharing), alone)


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory):
    """Of Qwen3-MoE, whose files have one tensor per expert."""
    folder = tmp_path_factory.mktemp("hf")
    run(folder / "logs", 1, QWEN, 1, "--save", folder / "saved", "--init-method-std", "0.3")
    teratron("ckpt", "convert", "--to-hf", folder / "hf", "--load", folder / "saved")
    return folder / "hf"


def test_a_hugging_face_folder_over_expert_ranks(hf_folder, tmp_path):
    source = ["--hf", hf_folder, "--tokenizer-type", "NullTokenizer"]
    alone = answers(tmp_path, source)
    assert_same_answers(answers(tmp_path, source, launched(4, "threads", tmp_path / "logs"), ["--tp", "2", "--ep", "4"]), alone)


def test_logits_of_ranks_that_share_experts(checkpoint, tmp_path):
    (tmp_path / "ids").write_text("1 2 3 4 5 6 7\n9 8\n")

    def logits(name, launch=(), flags=()):
        teratron(*launch, "logits", "--load", checkpoint, "--device", "cpu", "--input", tmp_path / "ids", "--output", tmp_path / name, *flags)
        return load_file(tmp_path / name)

    alone = logits("alone")
    for ranks, flags in [(2, ["--expert-model-parallel-size", "2"]),
                         (4, ["--tensor-model-parallel-size", "2", "--expert-model-parallel-size", "4"]),
                         (4, ["--context-parallel-size", "2", "--expert-model-parallel-size", "2"])]:
        cut = logits("cut", launched(ranks, "threads", tmp_path / "logs"), flags)
        for key, expected in alone.items():
            assert abs(cut[key] - expected).max() < 1e-5, flags


def test_evaluation_over_replicas_that_share_experts(checkpoint, tmp_path):
    """One replica, and two of two ranks, which get different numbers of requests."""
    (tmp_path / "data.jsonl").write_text("".join(
        json.dumps({"context": " ".join(map(str, range(1, n))), "continuation": f" {n} {2 * n}"}) + "\n" for n in range(3, 14)))

    def figures(launch=(), flags=()):
        teratron(*launch, "eval", "--load", checkpoint, "--device", "cpu", "--num-threads", "1", "--data", tmp_path / "data.jsonl",
                 "--json", tmp_path / "figures.json", *flags)
        return json.loads((tmp_path / "figures.json").read_text())

    alone = figures()
    for ranks, flags in [(2, ["--ep", "2"]), (4, ["--ep", "2"]), (4, ["--tp", "2", "--ep", "2", "--etp", "2"])]:
        shared = figures(launched(ranks, "threads", tmp_path / "logs"), flags)
        numbers = [key for key, value in alone.items() if isinstance(value, (int, float))]
        assert len(numbers) > 2
        for key in numbers:
            assert shared[key] == pytest.approx(alone[key], rel=1e-5, abs=1e-6), (key, flags)


def test_texts_during_training_with_experts(tmp_path):
    """In every layout those of one rank, also with biases that the choice of experts adds."""
    (tmp_path / "prompts").write_text("1 2 3\n4\n")
    sampling = ["--generate-interval", "2", "--generate-prompts", tmp_path / "prompts", "--moe-router-score-function", "sigmoid",
                "--moe-router-enable-expert-bias", "--moe-router-bias-update-rate", "0.1", "--init-method-std", "0.3"]

    def texts(name, ranks, flags):
        run(tmp_path / "logs", ranks, flags, 4, *sampling, "--run-dir", tmp_path / name)
        events = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [(event["iteration"], event["text"]) for event in events if event["type"] == "sample"]

    alone = texts("one", 1, [])
    assert len(alone) == 4
    for number, (ranks, flags) in enumerate(LAYOUTS):
        assert texts(str(number), ranks, flags) == alone, flags


def test_bad_layouts_of_generation(checkpoint, tmp_path):
    def refused(ranks, *flags, command="generate"):
        what = ["--prompt", "1"] if command == "generate" else ["--data", __file__]
        return teratron(*launched(ranks, "threads", tmp_path), command, "--load", checkpoint, "--device", "cpu", *what, *flags, code=2)

    message(refused(3, "--ep", "3", "--tp", "1"), "num_experts = 8", "expert_model_parallel_size = 3", "one of 1, 2, 4, 8")
    message(refused(2, "--tp", "1", "--ep", "4"), "expert_model_parallel_size = 4", "there are 2", "--nproc-per-node 4")
    message(refused(6, "--tp", "3", "--ep", "2"), "do not divide each other")
    message(refused(4, "--pp", "2", "--ep", "4", "--tp", "1"), "a stage has 2", "--nproc-per-node 8")
    message(refused(5, "--tp", "1", "--ep", "1", "--etp", "5"), "moe_ffn_hidden_size = 24", "--expert-tensor-parallel-size")
    by_tensor = refused(5, "--tp", "5").stderr
    assert "moe_ffn_hidden_size = 24" in by_tensor and "--tensor-model-parallel-size" in by_tensor
    assert "--expert-tensor-parallel-size" not in by_tensor, "the user did not give it"
    message(refused(3, "--ep", "2", command="eval"), "expert_model_parallel_size = 2", "does not divide the 3 ranks")
    dense = ["--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2", "--seq-length", "16", "--max-position-embeddings", "16"]
    teratron("pretrain", "gpt", *dense, *VOCABULARY, "--mock-data", "--micro-batch-size", "1", "--lr", "1e-3", "--train-iters", "1", "--eval-iters", "0",
             "--device", "cpu", "--save", tmp_path / "dense")
    message(teratron(*launched(2, "threads", tmp_path), "generate", "--load", tmp_path / "dense", "--device", "cpu", "--prompt", "1", "--ep", "2", code=2),
            "no experts", "--expert-model-parallel-size")
    (tmp_path / "ids").write_text("1 2 3 4\n")
    message(teratron(*launched(4, "threads", tmp_path), "logits", "--load", checkpoint, "--device", "cpu", "--input", tmp_path / "ids", "--output",
                     tmp_path / "out", "--context-parallel-size", "2", "--expert-model-parallel-size", "4", code=2), "different tokens")


@pytest.mark.parametrize("tensor, names", [("mlp.gate", "router, expert 5"), ("mlp.experts.5.down_proj", "experts.5")])
def test_a_nan_of_an_expert_is_named_with_layer_and_expert(hf_folder, tmp_path, tensor, names):
    """Expert 5 is on the second rank alone."""
    shutil.copytree(hf_folder, tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    state = load_file(path)
    state[f"model.layers.2.{tensor}.weight"][5] = math.nan
    save_file(state, path, metadata={"format": "pt"})
    result = launch(2, *RUN, *QWEN, "--hf", tmp_path / "hf", "--train-iters", "3", "--expert-model-parallel-size", "2", code=6,
                    flags=["--backend", "threads", "--log-dir", tmp_path])
    message(result, f"the output of decoder.layers.2.mlp.{names} is the first that is not finite")


def test_a_folder_beside_the_pattern_of_its_layers(hf_folder):
    """The folder writes it as a list; another spelling does not contradict it."""
    command = ["pretrain", "gpt", *RUN, *QWEN, "--hf", hf_folder, "--train-iters", "1"]
    same = [losses(teratron(*command, "--moe-layer-freq", pattern).stdout) for pattern in ("[0,1,1,1]", "[0] + [1]*3")]
    assert same[0] == same[1] and len(same[0]) == 1
    for pattern in ("1", "([1]*3+[0])"):
        message(teratron(*command, "--moe-layer-freq", pattern, code=2), "moe_layer_freq is", "[0,1,1,1]", "--moe-layer-freq")


def test_bad_combinations():
    for flags, words in [(["--expert-model-parallel-size", "3"], ["--num-experts", "8"]),
                         (["--moe-expert-capacity-factor", "0"], ["--moe-expert-capacity-factor", "drops every token"]),
                         (["--moe-router-load-balancing-type", "aux_loss", "none"], ["'none'", "alone"]),
                         (["--moe-layer-freq", "[1,0"], ["--moe-layer-freq"])]:
        message(teratron("pretrain", "gpt", *RUN, "--train-iters", "1", *flags, code=2), *words)
    message(teratron("pretrain", "bert", *RUN, "--train-iters", "1", code=2), "--num-experts", "gpt")


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
@pytest.mark.parametrize("action, hit", [("stop", 2), ("stop", 7), ("kill", 2), ("kill", 7)], ids=lambda value: str(value))
def test_an_expert_rank_that_hangs_or_dies_is_named(tmp_path, dispatcher, action, hit):
    """In the second collective of a layer, forward, or the seventh, backward: with the operation, the layer and the group."""
    result = launch(2, *RUN, "--train-iters", "8", "--expert-model-parallel-size", "2", "--moe-token-dispatcher-type", dispatcher,
                    "--distributed-timeout-seconds-after-init", "2", "--run-dir", tmp_path, flags=["--log-dir", tmp_path / "logs"],
                    fault=f"comm.decoder.layers.2.mlp@rank=1,step=3,hit={hit}:{action}", code=5)
    rank, layer = r"rank 1 \(pid \d+ on \S+\)", r"decoder\.layers\.2\.mlp"
    if action == "stop":
        assert re.search(rf"error: .*\b(\w+(\(sum\))?|receive message) of {layer} \w+ \[[\d, ]*\].* group \[0 1\].* timed out after 2 s: "
                         rf"{rank} does not answer: it is stopped", result.stderr), result.stderr[-2000:]
    else:
        assert re.search(rf"error: {rank} was killed by signal 9 \(SIGKILL\), the first to fail, after iteration \d+", result.stderr), result.stderr[-2000:]
        said = (tmp_path / "logs/rank-0.log").read_text()
        assert re.search(rf"error: {rank} has died: .*; rank 0 was in \w+ of {layer} in group \[0 1\]", said), said[-1000:]
