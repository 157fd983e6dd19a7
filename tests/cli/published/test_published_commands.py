"""Command lines of the documents, typed with `teratron` for `python` and `teratron launch` for the launchers: only paths and
sizes differ. commands.jsonl holds those of Megatron-LM's scripts, as their shell expands them."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from program import BINARY, environment, free_port, message, needs_binary, teratron

pytestmark = needs_binary
ROOT = Path(__file__).resolve().parents[3]
COMMANDS = [json.loads(line) for line in (ROOT / "tests/fixtures/cli/commands.jsonl").read_text().splitlines()]
WORDS = "the a cat dog bird sat ran flew on under over mat tree house and then slept while it was dark cold".split()
TEXT = [f"{a.capitalize()} {b} {c}. {d.capitalize()} {a} {b}." for a, b, c, d in zip(WORDS, WORDS[3:], WORDS[5:], WORDS[7:])] * 8

SIZES = ["--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2", "--seq-length", "16",
         "--max-position-embeddings", "16", "--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", "2",
         "--lr-decay-iters", "2", "--eval-iters", "0", "--log-interval", "1", "--tensor-model-parallel-size", "1",
         "--pipeline-model-parallel-size", "1"]
MORE_SIZES = {"pretrain_t5.py": ["--encoder-num-layers", "2", "--decoder-num-layers", "2", "--kv-channels", "8", "--ffn-hidden-size",
                                 "32", "--encoder-seq-length", "16", "--decoder-seq-length", "8"],
              "--num-experts": ["--ffn-hidden-size", "32", "--num-query-groups", "2", "--num-experts", "2", "--lr-warmup-iters", "0",
                                "--expert-model-parallel-size", "1", "--num-layers", "2"],
              "--rampup-batch-size": ["--rampup-batch-size", "2", "2", "4"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The corpus, the vocabularies and the datasets of the README, made by its command lines."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "my-corpus.json").write_text("".join(json.dumps({"src": "x", "text": text, "id": str(i)}) + "\n"
                                                   for i, text in enumerate(TEXT)))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(word.capitalize() for word in WORDS), "."]
    (folder / "bert-vocab.txt").write_text("\n".join(words) + "\n")
    teratron("tokenizer", "train", "--input", folder / "my-corpus.json", "--vocab-size", 300, "--output", folder)
    shutil.move(folder / "vocab.json", folder / "gpt2-vocab.json")
    shutil.move(folder / "merges.txt", folder / "gpt2-merges.txt")
    bert = ["--vocab-file", "bert-vocab.txt", "--tokenizer-type", "BertWordPieceLowerCase", "--split-sentences"]
    gpt = ["--vocab-file", "gpt2-vocab.json", "--tokenizer-type", "GPT2BPETokenizer", "--merge-file", "gpt2-merges.txt", "--append-eod"]
    for line in (["--output-prefix", "my-bert", *bert], ["--output-prefix", "my-gpt2", "--dataset-impl", "mmap", *gpt]):
        result = run("tools/preprocess_data.py", "--input", "my-corpus.json", *line, cwd=folder)
        assert result.stderr.count("tools/preprocess_data.py is `teratron preprocess` here") == 1
    assert (folder / "my-bert_text_sentence.idx").exists() and (folder / "my-gpt2_text_document.bin").exists()
    return folder


def run(*command, cwd, code=0, **variables):
    done = subprocess.run([BINARY, *map(str, command)], cwd=cwd, capture_output=True, text=True, errors="replace", timeout=120,
                          stdin=subprocess.DEVNULL, env={**environment(), **variables})
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done


def placed(args, files, family):
    """The arguments with paths of files that are there."""
    gpt = family == "pretrain_gpt.py"
    data = "my-llama_text_document" if "--tokenizer-model" in args else "my-gpt2_text_document" if gpt else "my-bert_text_sentence"
    paths = {"--vocab-file": "gpt2-vocab.json" if gpt else "bert-vocab.txt", "--merge-file": "gpt2-merges.txt",
             "--data-path": data, "--tokenizer-model": "sp.model"}
    out = list(args)
    for i, flag in enumerate(args[:-1]):
        if flag in paths:
            out[i + 1] = str(files / paths[flag])
        elif flag in ("--save", "--load", "--tensorboard-dir"):
            out[i + 1] = "checkpoints"
    return out


def sentencepiece_model(folder):
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_prefix=str(folder / "sp"), vocab_size=60,
                                             minloglevel=2, hard_vocab_limit=False)
    run("tools/preprocess_data.py", "--input", "my-corpus.json", "--output-prefix", "my-llama", "--tokenizer-type", "Llama2Tokenizer",
        "--tokenizer-model", "sp.model", cwd=folder)


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_lines_of_the_scripts(number, files, tmp_path):
    program, args = COMMANDS[number]["program"], COMMANDS[number]["args"]
    if "--tokenizer-model" in args:
        sentencepiece_model(files)
    sizes = [*SIZES, *(flag for key, more in MORE_SIZES.items() if key == program or key in args for flag in more)]
    launcher = [[], ["launch", "--nproc_per_node", "2"], ["launch", "--nproc_per_node", "2", "--"]][number % 3]
    path = ["", "examples/", "/workspace/megatron/"][number % 3] + program
    done = run(*launcher, path, *placed(args, files, program), *sizes, cwd=tmp_path)
    family = program.removeprefix("pretrain_").removesuffix(".py")
    assert done.stderr.count(f"{path} is `teratron pretrain {family}` here") == 1, done.stderr
    assert len(re.findall(r" iteration +\d/ +2 \|", done.stdout)) == 2, done.stdout
    if "--rampup-batch-size" in args:
        assert "--rampup-batch-size with --train-iters, which Megatron-LM refuses" in done.stderr
    assert (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "2"


def test_the_rate_of_a_ramp_up_in_steps(files, tmp_path):
    """Batches of 2, 2, 4, 6, 6, 6: the decay ends with the last step, as 26 samples do."""
    sizes = [*SIZES, "--micro-batch-size", "2", "--global-batch-size", "6", "--train-iters", "6", "--lr-decay-iters", "6",
             "--rampup-batch-size", "2", "2", "5", "--lr", "1e-3", "--min-lr", "1e-5", "--lr-decay-style", "linear"]
    data = ["--data-path", "my-gpt2_text_document", "--vocab-file", "gpt2-vocab.json", "--merge-file", "gpt2-merges.txt"]
    out = run("pretrain_gpt.py", *sizes, *data, cwd=files).stdout
    samples = [int(n) for n in re.findall(r"consumed samples: +(\d+)", out)]
    rates = [float(rate) for rate in re.findall(r"learning rate: (\S+)", out)]
    batches = [after - before for before, after in zip([0, *samples], samples)]
    assert batches[0] == 2 and batches[-1] == 6 and batches == sorted(batches)
    assert rates[-1] == pytest.approx(1e-5)
    for n, rate in zip(samples, rates):
        assert rate == pytest.approx(1e-5 + (1e-3 - 1e-5) * (1 - n / samples[-1]), rel=1e-5)


def test_a_step_schedule_beside_a_batch_size(files):
    flags = [*SIZES, "--step-batch-size-schedule", "0:2 32:4", "--global-batch-size", "8", "--lr", "1e-3"]
    data = ["--data-path", "my-gpt2_text_document", "--vocab-file", "gpt2-vocab.json", "--merge-file", "gpt2-merges.txt"]
    done = run("pretrain_gpt.py", *flags, *data, cwd=files)
    assert "--global-batch-size 8 has no effect: --step-batch-size-schedule holds every batch size" in done.stderr


def test_flags_of_the_source_walk(files):
    """Those without effect have Megatron-LM's values alone; --mmap-warmup changes no loss."""
    line = ["pretrain_bert.py", *SIZES, "--lr", "1e-3", "--data-path", "my-bert_text_sentence", "--vocab-file", "bert-vocab.txt"]
    losses = []
    for more in ([], ["--mmap-warmup", "--DDP-impl", "local", "--use-contiguous-buffers-in-ddp"]):
        done = run(*line, *more, cwd=files)
        losses.append(re.findall(r"lm loss: (\S+)", done.stdout))
        for each in ("building BERT model ...", "> building train, validation, and test datasets for BERT ...",
                     "> finished creating BERT datasets ..."):
            assert f"\n{each}\n" in done.stdout, each
    assert losses[0] == losses[1] and len(losses[0]) == 2
    assert "--DDP-impl has no effect" in done.stderr and "--use-contiguous-buffers-in-ddp has no effect" in done.stderr
    message(run(*line, "--DDP-impl", "horovod", cwd=files, code=2), "--DDP-impl", "local, torch")
    message(run(*line, "--hybrid-attention-ratio", "0.1", cwd=files, code=2), "--hybrid-attention-ratio")


