"""The examples, built against the installed library as users build theirs, and run."""
import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TERATRON_BINARY")
BUILD = BINARY and Path(BINARY).resolve().parents[2]
pytestmark = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")

TINY = """--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
    --micro-batch-size 2 --global-batch-size 4 --lr 1e-2 --train-iters 20 --eval-interval 10 --eval-iters 2
    --log-interval 5 --device cpu --num-threads 1 --tokenizer-type NullTokenizer --vocab-size 30 --mock-data""".split()


def run_all(*command, code=0, **more):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, **more)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def run(*command, **more):
    return run_all(*command, **more).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", prefix)
    assert (prefix / "bin" / "teratron").exists() and (prefix / "include" / "teratron" / "train" / "trainer.h").exists()
    return prefix


@pytest.fixture(scope="module")
def built(installed, tmp_path_factory):
    def build(name):
        folder = tmp_path_factory.mktemp(name)
        run("cmake", "-S", ROOT / "examples" / name, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={installed}")
        run("cmake", "--build", folder)
        return folder / name
    return build


def losses(output):
    return [float(loss) for loss in re.findall(r" lm loss: (\S+) \|", output)]


def kind_losses(output):
    return [float(loss) for loss in re.findall(r" kind loss: (\S+) \|", output)]


def test_custom_loss(built, tmp_path):
    program = built("custom_loss")
    done = run_all(program, "pretrain", "gpt", *TINY, "--keywords", "3", "5 6", "--keyword-alpha", "10")
    heavy = done.stdout
    assert "keyword ids: 3\n" in heavy, "5 6 is two tokens"
    assert "warning: keywords of several tokens are ignored: 5 6\n" in done.stderr
    assert "keywords per sample value: " in heavy and "keywords per sample PPL" not in heavy
    none = run_all(program, "pretrain", "gpt", *TINY, "--keywords", "5 6", "7 8", code=2).stderr
    assert "none of the keywords (5 6, 7 8) is a single token" in none
    assert re.search(r"  keyword_alpha \.+ 10\.0\n", heavy)
    counts = [float(count) for count in re.findall(r"keywords per sample: (\S+) \|", heavy)]
    assert len(counts) == 4 and 0.2 < sum(counts) / 4 < 1.2, "16 tokens of 30 kinds hold 16 / 30 on average"
    light = run(program, "pretrain", "gpt", *TINY, "--keywords", "3", "--keyword-alpha", "0")
    plain = run(BINARY, "pretrain", "gpt", *TINY)
    assert losses(light) == pytest.approx(losses(plain), rel=1e-4), "without weights it is the usual loss"
    assert losses(heavy)[0] > 2 * losses(plain)[0]
    assert "--keyword-alpha" in run(program, "pretrain", "gpt", "--help")
    run(program, "pretrain", "gpt", *TINY, "--keyword-alpha", "-1", code=2)
    assert "teratron" in run(program, "--version")


WORDS = "the a cat dog bird sat ran flew on under over mat tree house and then slept while it was dark cold".split()


def t5_data(folder):
    """Flags of a text of random sentences."""
    generator = random.Random(3)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS, "."]) + "\n")
    with open(folder / "text.json", "w") as text:
        for _ in range(60):
            sentences = [" ".join(generator.choices(WORDS, k=6)).capitalize() + "." for _ in range(8)]
            text.write(json.dumps({"text": " ".join(sentences)}) + "\n")
    tokenizer = ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", folder / "vocab.txt"]
    run(BINARY, "preprocess", "--input", folder / "text.json", "--output-prefix", folder / "t5", *tokenizer, "--split-sentences")
    return [*tokenizer, "--data-path", folder / "t5_text_sentence", "--vocab-extra-ids", "20", "--split", "90,10,0"]


