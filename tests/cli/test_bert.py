"""BERT from sentences to weights that transformers loads, by the program alone; and what is refused."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from jobs import needs_mpirun
from program import BINARY, MOCK, TINY, message, needs_binary, teratron
from sentences import SPECIAL, WORDS, write_sentences

pytestmark = needs_binary
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BERT = [*TINY, "--seq-length", "32", "--max-position-embeddings", "32", "--micro-batch-size", "1",
        "--global-batch-size", "4", "--train-iters", "8", "--log-interval", "1", "--lr", "5e-3"]


def train(*args, **expected):
    return teratron("pretrain", "bert", *args, **expected)


def losses(result, name="lm loss"):
    return [float(loss) for loss in re.findall(rf" {name}: (\S+) \|", result.stdout)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A vocabulary, and documents of sentences preprocessed as sentences and as whole documents."""
    folder = tmp_path_factory.mktemp("text")
    tokenizer = write_sentences(folder, documents=60, longest=12)
    for split in (["--split-sentences"], []):
        teratron("preprocess", "--input", folder / "text.json", "--output-prefix", folder / "my-bert", *tokenizer,
                 *split)
    return folder


def data(text, name="my-bert_text_sentence"):
    return ["--data-path", text / name, "--vocab-file", text / "vocab.txt", "--split", "90,10,0"]


def tensors(checkpoint):
    return {name: tensor for file in sorted(Path(checkpoint).glob("*.safetensors"))
            for name, tensor in load_file(file).items()}


def test_from_sentences_to_transformers(text, tmp_path):
    transformers = pytest.importorskip("transformers")
    flags = [*BERT, *data(text), "--no-bias-gelu-fusion", "--eval-interval", "4", "--eval-iters", "2"]
    whole = train(*flags, "--train-iters", "60", "--save", tmp_path / "run", "--save-interval", "8")
    assert sum(losses(whole)[-10:]) < 0.97 * sum(losses(whole)[:10]) and len(losses(whole, "sop loss")) >= 60
    assert re.search(r"validation loss at iteration 4 .*lm loss value: \S+ .*sop loss value: \S+", whole.stdout)
    resumed = train(*flags, "--train-iters", "60", "--load", tmp_path / "run", "--ckpt-step", "56",
                    "--save", tmp_path / "again", "--save-interval", "4")
    assert losses(resumed)[:4] == losses(whole)[56:60]
    first, second = tensors(tmp_path / "run" / "iter_0000060"), tensors(tmp_path / "again" / "iter_0000060")
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items()) and first.keys() == second.keys()
    elsewhere = teratron("launch", "--nproc-per-node", "4", "--backend", "threads", "--log-dir", tmp_path / "logs",
                         "--", "pretrain", "bert", *flags, "--train-iters", "60", "--load", tmp_path / "run",
                         "--ckpt-step", "56", "--tp", "2", "--pp", "2", "--use-distributed-optimizer")
    assert losses(elsewhere)[:4] == pytest.approx(losses(whole)[56:60], rel=1e-4)
    teratron("ckpt", "convert", "--load", tmp_path / "run", "--to-hf", tmp_path / "hf", "--max-shard-size", "20KB")
    model = transformers.MegatronBertForPreTraining.from_pretrained(tmp_path / "hf").eval()
    assert (tmp_path / "hf" / "vocab.txt").read_bytes() == (text / "vocab.txt").read_bytes()
    ids = torch.randint(5, len(WORDS), (20,), generator=torch.Generator().manual_seed(1))
    (tmp_path / "ids.txt").write_text(" ".join(map(str, ids.tolist())) + "\n")
    teratron("logits", "--load", tmp_path / "run", "--input", tmp_path / "ids.txt", "--output", tmp_path / "logits")
    with torch.no_grad():
        expected = model(ids[None]).prediction_logits[0]
    torch.testing.assert_close(load_file(tmp_path / "logits")["logits.0"], expected, atol=1e-5, rtol=1e-4)
    teratron("launch", "--nproc-per-node", "2", "--backend", "threads", "--log-dir", tmp_path / "logs", "--", "logits", "--load",
             tmp_path / "run", "--input", tmp_path / "ids.txt", "--output", tmp_path / "stages", "--device", "cpu", "--pp", "2")
    torch.testing.assert_close(load_file(tmp_path / "stages")["logits.0"], expected, atol=1e-5, rtol=1e-4)
    message(teratron("generate", "--load", tmp_path / "run", "--prompt", "the cat", code=2), "do not generate text",
            "one of gpt, t5")
    gpt = teratron("pretrain", "gpt", *flags, "--tokenizer-type", "BertWordPieceLowerCase", "--load", tmp_path / "run",
                   code=4)
    message(gpt, "family bert", "pretrain bert")


