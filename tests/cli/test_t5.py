"""T5 from sentences to logits, by the program alone; and what is refused."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from program import BINARY, MOCK, TINY, message, needs_binary, teratron
from sentences import SPECIAL, WORDS, write_sentences

pytestmark = needs_binary
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LENGTHS = ["--encoder-seq-length", "32", "--decoder-seq-length", "24", "--max-position-embeddings", "32"]
SMALL = [*TINY[:TINY.index("--seq-length")], *TINY[TINY.index("--max-position-embeddings"):], *LENGTHS,
         "--micro-batch-size", "1", "--global-batch-size", "4", "--train-iters", "8", "--log-interval", "1", "--lr", "5e-3"]
T5 = [*SMALL, "--vocab-extra-ids", "20"]
MOCK_T5 = [*SMALL, *MOCK[len(TINY):]]


def train(*args, **expected):
    return teratron("pretrain", "t5", *args, **expected)


def losses(result):
    return [float(loss) for loss in re.findall(r" lm loss: (\S+) \|", result.stdout)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A vocabulary, and documents of sentences."""
    folder = tmp_path_factory.mktemp("text")
    tokenizer = write_sentences(folder, documents=60, longest=12)
    teratron("preprocess", "--input", folder / "text.json", "--output-prefix", folder / "my-t5", "--split-sentences",
             *tokenizer)
    return folder


def data(text):
    return ["--data-path", text / "my-t5_text_sentence", "--vocab-file", text / "vocab.txt", "--split", "90,10,0"]


def tensors(checkpoint):
    return {name: tensor for file in sorted(Path(checkpoint).glob("*.safetensors"))
            for name, tensor in load_file(file).items()}


def test_from_sentences_to_logits(text, tmp_path):
    flags = [*T5, *data(text), "--eval-interval", "4", "--eval-iters", "2"]
    whole = train(*flags, "--train-iters", "60", "--save", tmp_path / "run", "--save-interval", "8")
    assert sum(losses(whole)[-10:]) < 0.97 * sum(losses(whole)[:10])
    assert re.search(r"validation loss at iteration 4 .*lm loss value: \S+", whole.stdout)
    resumed = train(*flags, "--train-iters", "60", "--load", tmp_path / "run", "--ckpt-step", "56",
                    "--save", tmp_path / "again", "--save-interval", "4")
    assert losses(resumed)[:4] == losses(whole)[56:60]
    first, second = tensors(tmp_path / "run" / "iter_0000060"), tensors(tmp_path / "again" / "iter_0000060")
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items()) and first.keys() == second.keys()
    elsewhere = teratron("launch", "--nproc-per-node", "4", "--backend", "threads", "--log-dir", tmp_path / "logs",
                         "--", "pretrain", "t5", *flags, "--train-iters", "60", "--load", tmp_path / "run",
                         "--ckpt-step", "56", "--tp", "2", "--pp", "2", "--pipeline-model-parallel-split-rank", "1",
                         "--use-distributed-optimizer")
    assert losses(elsewhere)[:4] == pytest.approx(losses(whole)[56:60], rel=1e-4)
    assert teratron("generate", "--load", tmp_path / "run", "--prompt", "the cat").stdout.startswith("the cat")
    logits_of_a_checkpoint(tmp_path)


def logits_of_a_checkpoint(folder):
    """Padding of the encoder and later tokens of the decoder change nothing."""
    def logits(name, code=0, **inputs):
        save_file({key: torch.tensor(value) for key, value in inputs.items()}, folder / f"{name}.safetensors")
        return teratron("logits", "--load", folder / "run", "--input", folder / f"{name}.safetensors",
                        "--output", folder / "out.safetensors", code=code)
    source, target = [[6, 7, 8, 9, 10], [11, 12, 13, 14, 15]], [[2, 7, 8], [2, 12, 13]]
    logits("plain", encoder_tokens=source, decoder_tokens=target)
    plain = load_file(folder / "out.safetensors")["lm_logits"]
    assert plain.shape == (2, 3, len(SPECIAL) + len(WORDS) + 2 + 2 + 20)  # words, [BOS] and [EOS], sentinels
    teratron("launch", "--nproc-per-node", "2", "--backend", "threads", "--log-dir", folder / "logs", "--", "logits", "--load", folder / "run",
             "--input", folder / "plain.safetensors", "--output", folder / "stages.safetensors", "--device", "cpu", "--pp", "2",
             "--pipeline-model-parallel-split-rank", "1")
    torch.testing.assert_close(load_file(folder / "stages.safetensors")["lm_logits"], plain, atol=1e-5, rtol=1e-5)
    padded = [row + [1, 1] for row in source]
    logits("padded", encoder_tokens=padded, encoder_mask=[[1] * 5 + [0] * 2] * 2,
           decoder_tokens=[row + [9] for row in target], decoder_mask=[[1, 1, 1, 0]] * 2)
    assert torch.allclose(load_file(folder / "out.safetensors")["lm_logits"][:, :3], plain, atol=1e-5)
    logits("unmasked", encoder_tokens=padded, decoder_tokens=target)
    assert not torch.allclose(load_file(folder / "out.safetensors")["lm_logits"], plain, atol=1e-5)
    message(logits("empty", 3, encoder_tokens=source, decoder_tokens=target, encoder_mask=[[1] * 5, [0] * 5]),
            "encoder_mask", "padding alone")
    message(logits("rows", 3, encoder_tokens=source, decoder_tokens=target[:1]), "decoder_tokens", "encoder_tokens")
    message(logits("one", 3, encoder_tokens=source), "decoder_tokens")
    message(logits("gaps", 3, encoder_tokens=source, decoder_tokens=target, decoder_mask=[[1, 1, 1], [1, 0, 1]]),
            "decoder_mask", "padding between tokens")
    message(logits("long", 3, encoder_tokens=[[6] * 40] * 2, decoder_tokens=target), "40 tokens", "32 positions")
    (folder / "ids.txt").write_text("6 7 8\n")
    message(teratron("logits", "--load", folder / "run", "--input", folder / "ids.txt", "--output", folder / "x", code=2),
            "encoder_tokens")


