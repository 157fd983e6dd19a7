"""Context parallelism on the command line: the losses of one rank in every layout, with documents, across resumes; logits,
plan and bench; and what is refused."""

import json
import re

import pytest
import torch
from program import VOCABULARY, losses, message, needs_binary, teratron
from safetensors.torch import load_file

pytestmark = needs_binary

MODEL = ["--num-layers", "4", "--hidden-size", "32", "--num-attention-heads", "8", "--group-query-attention", "--num-query-groups", "4",
         "--seq-length", "64", "--max-position-embeddings", "64", "--position-embedding-type", "rope", "--swiglu",
         "--disable-bias-linear", "--attention-dropout", "0", "--hidden-dropout", "0.1", "--init-method-std", "0.1"]
RUN = [*MODEL, *VOCABULARY, "--micro-batch-size", "1", "--global-batch-size", "4", "--lr", "1e-3", "--lr-decay-style", "constant",
       "--device", "cpu", "--num-threads", "1", "--log-interval", "1", "--override-opt-param-scheduler",
       "--check-weight-hash-across-dp-replicas-interval", "5"]
MOCK = ["--mock-data", "--eval-iters", "2", "--eval-interval", "10"]
# Layouts by their number of ranks.
LAYOUTS = {
    "p2p": (2, "processes", ["--context-parallel-size", "2"]),
    "all-gather-tp-sp": (4, "processes", ["--context-parallel-size", "2", "--cp-comm-type", "all_gather", "--tensor-model-parallel-size",
                                          "2", "--sequence-parallel"]),
    "a2a-pp-vpp": (4, "threads", ["--context-parallel-size", "2", "--cp-comm-type", "a2a", "--pipeline-model-parallel-size", "2",
                                  "--num-layers-per-virtual-pipeline-stage", "1", "--recompute-activations"]),
    "p2p-dp-zero": (8, "threads", ["--context-parallel-size", "4", "--use-distributed-optimizer", "--overlap-param-gather"]),
    "one-per-layer": (4, "threads", ["--context-parallel-size", "4", "--cp-comm-type", "p2p", "all_gather", "a2a", "p2p",
                                     "--recompute-granularity", "full", "--calculate-per-token-loss"]),
}


def run(logs, ranks, backend, flags, iterations):
    command = ["pretrain", "gpt", *RUN, "--train-iters", iterations, *flags]
    if ranks > 1:
        command = ["launch", "--nproc-per-node", ranks, "--backend", backend, "--log-dir", logs, "--", *command]
    return teratron(*command).stdout


