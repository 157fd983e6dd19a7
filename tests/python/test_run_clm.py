"""examples/run_clm.py with a model and a tokenizer of transformers, on ranks TP 2 x PP 2."""
import importlib.util
import math
from pathlib import Path

import pytest
import teratron
from small import LONG

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run_clm():
    spec = importlib.util.spec_from_file_location("run_clm", ROOT / "examples/run_clm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a tokenizer of words, and two texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    folder = tmp_path_factory.mktemp("model")
    words = ["<end>", *(f"w{i}" for i in range(63))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                               attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    for name, count in (("train", 330), ("valid", 100)):
        (folder / f"{name}.txt").write_text(" ".join(f"w{(5 * i) % 63}" for i in range(count)))
    return folder


def trained(run_clm, folder, out, *more, ranks=4):
    argv = ["--config_name", folder, "--train_file", folder / "train.txt", "--validation_file", folder / "valid.txt", "--block_size", 16,
            "--per_device_train_batch_size", 2, "--per_device_eval_batch_size", 2, "--num_train_epochs", 3, "--learning_rate", "1e-2",
            "--checkpointing_steps", "epoch", "--output_dir", out, "--tp_degree", 2, "--pp_degree", 2, "--num_micro_batches", 2,
            "--cpu", *more]
    return teratron.run_ranks(ranks, lambda world: run_clm.main(list(map(str, argv)), world))


def test_it_trains_evaluates_saves_and_resumes(run_clm, folder, tmp_path, capsys):
    whole = trained(run_clm, folder, tmp_path / "out")
    assert all(report == whole[0] for report in whole)
    losses = [epoch["eval_loss"] for epoch in whole[0]]
    assert losses[2] < losses[0] < math.log(64) + 0.1 and [len(epoch["losses"]) for epoch in whole[0]] == [5, 5, 5]
    shown = capsys.readouterr().out
    assert "20 blocks, 4 a step, 15 steps" in shown and shown.count("perplexity") == 3
    assert teratron.Checkpoint(tmp_path / "out/epoch_0").iteration == 5 and teratron.Checkpoint(tmp_path / "out").iteration == 15
    resumed = trained(run_clm, folder, tmp_path / "again", "--resume_from_checkpoint", tmp_path / "out/epoch_0")
    assert resumed[0] == whole[0][1:]


@pytest.mark.skipif(not LONG, reason="long: ./run test --long")
def test_weights_of_a_folder_and_data_parallel_ranks(run_clm, folder, tmp_path):
    one = trained(run_clm, folder, tmp_path / "one", "--model_name_or_path", folder, "--max_train_steps", 2, "--tp_degree", 1,
                  "--pp_degree", 1, ranks=1)
    two = trained(run_clm, folder, tmp_path / "two", "--model_name_or_path", folder, "--max_train_steps", 2, "--tp_degree", 1,
                  "--pp_degree", 1, "--num_micro_batches", 1, ranks=2)
    assert two[0][0]["losses"] == pytest.approx(one[0][0]["losses"], rel=1e-5)
    from transformers import AutoModelForCausalLM
    import torch
    model = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(42)
    order = torch.randperm(20, generator=generator)[:4]
    ids = torch.tensor([[1 + (5 * i) % 63 for i in range(330)]])[0, :320].view(20, 16)[order]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    labels = torch.cat([ids[:, 1:], torch.zeros(4, 1, dtype=torch.long)], 1)  # the last one is the end of the document
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 64), labels.reshape(-1)).item()
    assert one[0][0]["losses"][0] == pytest.approx(expected, rel=1e-4)