@pytest.mark.parametrize("backend, layout", [
    ("threads", ["--tp", "2", "--sp", "--pp", "2"]),
    ("threads", ["--tp", "2", "--sp", "--pp", "2", "--remove-padding", "always", "--recompute-granularity", "full"]),
    ("processes", ["--pp", "2", "--remove-padding", "always", "--use-distributed-optimizer"]),
    ("processes", ["--pp", "2", "--vpp", "2", "--use-distributed-optimizer", "--overlap-param-gather"]),
    pytest.param("mpi", ["--tp", "2", "--use-distributed-optimizer"], marks=needs_mpirun)])
def test_layouts(backend, layout, text, tmp_path):
    """50 steps: ranks with every kind of parallelism compute what one does, here with the same micro-batches."""
    flags = [*BERT, *data(text), "--num-layers", "4", "--train-iters", "50", "--lr", "1e-3", "--eval-iters", "0",
             "--hidden-dropout", "0.1", "--attention-dropout", "0.1"]
    alone = train(*flags)
    parallel = teratron("launch", "--nproc-per-node", "4", "--backend", backend, "--log-dir", tmp_path / "logs", "--",
                        "pretrain", "bert", *flags, *layout)
    assert len(losses(alone)) == 50
    for name in ("lm loss", "sop loss"):
        assert losses(parallel, name) == pytest.approx(losses(alone, name), rel=1e-4)


def test_removing_the_padding_changes_no_number(text, tmp_path):
    """Losses with dropout, a resumed run bit for bit, samples and batches as they are; and what cannot be packed."""
    flags = [*BERT, *data(text), "--micro-batch-size", "4", "--train-iters", "16", "--eval-iters", "1", "--eval-interval", "8",
             "--hidden-dropout", "0.1", "--attention-dropout", "0.1"]
    padded = train(*flags)
    packed = train(*flags, "--remove-padding", "always", "--save", tmp_path / "run", "--save-interval", "8")
    for name in ("lm loss", "sop loss", "lm loss value", "consumed samples"):
        assert losses(packed, name) == pytest.approx(losses(padded, name), rel=1e-4), name
    resumed = train(*flags, "--remove-padding", "always", "--load", tmp_path / "run", "--ckpt-step", "8")
    assert losses(resumed) == losses(packed)[8:]
    said = train(*MOCK, "--train-iters", "1", "--remove-padding", "always")
    assert "--remove-padding has no effect: the rows of this training have no padding" in said.stdout + said.stderr
    message(train(*flags, "--remove-padding", "always", "--cuda-graph-impl", "local", code=2), "mutually exclusive")
    t5 = [flag if flag != "--seq-length" else "--encoder-seq-length" for flag in flags]
    message(teratron("pretrain", "t5", *t5, "--decoder-seq-length", "16", "--vocab-extra-ids", "10", "--remove-padding",
                     "always", code=2), "this model does not take rows without padding")