def evaluations(text):
    return [float(value) for value in re.findall(r"lm loss value: (\S+)", text)]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "run"
    text = run(folder.parent / "logs", 1, "", [*MOCK, "--save", folder, "--save-interval", "25"], 50)
    values = losses(re.sub(r".*lm loss value.*", "", text))
    assert len(values) == 50 and values[-1] < 0.9 * values[0]
    assert len(evaluations(text)) >= 5
    return folder, values, evaluations(text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_curves_of_50_steps_are_those_of_one_rank(tmp_path, one_rank, layout):
    _, expected, evaluated = one_rank
    text = run(tmp_path, *LAYOUTS[layout][:2], [*MOCK, *LAYOUTS[layout][2]], 50)
    assert losses(re.sub(r".*lm loss value.*", "", text)) == pytest.approx(expected, rel=2e-5)
    assert evaluations(text) == pytest.approx(evaluated, rel=2e-5)


def test_resume_with_another_context_parallel_size(tmp_path, one_rank):
    whole, expected, _ = one_rank
    folder = tmp_path / "run"
    save = ["--save", folder, "--save-interval", "5", "--eval-iters", "0", "--mock-data"]
    run(tmp_path / "logs", *LAYOUTS["p2p"][:2], [*LAYOUTS["p2p"][2], *save], 5)
    run(tmp_path / "logs", *LAYOUTS["p2p-dp-zero"][:2], [*LAYOUTS["p2p-dp-zero"][2], *save, "--load", folder], 10)
    last = run(tmp_path / "logs", 1, "", [*save, "--load", folder], 15)
    assert losses(last) == pytest.approx(expected[10:15], rel=2e-5)
    # And from one rank to several.
    text = run(tmp_path / "logs", *LAYOUTS["a2a-pp-vpp"][:2], [*LAYOUTS["a2a-pp-vpp"][2], *MOCK, "--load", whole, "--ckpt-step", "25"], 30)
    assert losses(re.sub(r".*lm loss value.*", "", text)) == pytest.approx(expected[25:30], rel=2e-5)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Documents of 3 to 90 tokens."""
    folder = tmp_path_factory.mktemp("documents")
    generator = torch.Generator().manual_seed(5)
    with open(folder / "text.json", "w", encoding="utf-8") as file:
        for length in torch.randint(3, 90, (200,), generator=generator).tolist():
            ids = torch.randint(0, 60, (length,), generator=generator).tolist()
            file.write(json.dumps({"text": " ".join(map(str, ids))}) + "\n")
    teratron("preprocess", "--input", folder / "text.json", "--output-prefix", folder / "text", *VOCABULARY, "--append-eod")
    return folder / "text_text_document"


@pytest.mark.parametrize("window", [[], ["--window-size", "20,0"]])
def test_documents_are_kept_apart(tmp_path, documents, window):
    data = ["--data-path", documents, "--split", "1,0,0", "--eval-iters", "0", "--reset-position-ids", "--reset-attention-mask",
            "--eod-mask-loss", "--micro-batch-size", "2", *window]
    expected = losses(run(tmp_path, 1, "", data, 6))
    assert len(expected) == 6
    for comm in ["p2p", "all_gather", "a2a"]:
        flags = [*data, "--context-parallel-size", "2", "--tensor-model-parallel-size", "2", "--cp-comm-type", comm]
        assert losses(run(tmp_path, 4, "threads", flags, 6)) == pytest.approx(expected, rel=2e-5), comm


def test_logits_are_those_of_one_rank(tmp_path, one_rank):
    folder = one_rank[0]
    (tmp_path / "ids.txt").write_text("1 2 3 4 5 6 7\n" + " ".join(str(i * 7 % 60) for i in range(64)) + "\n")
    command = ["logits", "--load", folder, "--input", tmp_path / "ids.txt", "--device", "cpu", "--output"]
    teratron(*command, tmp_path / "one")
    start = ["launch", "--nproc-per-node", "4", "--log-dir", tmp_path / "logs", "--"]
    teratron(*start, *command, tmp_path / "four", "--context-parallel-size", "2")
    one, four = load_file(tmp_path / "one"), load_file(tmp_path / "four")
    assert one.keys() == four.keys() and four["logits.0"].shape == (7, 61)
    for name, logits in one.items():
        torch.testing.assert_close(four[name], logits, atol=1e-5, rtol=1e-5)
    message(teratron(*command, tmp_path / "out", "--context-parallel-size", "2", code=2), "--context-parallel-size", "1 rank")
    three = ["launch", "--nproc-per-node", "3", "--log-dir", tmp_path / "logs", "--"]
    message(teratron(*three, *command, tmp_path / "out", "--context-parallel-size", "3", "--cp-comm-type", "a2a", code=2),
            "--context-parallel-size", "num_attention_heads = 8 is not divisible by context_parallel_size * tensor_model_parallel_size = 3",
            "1, 2, 4, 8")
    message(teratron(*start, "generate", "--load", folder, "--prompt", "1 2", "--device", "cpu", "--context-parallel-size", "2", code=2),
            "--context-parallel-size", "only training")


def test_texts_during_training_are_those_of_one_rank(tmp_path):
    (tmp_path / "prompts").write_text("1 2 3\n4\n")

    def texts(name, *launch):
        flags = ["--mock-data", "--eval-iters", "0", "--generate-interval", "2", "--generate-prompts", tmp_path / "prompts", "--run-dir", tmp_path / name]
        run(tmp_path / "logs", *launch[:2], [*flags, *launch[2]], 4)
        events = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [(event["iteration"], event["prompt"], event["text"]) for event in events if event["type"] == "sample"]

    expected = texts("one", 1, "", [])
    assert len(expected) == 4 and texts("two", *LAYOUTS["p2p"]) == expected


def activations(*flags):
    text = teratron("plan", "gpt", *RUN, "--mock-data", "--train-iters", "4", *flags).stdout
    row = next(line.split() for line in text.splitlines() if re.match(r"\s+0 ", line))
    return float(row[5])


def test_plan_divides_activations():
    shape = ["--seq-length", "65536", "--max-position-embeddings", "65536", "--world-size", "4"]
    one, four = activations(*shape), activations(*shape, "--context-parallel-size", "4")
    assert four == pytest.approx(one / 4, rel=0.02)


def test_bench_counts_the_tokens_of_whole_samples(tmp_path):
    command = ["bench", "--precision", "fp32", "--num-layers", "1", "--hidden-size", "32", "--num-attention-heads", "2", "--vocab-size", "60",
               "--micro-batch-size", "2", "--device", "cpu", "--steps", "2", "--warm-up-seconds", "0", "--json", tmp_path / "result.json",
               "--seq-length", "64", "--max-position-embeddings", "64"]
    start = ["launch", "--nproc-per-node", "2", "--log-dir", tmp_path / "logs", "--"]
    for args in [command, [*start, *command, "--context-parallel-size", "2"]]:
        teratron(*args)
        result = json.loads((tmp_path / "result.json").read_text())
        assert result["tokens_per_second"] * result["step_ms"] / 1e3 == pytest.approx(2 * 64)


def test_bad_combinations():
    def refused(*flags, says):
        message(teratron("plan", "gpt", *RUN, "--mock-data", "--train-iters", "1", "--world-size", "8", *flags, code=2), *says)
    cp = ["--context-parallel-size"]
    refused(*cp, "4", "--seq-length", "60", says=["--seq-length", "60 is not divisible by 2 * context_parallel_size = 8", "56 or 64"])
    refused(*cp, "2", "--tensor-model-parallel-size", "4", "--sequence-parallel", "--seq-length", "60", says=["--seq-length", "30", "tensor"])
    refused(*cp, "8", "--cp-comm-type", "a2a", says=["--num-query-groups", "num_query_groups = 4", "context_parallel_size * tensor_model_parallel_size = 8",
                                                     "unlike p2p and all_gather", "1, 2, 4"])
    refused(*cp, "2", "--cp-comm-type", "a2a+p2p", says=["--cp-comm-type", "not supported", "p2p, all_gather, a2a"])
    refused(*cp, "2", "--cp-comm-type", "p2p", "a2a", says=["--cp-comm-type", "2 types", "4 layers"])
    refused(*cp, "2", "--cp-comm-type", "ring", says=["--cp-comm-type", "'ring'", "p2p"])
    refused(*cp, "3", "--seq-length", "66", says=["there are 8", "context 3"])
    def refused_t5(*flags, says):
        message(teratron("plan", "t5", *T5, "--train-iters", "1", "--world-size", "8", *flags, code=2), *says)
    refused_t5(*cp, "2", "--decoder-seq-length", "18", says=["--decoder-seq-length", "18 is not divisible by 2 * context_parallel_size = 4"])
    refused_t5(*cp, "2", "--cp-comm-type", "p2p", "a2a", says=["--cp-comm-type", "encoder and decoder communicate in one way"])
    refused_t5(*cp, "4", "--cp-comm-type", "a2a", "--tensor-model-parallel-size", "2", says=["num_attention_heads = 4", "unlike p2p and all_gather"])
    refused_t5(*cp, "2", "--tensor-model-parallel-size", "4", "--sequence-parallel", "--decoder-seq-length", "20",
               says=["--decoder-seq-length", "10 is not divisible by tensor_model_parallel_size = 4"])


ENCODERS = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "32", "--max-position-embeddings", "32",
            "--micro-batch-size", "2", "--global-batch-size", "4", "--lr", "1e-3", "--lr-decay-style", "constant", "--device", "cpu",
            "--num-threads", "1", "--log-interval", "1", "--init-method-std", "0.1", "--mock-data", "--eval-iters", "2", "--vocab-size", "60"]
T5 = [*ENCODERS, "--decoder-seq-length", "16"]
ENCODER_LAYOUTS = {
    "p2p": (2, ["--context-parallel-size", "2", "--attention-dropout", "0"]),
    "tp-sp": (4, ["--context-parallel-size", "2", "--tensor-model-parallel-size", "2", "--sequence-parallel"]),
    "a2a-dp": (4, ["--context-parallel-size", "2", "--cp-comm-type", "a2a", "--use-distributed-optimizer", "--attention-dropout", "0"]),
    "pp": (4, ["--context-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--recompute-granularity", "full"])}


@pytest.mark.parametrize("family", ["bert", "t5"])
@pytest.mark.parametrize("layout", ENCODER_LAYOUTS)
def test_encoders_learn_as_one_rank_does(tmp_path, family, layout):
    """BERT, and T5 with learned and relative positions: losses of training and evaluation, and a checkpoint that one rank continues."""
    ranks, flags = ENCODER_LAYOUTS[layout]
    relative = ["--position-embedding-type", "relative"] if family == "t5" and layout in ("p2p", "tp-sp") else []
    command = ["pretrain", family, *(T5 if family == "t5" else ENCODERS), *relative, "--train-iters", "6"]
    one = teratron(*command, *[flag for flag in flags[2:] if "dropout" in flag or flag == "0"]).stdout
    if family == "t5" and "pp" in layout:
        flags = [*flags, "--pipeline-model-parallel-split-rank", "1"]
    start = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--log-dir", tmp_path / "logs", "--"]
    many = teratron(*start, *command, *flags, "--save", tmp_path / "run").stdout
    assert losses(many) == pytest.approx(losses(one), rel=2e-5) and len(losses(one)) >= 6
    assert evaluations(many) == pytest.approx(evaluations(one), rel=2e-5)
    more = teratron(*command[:-1], "8", "--load", tmp_path / "run", "--override-opt-param-scheduler",
                    *[flag for flag in flags[2:] if "dropout" in flag or flag == "0"]).stdout
    assert len(losses(more)) >= 2