def test_t5_word_loss(built, tmp_path):
    program = built("t5_word_loss")
    flags = """--num-layers 2 --hidden-size 16 --num-attention-heads 2 --encoder-seq-length 32 --decoder-seq-length 16
        --max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 4 --lr 1e-2 --train-iters 20 --eval-iters 2
        --eval-interval 10 --log-interval 5 --device cpu --num-threads 1""".split()
    flags += t5_data(tmp_path)
    same = run(program, "pretrain", "t5", *flags, "--sentinel-weight", "1")
    assert losses(same) == pytest.approx(losses(run(BINARY, "pretrain", "t5", *flags)), rel=1e-4), "the usual loss"
    shares = [float(share) for share in re.findall(r"share of sentinels: (\S+) \|", same)]
    assert len(shares) == 4 and all(0.1 < share < 0.6 for share in shares)
    words = run(program, "pretrain", "t5", *flags, "--sentinel-weight", "0")
    assert losses(words)[-1] > losses(same)[-1], "words are harder to guess than sentinels"
    refused = run_all(program, "pretrain", "t5", *flags, "--vocab-extra-ids", "0", code=2).stderr
    assert "--vocab-extra-ids" in refused


def test_custom_loop(built, tmp_path):
    program = built("custom_loop")
    folder = ["--save", tmp_path / "run", "--load", tmp_path / "run"]
    output = run(program, *TINY, *folder)
    lines = re.findall(r"step (\d+) of 20: batch 4, training loss (\S+), validation loss (\S+), accuracy (\S+)", output)
    assert [line[0] for line in lines] == ["10", "20"]
    assert float(lines[1][2]) < float(lines[0][2]) and 0 <= float(lines[1][3]) <= 1
    again = run(program, *TINY, *folder, "--train-iters", "30", "--override-opt-param-scheduler")
    assert "at iteration 20" in again and "step 30 of 30" in again
    run(program, *TINY, "--save", tmp_path / "background", "--async-save")
    assert (tmp_path / "background" / "latest_checkpointed_iteration.txt").read_text() == "20"


OWN_LOOP = """--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16
    --micro-batch-size 2 --global-batch-size 16 --lr 1e-2 --lr-decay-style constant --lr-warmup-iters 5 --train-iters 10
    --eval-iters 0 --device cpu --tokenizer-type NullTokenizer --vocab-size 30 --mock-data --hidden-dropout 0
    --attention-dropout 0 --tp 2 --pp 2 --sequence-parallel --use-distributed-optimizer""".split()