# ---- Accelerate's page ----

CONFIG = """compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: MEGATRON_LM
downcast_bf16: 'no'
fsdp_config: {}
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 2
  megatron_lm_use_distributed_optimizer: true
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
use_cpu: false
"""
TINY_GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32, "vocab_size": 300,
             "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "architectures": ["GPT2LMHeadModel"]}


@pytest.fixture(scope="module")
def hub(files, tmp_path_factory):
    """Hugging Face's cache with a small model by the name of the page, and the texts of its dataset."""
    folder = tmp_path_factory.mktemp("hub")
    snapshot = folder / "cache" / "models--tiny--gpt2" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps(TINY_GPT2))
    shutil.copy(files / "gpt2-vocab.json", snapshot / "vocab.json")
    shutil.copy(files / "gpt2-merges.txt", snapshot / "merges.txt")
    (folder / "megatron_gpt_config.yaml").write_text(CONFIG)
    (folder / "wikitext").mkdir()
    (folder / "wikitext" / "wiki.train.raw").write_text(" \n".join(f" {text} \n" for text in TEXT))
    (folder / "wikitext" / "wiki.valid.raw").write_text(" \n".join(f" {text} \n" for text in TEXT[:30]))
    return folder


def page(*more, launcher=("launch", "--config_file", "megatron_gpt_config.yaml"), tracking=("--with_tracking", "--report_to", "wandb"),
         name="tiny/gpt2"):
    return [*launcher, "examples/by_feature/megatron_lm_gpt_pretraining.py", "--config_name", name, "--tokenizer_name", name,
            "--dataset_name", "wikitext", "--dataset_config_name", "wikitext-2-raw-v1", "--block_size", "16",
            "--learning_rate", "5e-3", "--per_device_train_batch_size", "2", "--per_device_eval_batch_size", "2",
            "--num_train_epochs", "2", *tracking, "--output_dir", "awesome_model", *more]