RELATIVE = ["--position-embedding-type", "relative", "--relative-attention-max-distance", "20", "--softmax-scale", "1",
            "--normalization", "RMSNorm", "--disable-bias-linear", "--relu", "--scale-decoder-outputs", "--no-lm-head-bias"]


@pytest.mark.parametrize("backend, ranks, layout", [
    ("threads", 8, ["--tp", "2", "--sp", "--pp", "4", "--pipeline-model-parallel-split-rank", "1"]),
    ("threads", 8, ["--tp", "2", "--sp", "--pp", "4", "--pipeline-model-parallel-split-rank", "1", *RELATIVE]),
    ("processes", 4, ["--pp", "3", "--pipeline-model-parallel-split-rank", "2"]),
    ("processes", 4, ["--tp", "2", "--use-distributed-optimizer", "--overlap-param-gather"])])
def test_layouts(backend, ranks, layout, text, tmp_path):
    """40 steps: ranks with every kind of parallelism compute what one does."""
    ranks = 3 if "3" in layout else ranks
    flags = [*T5, *data(text), "--encoder-num-layers", "2", "--decoder-num-layers", "3", "--train-iters", "40", "--lr",
             "1e-3", "--eval-iters", "0", "--hidden-dropout", "0.1", "--attention-dropout", "0.1"]
    flags = [flag for index, flag in enumerate(flags) if "--num-layers" not in (flag, flags[index - 1])]
    if layout[-len(RELATIVE):] == RELATIVE:
        flags, layout = [*flags, *RELATIVE], layout[:-len(RELATIVE)]
    alone = train(*flags)
    parallel = teratron("launch", "--nproc-per-node", ranks, "--backend", backend, "--log-dir", tmp_path / "logs", "--",
                        "pretrain", "t5", *flags, *layout)
    assert len(losses(alone)) == 40
    assert losses(parallel) == pytest.approx(losses(alone), rel=1e-4)


def test_relative_positions_have_no_last_one(text, tmp_path):
    trained = train(*T5, *data(text), *RELATIVE, "--encoder-seq-length", "64", "--decoder-seq-length", "40", "--eval-iters", "0",
                    "--save", tmp_path / "run")
    assert len(losses(trained)) == 8
    source, target = torch.randint(5, 20, (2, 2, 90), generator=torch.Generator().manual_seed(2))

    def logits(length):
        save_file({"encoder_tokens": source, "decoder_tokens": target[:, :length].contiguous()}, tmp_path / "in.safetensors")
        teratron("logits", "--load", tmp_path / "run", "--input", tmp_path / "in.safetensors", "--output", tmp_path / "out.safetensors")
        return load_file(tmp_path / "out.safetensors")["lm_logits"]
    long = logits(90)
    assert long.shape[1] == 90 and torch.allclose(long[:, :50], logits(50), atol=1e-4) and long[:, 50:].isfinite().all()
    refused = teratron("pretrain", "gpt", *MOCK, "--position-embedding-type", "relative", code=2)
    message(refused, "only T5 has relative positions")


def test_mock_data():
    learned = train(*MOCK_T5, "--train-iters", "200", "--log-interval", "40", "--lr", "3e-3", "--lr-decay-style",
                    "constant", "--hidden-size", "32", "--num-attention-heads", "4", "--micro-batch-size", "16",
                    "--global-batch-size", "16", "--hidden-dropout", "0", "--attention-dropout", "0")
    assert losses(learned)[-1] < losses(learned)[0] - 0.5