def test_own_loop(built, tmp_path):
    program = built("own_loop")
    ranks = [BINARY, "launch", "--nproc-per-node", "8", "--log-dir", tmp_path / "logs", "--"]

    def steps(output):
        return [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)$", output, re.MULTILINE)]

    whole = steps(run(*ranks, program, "2", "2", "10", tmp_path / "whole"))
    run(*ranks, "pretrain", "gpt", *OWN_LOOP, "--run-dir", tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert whole == [line["losses"]["lm loss"] for line in lines if line["type"] == "step"] and len(whole) == 10
    halves = [steps(run(*ranks, program, "2", "2", steps_done, tmp_path / "halves")) for steps_done in ("5", "10")]
    assert halves == [whole[:5], whole[5:]]
    shutil.rmtree(tmp_path / "halves" / "iter_0000010")
    serial = steps(run(program, "1", "1", "10", tmp_path / "halves"))
    assert serial == pytest.approx(whole[5:], rel=1e-6), "the checkpoint of 8 ranks on one"
    refused = run_all(program, "3", "1", "5", tmp_path / "other", code=2).stderr
    assert "1 ranks are not a multiple of tp 3" in refused
    assert "usage: own_loop" in run_all(program, code=2).stderr


def test_examples_include_public_headers_alone():
    listed = set(re.findall(r"`([a-z0-9_/]+\.h)`", (ROOT / "docs" / "library.md").read_text()))
    assert all((ROOT / "teratron" / header).exists() for header in listed)
    for source in (ROOT / "examples").glob("*/*.*"):
        included = set(re.findall(r'#include "teratron/(\S+)"', source.read_text()))
        assert included <= listed, f"{source}: {sorted(included - listed)} are not in docs/library.md"


def test_custom_model(built, tmp_path):
    program = built("custom_model")
    alone = run(program, "pretrain", "average", *TINY, "--save", tmp_path / "run", "--save-interval", "10")
    # Two layers of two norms and an MLP without biases, embedding and output of 128 padded rows, the last norm.
    parameters = 2 * (4 * 16 + 2 * 16 * 64) + 2 * 128 * 16 + 2 * 16
    assert f"model parallel rank (0, 0): {parameters}\n" in alone
    assert losses(alone)[-1] < losses(alone)[0]
    layout = ["--tp", "2", "--pp", "2", "--use-distributed-optimizer"]
    parallel = run(program, "launch", "--nproc-per-node", "8", "--backend", "threads", "--log-dir", tmp_path / "logs",
                   "--", "pretrain", "average", *TINY, *layout, "--micro-batch-size", "1")
    assert losses(parallel) == pytest.approx(losses(alone), rel=1e-4)
    resumed = run(program, "pretrain", "average", *TINY, "--load", tmp_path / "run", "--ckpt-step", "10")
    assert "at iteration 10" in resumed and losses(resumed) == losses(alone)[2:]
    run(program, "pretrain", "average", *TINY, "--reset-attention-mask", code=2)
    (tmp_path / "ids").write_text("1 2 3 4 5\n1 2 3\n")
    run(program, "logits", "--load", tmp_path / "run", "--input", tmp_path / "ids", "--output", tmp_path / "logits")
    five, three = (load_file(tmp_path / "logits")[f"logits.{line}"] for line in (0, 1))
    assert five.shape == (5, 31) and five[:3].allclose(three, atol=1e-5) and not five[0].allclose(five[1], atol=1e-5)
    refused = run_all(program, "generate", "--load", tmp_path / "run", "--prompt", "1", code=2).stderr
    assert "models of family average do not generate text" in refused and "one of gpt, t5" in refused
    unknown = run_all(BINARY, "logits", "--load", tmp_path / "run", "--input", tmp_path / "ids", "--output", tmp_path / "x", code=2)
    assert "'average' is not a known model" in unknown.stderr, "it is the program's"
    families = run(program, "pretrain", "--help")
    assert "average" in families and "gpt" in families, "the program's own families and those of teratron"


def tensors(checkpoint):
    return {name: tensor for file in sorted(Path(checkpoint).glob("*.safetensors"))
            for name, tensor in load_file(file).items()}


def sampled_texts(run_folder):
    """Prompts and texts of the last generation during a training."""
    events = [json.loads(line) for line in open(run_folder / "metrics.jsonl")]
    samples = [event for event in events if event["type"] == "sample"]
    return [event["text"] for event in samples if event["iteration"] == samples[-1]["iteration"]]


def test_own_model(built, tmp_path):
    """An encoder-decoder with its own mixer and two losses, of which one rank and eight compute the same."""
    program = built("own_model")
    flags = [*TINY, "--encoder-layers", "2", "--source-length", "12", "--kinds", "3", "--train-iters", "30"]
    sources = tmp_path / "sources.jsonl"
    sources.write_text("".join(json.dumps({
        "encoder_tokens": [1 + (7 * i + 5 * t) % 29 for t in range(12)], "tokens": [0] * (1 + i % 3),
        "max_new_tokens": 2 + i % 9, **({"num_beams": 3} if i % 5 == 4 else {"top_k": 1})}) + "\n" for i in range(20)))
    learned = run(program, "pretrain", "reverse", *flags, "--train-iters", "400", "--micro-batch-size", "8",
                  "--global-batch-size", "8", "--log-interval", "50", "--lr", "5e-3", "--lr-decay-style", "cosine",
                  "--hidden-dropout", "0", "--attention-dropout", "0", "--seed", "7", "--save", tmp_path / "learned",
                  "--generate-interval", "400", "--generate-prompts", sources)
    assert losses(learned)[-1] < losses(learned)[0] - 1 and kind_losses(learned)[-1] < 0.6
    texts = sampled_texts(tmp_path / "learned")
    assert len(texts) == 20 and len({len(text.split()) for text in texts}) > 4, "they end one after the other"
    for request, text in list(zip(map(json.loads, sources.read_text().splitlines()), texts))[::3]:
        assert text.split() == list(map(str, reversed(request["encoder_tokens"])))[:len(text.split())]
    answers = tmp_path / "answers.jsonl"
    for ranks, layout in (1, []), (4, ["--pp", "2"]):
        run(program, "launch", "--nproc-per-node", ranks, "--backend", "threads", "--log-dir", tmp_path / "logs", "--", "generate",
            "--load", tmp_path / "learned", *layout, "--device", "cpu", "--input", sources, "--output", answers)
        assert [json.loads(line)["text"] for line in answers.read_text().splitlines()] == texts, "with the checkpoint's own flags"
    run(program, "launch", "--nproc-per-node", "8", "--backend", "threads", "--log-dir", tmp_path / "logs", "--", "pretrain",
        "reverse", *flags, "--tp", "2", "--pp", "2", "--micro-batch-size", "1", "--train-iters", "401", "--lr", "1e-9",
        "--load", tmp_path / "learned", "--save", tmp_path / "eight", "--override-opt-param-scheduler",
        "--generate-interval", "401", "--generate-prompts", sources)
    assert sampled_texts(tmp_path / "eight") == texts, "with the same weights"
    planned = run(program, "plan", "reverse", *flags, "--tp", "2", "--pp", "2", "--world-size", "8")
    assert "Memory in GiB of a rank of each pipeline stage; peak" in planned, "the model describes its activations"
    alone = run(program, "pretrain", "reverse", *flags, "--save", tmp_path / "run", "--save-interval", "10")
    kinds = kind_losses(alone)
    features = [tensors(tmp_path / "run" / f"iter_{step:07}")["token_features"] for step in (10, 30)]
    assert (features[0] == features[1]).all(), "frozen"
    for more in (["--use-distributed-optimizer"], ["--sequence-parallel", "--recompute-granularity", "full",
                 "--recompute-method", "uniform", "--recompute-num-layers", "1"]):
        parallel = run(program, "launch", "--nproc-per-node", "8", "--backend", "threads", "--log-dir", tmp_path / "logs",
                       "--", "pretrain", "reverse", *flags, "--tp", "2", "--pp", "2", "--micro-batch-size", "1", *more)
        assert losses(parallel) == pytest.approx(losses(alone), rel=1e-4)
        assert kind_losses(parallel) == pytest.approx(kinds, rel=1e-4)
    resumed = run(program, "pretrain", "reverse", *flags, "--load", tmp_path / "run", "--ckpt-step", "10")
    assert losses(resumed) == losses(alone)[2:]
    assert "source is longer" in subprocess.run([program, "pretrain", "reverse", *flags, "--source-length", "99"],
                                                capture_output=True, text=True).stderr


def test_script_of_the_345m_model(tmp_path):
    """Its flags are understood; the data set is not there."""
    variables = {"CHECKPOINT_PATH": str(tmp_path / "checkpoints"), "VOCAB_FILE": "none.json", "MERGE_FILE": "none.txt",
                 "DATA_PATH": str(tmp_path / "data"), "TERATRON": BINARY}
    done = subprocess.run([ROOT / "examples" / "pretrain_gpt.sh", "--bf16", "--fp16=false"], capture_output=True,
                          text=True, env={**os.environ, **variables})
    assert done.returncode == 3 and "none.json" in done.stderr, done.stderr
    del variables["VOCAB_FILE"]
    done = subprocess.run([ROOT / "examples" / "pretrain_gpt.sh"], capture_output=True, text=True,
                          env={**os.environ, **variables})
    assert done.returncode != 0 and "VOCAB_FILE" in done.stderr


def test_script_of_the_345m_model_with_model_parallelism(tmp_path):
    """Four ranks understand its flags; the vocabulary is not there."""
    variables = {"CHECKPOINT_PATH": tmp_path / "checkpoints", "VOCAB_FILE": "none.json", "MERGE_FILE": "none.txt",
                 "DATA_PATH": tmp_path / "data", "TERATRON": BINARY, "GPUS_PER_NODE": 4, "TERATRON_BACKEND": "threads"}
    done = subprocess.run([ROOT / "examples" / "pretrain_gpt_distributed_with_mp.sh", "--device", "cpu"],
                          capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, **{name: str(value) for name, value in variables.items()}})
    assert done.returncode == 3 and "none.json" in done.stderr, done.stderr