def test_accelerate_s_page_on_four_ranks(hub):
    done = run(*page(), cwd=hub, HF_HUB_CACHE=str(hub / "cache"), TERATRON_BACKEND="processes")
    out = done.stdout + done.stderr
    assert out.count("megatron_lm_gpt_pretraining.py is `teratron pretrain gpt") == 1 and out.count("run_clm's flags are") == 1
    assert "tools/wandb_follow.py awesome_model/metrics.jsonl --to wandb" in out
    epochs = re.findall(r"^.*epoch (\d): perplexity: (\S+) eval_loss: (\S+)$", done.stdout, re.MULTILINE)
    assert [epoch for epoch, _, _ in epochs] == ["0", "1"], done.stdout
    assert float(epochs[1][1]) < float(epochs[0][1]), "it learns"
    assert re.search(r"  hidden_size \.+ 16\n", out), "the model of that name, not the preset gpt2"
    assert re.search(r"pipeline_model_parallel_size \.+ 2", out) and re.search(r"num_micro_batches \.+ 2", out)
    assert sorted(re.findall(r"model parallel rank \((\d, \d)\): \d+\n", done.stdout)) == ["0, 0", "0, 1", "1, 0", "1, 1"], "of all ranks"
    examples, steps = (int(re.search(rf"^  {name} = (\d+)$", done.stdout, re.MULTILINE)[1]) for name in ("Num examples",
                                                                                                   "Total optimization steps"))
    for line in ("Building gpt model in the pre-training mode.", "building GPT model ...", "***** Running training *****",
                 "> building train, validation, and test datasets for GPT ...", "> finished creating GPT datasets ...",
                 "  Num Epochs = 2", "  Instantaneous batch size per device = 2",
                 "  Total train batch size (w. parallel, distributed & accumulation) = 4", "  Gradient Accumulation steps = 2"):
        assert f"\n{line}\n" in "\n" + done.stdout, line
    index = next((hub / "awesome_model" / "blocks").glob("wiki.train-*.idx")).read_bytes()
    blocks = int.from_bytes(index[18:26], "little")
    assert examples == blocks - 1 and steps == 2 * examples // 4, "the last token of the last block predicts none"
    assert (hub / "awesome_model" / "latest_checkpointed_iteration.txt").exists()
    assert len(list((hub / "awesome_model" / "logs").iterdir())) == 4