def test_one_loss_without_the_binary_head(text):
    assert "sop loss" not in train(*BERT, *data(text), "--bert-no-binary-head").stdout
    train(*BERT, *data(text, "my-bert_text_document"), "--bert-no-binary-head")


def test_mock_data(tmp_path):
    learned = train(*MOCK, "--train-iters", "240", "--log-interval", "40", "--lr", "3e-3", "--lr-decay-style",
                    "constant", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "32",
                    "--max-position-embeddings", "32", "--micro-batch-size", "16", "--global-batch-size", "16",
                    "--hidden-dropout", "0", "--attention-dropout", "0")
    assert losses(learned)[-1] < losses(learned)[0] - 0.3
    said = train(*MOCK, "--train-iters", "1", "--eod-mask-loss")
    assert "--eod-mask-loss has no effect on bert" in said.stdout + said.stderr
    message(train(*MOCK, "--train-iters", "1", "--position-embedding-type", "alibi", code=2), "not causal")
    message(train(*MOCK, "--train-iters", "1", "--seq-length", "4", code=2), "no room for [CLS]")
    message(train(*MOCK, "--train-iters", "1", "--calculate-per-token-loss", code=2), "means of each micro-batch")


def test_plan_and_bench():
    """The command of Megatron-LM's script on eight GPUs, and a shape of the benchmark in small."""
    flags = """--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 32
        --seq-length 512 --max-position-embeddings 512 --train-iters 1000000 --data-path my-bert_text_sentence
        --vocab-file bert-vocab.txt --data-impl mmap --split 949,50,1 --distributed-backend nccl --lr 0.0001
        --lr-decay-style linear --min-lr 1.0e-5 --lr-decay-iters 990000 --weight-decay 1e-2 --clip-grad 1.0
        --lr-warmup-fraction .01 --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10 --fp16
        --vocab-size 30522""".split()
    planned = teratron("plan", "bert", "--world-size", "8", "--gpu-memory", "H100", *flags).stdout
    assert re.search(r"    0 +336297858 ", planned) and "Fits (H100" in planned and "a step takes at least" in planned
    measured = teratron("bench", "--shape", "bert-large", "--precision", "fp32", "--steps", "2", "--warm-up-seconds",
                        "0", *TINY).stdout
    assert "bert-large" in measured and "tokens/s" in measured


def test_data_that_bert_cannot_use(text, tmp_path):
    message(train(*BERT, *data(text, "my-bert_text_document"), code=3), "2 sentences", "--split-sentences")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS[:6]]) + "\n")
    small = ["--data-path", text / "my-bert_text_sentence", "--vocab-file", tmp_path / "vocab.txt", "--split", "1,0,0"]
    message(train(*BERT, *small, code=3), "my-bert_text_sentence", "vocabulary")
    null = ["--data-path", text / "my-bert_text_sentence", "--tokenizer-type", "NullTokenizer", "--vocab-size", "60"]
    message(train(*BERT, *null, code=2), "NullTokenizer", "[MASK]")


@pytest.mark.parametrize("script", ["pretrain_bert.sh", "pretrain_bert_distributed.sh",
                                    "pretrain_bert_distributed_with_mp.sh"])
def test_scripts(script, text, tmp_path):
    """In small, on processes of this machine."""
    small = [*BERT, "--fp16=false", "--lr-decay-iters", "8", "--lr-warmup-fraction", "0.25", "--eval-iters", "1"]
    variables = {"CHECKPOINT_PATH": tmp_path / "run", "VOCAB_FILE": text / "vocab.txt",
                 "DATA_PATH": text / "my-bert_text_sentence", "GPUS_PER_NODE": "4", "TERATRON": BINARY,
                 "TERATRON_BACKEND": "threads"}
    done = subprocess.run([EXAMPLES / script, *small], capture_output=True, text=True, timeout=120, cwd=tmp_path,
                          env={**os.environ, **{name: str(value) for name, value in variables.items()}})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text() == "8"