def test_script_of_gpt2_large(tmp_path):
    """The file of Accelerate starts four ranks, which understand its flags; the vocabulary is not there."""
    done = subprocess.run([ROOT / "examples" / "gpt2_large.sh", tmp_path / "data", tmp_path / "none", "--run-dir",
                           tmp_path / "run", "--device", "cpu"], capture_output=True, text=True,
                          env={**os.environ, "TERATRON": BINARY, "TERATRON_BACKEND": "processes"})
    assert done.returncode == 3 and "vocab.json" in done.stderr, done.stderr
    assert len(list((tmp_path / "run" / "logs").iterdir())) == 4


def test_installed_program_talks_over_mpi(installed, tmp_path):
    program, library = installed / "bin" / "teratron", installed / "lib" / "teratron" / "libteratron_mpi.so"
    if not library.exists() or not shutil.which("mpirun"):
        pytest.skip("built without MPI")
    places = re.search(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", program)).group(1).split(":")
    assert str(BUILD) not in " ".join(places) and "$ORIGIN/../lib/teratron" in places
    output = run(program, "launch", "--backend", "mpi", "--nproc-per-node", "2", "--log-dir", tmp_path, "--", "pretrain",
                 "gpt", *TINY)
    assert len(losses(output)) == 4


WORDS = "good fine great bad poor awful film plot cast the a was is and not very".split()
BERT = """--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
    --micro-batch-size 4 --global-batch-size 8 --lr 3e-3 --log-interval 10 --device cpu --num-threads 1
    --eval-iters 1 --eval-interval 1000""".split()


def texts(path, label):
    """Eight words each; label(words) is written before them."""
    lines = [[WORDS[(7 * i + 5 * k * k + i * k) % len(WORDS)] for k in range(3 + i % 6)] for i in range(64)]
    path.write_text("".join(f"{label(words)}\t{' '.join(words[:2])}\t{' '.join(words[2:])}\n" for words in lines))
    return path


def bert_losses(output):
    return [float(loss) for loss in re.findall(r" loss: (\S+) \|", output)]


def test_bert_classifier(built, tmp_path):
    """Classes, labels and numbers of texts, alone and in parallel, and on the weights of a pretrained BERT."""
    program = built("bert_classifier")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    flags = [*BERT, "--vocab-file", tmp_path / "vocab.txt", "--train-iters", "60"]
    kinds = {"classes": (lambda words: int("good" in words), ["--num-labels", "2"]),
             "number": (lambda words: len(words) / 4, ["--num-labels", "1"]),
             "labels": (lambda words: ",".join(str(i) for i in range(3) if i == 0 or WORDS[i] in words),
                        ["--num-labels", "3", "--multi-label"])}
    for name, (label, more) in kinds.items():
        data = ["--train-data-path", texts(tmp_path / f"{name}.tsv", label), *more]
        alone = run(program, "pretrain", "classifier", *flags, *data)
        assert bert_losses(alone)[-1] < 0.9 * bert_losses(alone)[0], name
        assert ("accuracy: " in alone) == (name == "classes")
        parallel = run(program, "launch", "--nproc-per-node", "4", "--backend", "threads", "--log-dir",
                       tmp_path / "logs", "--", "pretrain", "classifier", *flags, *data, "--tp", "2", "--pp", "2")
        assert bert_losses(parallel) == pytest.approx(bert_losses(alone), rel=1e-3), name
    listed = run(program, "plan", "classifier", *flags, *data)
    assert "tokenizer_type = BertWordPieceLowerCase  (default of the program)" in listed and "lr = 0.003  (--lr)" in listed
    assert re.search(r"--lr X .*\[2e-05\]", run(program, "pretrain", "classifier", "--help"))
    pretrain = [*flags, "--mock-data", "--save", tmp_path / "bert", "--train-iters", "4", "--save-interval", "4"]
    run(BINARY, "pretrain", "bert", *pretrain)
    finetune = ["pretrain", "classifier", *flags, *data, "--pretrained-checkpoint", tmp_path / "bert", "--lr", "1e-12"]
    run(program, *finetune, "--train-iters", "1", "--save", tmp_path / "tuned", "--save-interval", "1")
    before, after = tensors(tmp_path / "bert" / "iter_0000004"), tensors(tmp_path / "tuned" / "iter_0000001")
    encoder = [name for name in after if name.startswith(("encoder.", "embedding.", "pooler."))]
    assert len(encoder) > 20 and all((after[name] - before[name]).abs().max() < 1e-6 for name in encoder)
    assert "classification_head.weight" in after and "lm_head.dense.weight" not in after
    other = run_all(program, "pretrain", "classifier", *flags, *data, "--load", tmp_path / "bert", code=4)
    assert "family bert" in other.stderr
    (tmp_path / "wrong.tsv").write_text("7\tgood film\n")
    wrong = run_all(program, "pretrain", "classifier", *flags, "--train-data-path", tmp_path / "wrong.tsv", code=3)
    assert "the label 7 is not from 0 to 1" in wrong.stderr