def test_accelerate_s_page_with_other_words(hub, tmp_path):
    """One process, no launcher; steps in place of epochs; files in place of a dataset; the cache of blocks."""
    shutil.copytree(hub / "wikitext", tmp_path / "wikitext")
    (tmp_path / "t.txt").write_text("\n".join(TEXT) + "\n")
    cache = {"HF_HUB_CACHE": str(hub / "cache")}
    line = page("--max_train_steps", "5", launcher=(), tracking=("--with_tracking", "--report_to", "tensorboard"))
    first = run(*line, "--num_warmup_steps", "1", "--weight_decay", "0.1", "--device", "cpu", cwd=tmp_path, **cache)
    assert "epoch 0: perplexity: " in first.stdout and first.stderr.count(" blocks of 16 tokens") == 2
    assert "\n  Num Epochs = 1\n" in first.stdout and "\n  Total optimization steps = 5\n" in first.stdout
    assert list((tmp_path / "awesome_model" / "clm_no_trainer").iterdir())
    again = run(*line, "--resume_from_checkpoint", "awesome_model", "--max_train_steps", "6", "--device", "cpu",
                "--override-opt-param-scheduler", cwd=tmp_path, **cache)
    assert "blocks of 16 tokens" not in again.stderr and "at iteration 5" in again.stdout
    split = run("pretrain", "gpt", "--config_name", "tiny/gpt2", "--tokenizer_name", "tiny/gpt2", "--train_file", "t.txt",
                "--validation_split_percentage", "25", "--block_size", "8", "--learning_rate", "1e-3",
                "--per_device_train_batch_size", "4", "--num_train_epochs", "1", "--eval-iters", "1", "--device", "cpu",
                cwd=tmp_path, **cache)
    blocks = [int(n) for n in re.findall(r"(\d+) blocks of 8 tokens", split.stderr)]
    assert len(blocks) == 2 and blocks[1] == pytest.approx(blocks[0] / 3, rel=0.2) and "epoch 0: perplexity" in split.stdout


@pytest.mark.parametrize("more, words", [
    (["--config_name", "nobody/nothing"], ["--config_name", "'nobody/nothing' is neither a folder, a preset", "hf download"]),
    (["--tokenizer_name", "gpt2-large"], ["--tokenizer_name", "'gpt2-large'", "--vocab-file"]),
    (["--dataset_name", "nowhere"], ["--dataset_name", "--train_file FILE --validation_file FILE"])])
def test_a_name_that_is_not_there(hub, more, words):
    done = run(*page(*more, launcher=(), tracking=()), cwd=hub, code=3, HF_HUB_CACHE=str(hub / "cache"))
    message(done, *words)


def test_a_preset_by_its_published_name(hub):
    """Planned by the error of the text alone: the model is one of the presets."""
    done = run(*page("--config_name", "openai-community/gpt2-large", "--dataset_name", "nowhere", launcher=()), cwd=hub, code=3,
               HF_HUB_CACHE=str(hub / "cache"))
    message(done, "nowhere")