@pytest.mark.parametrize("flags, words", [
    (["--position-embedding-type", "rope"], ["learned positions"]),
    (["--position-embedding-type", "relative", "--relative-attention-num-buckets", "7"],
     ["relative_attention_num_buckets = 7", "even"]),
    (["--position-embedding-type", "relative", "--relative-attention-max-distance", "16"],
     ["relative_attention_max_distance = 16", "larger"]),
    (["--softmax-scale", "0"], ["softmax_scale"]),
    (["--decoder-seq-length", "40"], ["decoder_seq_length", "max_position_embeddings"]),
    (["--encoder-seq-length", "40"], ["seq_length = 40", "max_position_embeddings"]),
    (["--num-attention-heads", "3"], ["num_attention_heads = 3"]),
    (["--encoder-num-layers", "3"], ["encoder_num_layers = 3", "num_layers = 2"]),
    (["--pipeline-model-parallel-split-rank", "1"], ["pipeline_model_parallel_split_rank"]),
    (["--encoder-pipeline-model-parallel-size", "1"],
     ["--encoder-pipeline-model-parallel-size", "add them to --pipeline-model-parallel-size", "--pipeline-model-parallel-split-rank"]),
    (["--encoder-tensor-model-parallel-size", "1"], ["--encoder-tensor-model-parallel-size", "--tensor-model-parallel-size"]),
])
def test_contradictions(flags, words):
    message(train(*MOCK_T5, *flags, code=2), *words)


@pytest.mark.parametrize("flags, words", [
    ([], ["--pipeline-model-parallel-split-rank"]),
    (["--pipeline-model-parallel-split-rank", "4"], ["2 layers on the first 4 of 4 stages"]),
    (["--pipeline-model-parallel-split-rank", "3"], ["2 layers on the first 3 of 4 stages"]),
    (["--pipeline-model-parallel-split-rank", "2", "--vpp", "2"], ["pipeline_model_parallel_split_rank"]),
    (["--pipeline-model-parallel-layout", "Et|t|t|t||||L"], ["no interleaved schedule"]),
])
def test_splits_that_do_not_fit(flags, words):
    result = teratron("plan", "t5", "--world-size", "4", *MOCK_T5, "--pp", "4", *flags, code=2)
    message(result, *words)


def test_plan_and_bench():
    flags = """--encoder-num-layers 12 --decoder-num-layers 12 --hidden-size 768 --num-attention-heads 12
        --kv-channels 64 --ffn-hidden-size 3072 --encoder-seq-length 512 --decoder-seq-length 128
        --max-position-embeddings 512 --micro-batch-size 16 --global-batch-size 128 --lr 0.0001 --train-iters 1000000
        --bf16 --vocab-extra-ids 100 --data-path my-t5_text_sentence --vocab-file bert-vocab.txt --vocab-size 30522""".split()
    planned = teratron("plan", "t5", "--world-size", "8", "--gpu-memory", "H100", *flags).stdout
    # Words and positions, layers of the encoder, cross attention of the decoder's, two final norms, the bias.
    hidden, words = 768, 30592  # padded
    layer, cross = 12 * hidden * hidden + 13 * hidden, 4 * hidden * hidden + 6 * hidden
    expected = (words + 512) * hidden + 24 * layer + 12 * cross + 4 * hidden + words
    assert re.search(rf"    0 +({expected}) ", planned) and "embedding 0-23 loss" in planned
    assert "Fits (H100" in planned
    measured = teratron("bench", "--shape", "t5-base", "--precision", "fp32", "--steps", "2", "--warm-up-seconds", "0",
                        *SMALL, "--encoder-num-layers", "2", "--decoder-num-layers", "2").stdout
    assert "t5-base" in measured and "tokens/s" in measured


def test_data_that_t5_cannot_use(text):
    message(train(*SMALL, *data(text), code=2), "--vocab-extra-ids")
    message(train(*T5, *data(text), "--decoder-seq-length", "3", code=2), "--decoder-seq-length")
    message(train(*SMALL, "--data-path", text / "my-t5_text_sentence", "--tokenizer-type", "NullTokenizer",
                  "--vocab-size", "60", code=2), "NullTokenizer", "begin")


@pytest.mark.parametrize("script", ["pretrain_t5.sh", "pretrain_t5_distributed_with_mp.sh"])
def test_scripts(script, text, tmp_path):
    """In small, on threads of this machine."""
    small = [*SMALL, "--encoder-num-layers", "2", "--decoder-num-layers", "2", "--kv-channels", "8",
             "--ffn-hidden-size", "32", "--fp16=false", "--lr-decay-iters", "8", "--lr-warmup-fraction", "0.25",
             "--eval-iters", "1"]
    variables = {"CHECKPOINT_PATH": tmp_path / "run", "VOCAB_FILE": text / "vocab.txt",
                 "DATA_PATH": text / "my-t5_text_sentence", "GPUS_PER_NODE": "4", "TERATRON": BINARY,
                 "TERATRON_BACKEND": "threads"}
    done = subprocess.run([EXAMPLES / script, *small], capture_output=True, text=True, timeout=120, cwd=tmp_path,
                          env={**os.environ, **{name: str(value) for name, value in variables.items()}})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text() == "8"


def test_learned_positions_have_no_model_of_transformers(tmp_path):
    """--hf-out says so before the first step."""
    refused = train(*MOCK_T5, "--hf-out", tmp_path / "out", code=4)
    message(refused, "position_embedding_type")
    assert " iteration " not in refused.stdout and not (tmp_path / "out").exists()