def test_a_dataset_in_the_cache(hub, tmp_path):
    """Its texts, in the folder of the configuration; tables are not read."""
    snapshot = tmp_path / "cache" / "datasets--someone--wikitext" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    (tmp_path / "cache" / "models--tiny--gpt2").symlink_to(hub / "cache" / "models--tiny--gpt2")
    (snapshot / "wikitext-2-raw-v1").mkdir()
    (snapshot / "wikitext-2-raw-v1" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    line = page("--dataset_name", "someone/wikitext", "--checkpointing_steps", "epoch", launcher=(), tracking=())
    cache = {"HF_HUB_CACHE": str(tmp_path / "cache")}
    message(run(*line, cwd=tmp_path, code=3, **cache), "'someone/wikitext' is in Hugging Face's cache, but in no format that is read",
            "load_dataset('someone/wikitext', 'wikitext-2-raw-v1')", "--train_file FILE")
    (snapshot / "wikitext-2-raw-v1" / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXT))
    done = run(*line, "--device", "cpu", cwd=tmp_path, **cache)
    iterations = int(re.search(r"Total optimization steps = (\d+)", done.stdout)[1])
    saved = sorted(path.name for path in (tmp_path / "awesome_model").glob("iter_*"))
    assert len(saved) == 2 and saved[1] == f"iter_{iterations:07d}", "one of each epoch"


def test_other_flags_of_run_clm(hub, tmp_path):
    """Those of transformers' script and of uploads; a folder to overwrite; a checkpoint that is not there."""
    shutil.copytree(hub / "wikitext", tmp_path / "wikitext")
    line = [*page("--do_train", "--do_eval", "--preprocessing_num_workers", "2", "--max_train_steps", "2", launcher=(), tracking=()),
            "--device", "cpu", "--lr-decay-iters", "9"]
    cache = {"HF_HUB_CACHE": str(hub / "cache")}
    upload = ["--push_to_hub", "--hub_model_id", "me/mine", "--hub_token", "hf_abcdefgh"]
    done = run(*line, *upload, cwd=tmp_path, **cache)
    assert "nothing is uploaded: `hf upload` does it" in done.stderr
    written = [file for file in tmp_path.rglob("*") if file.is_file() and b"hf_abcdefgh" in file.read_bytes()]
    assert "hf_abcdefgh" not in done.stdout + done.stderr and not written
    again = run(*line, "--overwrite_output_dir", cwd=tmp_path, **cache)
    assert re.findall(r"lm loss: \S+", again.stdout) == re.findall(r"lm loss: \S+", done.stdout)
    message(run(*line, "--resume_from_checkpoint", "nowhere", "--output_dir", "other", cwd=tmp_path, code=4, **cache), "nowhere")


def test_values_of_run_clm_that_are_not_ours(hub):
    done = run(*page("--no-such-flag", "1", launcher=()), cwd=hub, code=2, HF_HUB_CACHE=str(hub / "cache"))
    message(done, "--no-such-flag")
    assert "--data-path" not in done.stderr
    message(run(*page("--lr_scheduler_type", "polynomial", launcher=()), cwd=hub, code=2), "lr_scheduler_type", "linear")
    message(run(*page("--report_to", "comet_ml", launcher=()), cwd=hub, code=2), "report_to", "wandb")


# ---- Checkpoints, tasks, server, merge ----

@pytest.fixture(scope="module")
def checkpoint(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "gpt"
    run("pretrain_gpt.py", *SIZES, "--lr", "1e-3", "--data-path", "my-gpt2_text_document", "--vocab-file", "gpt2-vocab.json",
        "--merge-file", "gpt2-merges.txt", "--save", folder, cwd=files)
    return folder


@pytest.mark.parametrize("program, loader, saver", [("tools/checkpoint/util.py", "megatron", "megatron"),
                                                    ("convert.py", "mcore", "mcore")])
def test_megatron_s_converter(checkpoint, tmp_path, program, loader, saver):
    for source, target, ranks in ((checkpoint, "two", 2), ("two", "one", 1)):
        done = run(program, "--model-type", "GPT", "--loader", loader, "--saver", saver, "--load-dir", source, "--save-dir", target,
                   "--target-tensor-parallel-size", ranks, "--target-pipeline-parallel-size", 1, cwd=tmp_path)
        assert done.stderr.count(f"{program} is `teratron ckpt convert` here; no effect: --loader {loader}") == 1
        assert len(list((tmp_path / target).glob("*/mp_rank_*"))) == ranks
    message(run(program, "--model-type", "T5", "--load-dir", "two", "--save-dir", "x", cwd=tmp_path, code=2), "--model-type T5",
            "is a model of the family gpt")
    message(run(program, "--loader", "other", "--load-dir", "two", "--save-dir", "x", cwd=tmp_path, code=2), "--loader", "mcore")


def test_accelerate_s_converter(checkpoint, tmp_path):
    reshape = "checkpoint_utils/megatgron_gpt2/checkpoint_reshaping_and_interoperability.py"
    run("checkpoint_reshaping_and_interoperability.py", "--convert_checkpoint_from_megatron_to_transformers", "--load_path", checkpoint,
        "--save_path", "trfs", "--max_shard_size", "200MB", "--tokenizer_name", "gpt2", "--print-checkpoint-structure", cwd=tmp_path)
    run(reshape, "--load_path", "trfs", "--save_path", "megatron", "--target_tensor_model_parallel_size", "2",
        "--target_pipeline_model_parallel_size", "2", "--target_data_parallel_size", "2", "--target_params_dtype", "bf16",
        "--make_vocab_size_divisible_by", "128", "--use_distributed_optimizer", "--print-checkpoint-structure", cwd=tmp_path)
    assert json.loads((tmp_path / "trfs" / "config.json").read_text())["model_type"] == "gpt2" and len(list((tmp_path / "megatron").glob("*/mp_rank_*"))) == 4


def test_other_programs(checkpoint, files, tmp_path):
    merged = run("tools/merge_datasets.py", "--input", files, "--output-prefix", "merged", cwd=tmp_path)
    assert re.match(r"merged: \d datasets", merged.stdout) and "tools/merge_datasets.py is `teratron merge` here" in merged.stderr
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": "The cat sat on the mat"}) + "\n")
    done = run("tasks/main.py", "--task", "LAMBADA", "--valid-data", "lambada.jsonl", "--load", checkpoint, "--strict-lambada",
               "--micro-batch-size", "1", "--device", "cpu", cwd=tmp_path)
    assert "tasks/main.py is `teratron tasks` here" in done.stderr
    done = run("launch", "--nproc_per_node", "1", "src/inference/megatron_gpt2_generation.py", "--resume_from_checkpoint", checkpoint,
               "--tokenizer_name", "gpt2", "--prompt", "The cat", "--max-new-tokens", "2", "--device", "cpu", cwd=tmp_path)
    assert "no effect: --tokenizer_name gpt2" in done.stderr
    message(run("tools/run_text_generation_server.py", "--load", tmp_path / "none", "--port", free_port(), cwd=tmp_path, code=4), "none")
    message(run("pretrain_blip.py", cwd=tmp_path, code=2), "'blip' is not a known model")
    message(run("pretrain_ict.py", cwd=tmp_path, code=2), "there are no retrieval models (ICT, REALM, ORQA)")
    message(run("launch", "--nproc_per_node", "2", "pretrain_retro.py", cwd=tmp_path, code=2), "there are no Retro models")


def test_an_own_program_of_a_published_name(tmp_path):
    script = tmp_path / "main.py"
    script.write_text("#!/bin/sh\necho mine $RANK >> ran\n")
    script.chmod(0o755)
    run("launch", "--nproc_per_node", "2", "--backend", "processes", "./main.py", cwd=tmp_path)
    assert sorted((tmp_path / "ran").read_text().split("\n")) == ["", "mine 0", "mine 1"]
