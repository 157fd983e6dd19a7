"""The blocks of Python of Accelerate's page on Megatron-LM (accelerate_page.py), with `accelerate` replaced by `teratron.accelerate`:
on ranks TP 2 x PP 2. What the page leaves open, names and counters of loops, the tests set."""
import json
import os
import textwrap
import types
from functools import partial

import pytest
import teratron
import torch
from accelerate_page import (
    ALIBI, APPEND_LOSS, BATCH_SIZE, DATALOADER, GENERATE, GENERATE_PLUGIN, JOIN_LOSSES, LOGITS, LOOP, MULTIQUERY,
    PREPARE, SAVE, SCHEDULER, TRAIN_STEP)
from teratron.accelerate import Accelerator, DistributedType
from test_accelerate import Blocks, Model

def run(block, names):
    text = textwrap.dedent(block).replace("from accelerate", "from teratron.accelerate")
    exec(compile(text, "the page", "exec"), names)
    return names


def names_of(world, plugin, **args):
    """What a script has before the page's blocks."""
    from teratron.accelerate import MegatronLMPlugin
    plugin = MegatronLMPlugin(**{"tp_degree": 2, "pp_degree": 2, "num_micro_batches": 2, **plugin})
    accelerator = Accelerator(megatron_lm_plugin=plugin, cpu=True, world=world)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settings = types.SimpleNamespace(**{"max_train_steps": 4, "num_warmup_steps": 1, "per_device_train_batch_size": 2,
                                        "per_device_eval_batch_size": 2, "gradient_accumulation_steps": 1, **args})
    return {"accelerator": accelerator, "DistributedType": DistributedType, "model": model, "optimizer": optimizer, "torch": torch,
            "partial": partial, "os": os, "args": settings}


def plugin_of(block, **names):
    """The other_megatron_args and return_logits of the plugin that a block makes, for ranks TP 2 x PP 2."""
    from teratron.accelerate import MegatronLMPlugin
    plugin = run(block, {"MegatronLMPlugin": MegatronLMPlugin, "os": os, **names})["megatron_lm_plugin"]
    return {"other_megatron_args": plugin.other_megatron_args, "return_logits": plugin.return_logits}


def prepared(names, rows=8):
    """prepare() with two DataLoaders."""
    run(SCHEDULER, names)
    train = torch.utils.data.DataLoader(Blocks(rows), shuffle=True, batch_size=2)
    valid = torch.utils.data.DataLoader(Blocks(4), batch_size=2)
    things = names["accelerator"].prepare(names["model"], names["optimizer"], names["lr_scheduler"], train, valid)
    names.update(zip(("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"), things))
    return names


def test_the_changes_to_run_clm(tmp_path):
    def on_rank(world):
        names = prepared(names_of(world, {}, output_dir=str(tmp_path / "out")))
        assert run(BATCH_SIZE, names)["total_batch_size"] == 4
        model = names["model"]
        for batch in names["train_dataloader"]:
            model(**batch)
        model.eval()
        names["losses"] = []
        for batch in names["eval_dataloader"]:
            names["loss"] = model(**batch).loss
            run(APPEND_LOSS, names)
        run(JOIN_LOSSES, names)
        run(SAVE, names)
        return names["losses"].tolist()

    found = teratron.run_ranks(4, on_rank)
    assert len(found[0]) == 1 and all(losses == found[0] for losses in found)
    assert teratron.Checkpoint(tmp_path / "out").iteration == 2


class Words:
    """A tokenizer of a script, with an id for each of the page's keywords but one."""

    def __call__(self, texts):
        return types.SimpleNamespace(input_ids=[[hash_of(text)] if text != "sk" else [1, 2] for text in texts])


def hash_of(text):
    return 5 + sum(map(ord, text)) % 90


def test_a_custom_train_step_on_indexed_datasets(tmp_path, capsys):
    with teratron.IndexedDatasetWriter(tmp_path / "corpus", vocab_size=200) as writer:
        for i in range(40):
            writer.add([(7 * i + 3 * s) % 199 for s in range(70)])
            writer.end_document()

    def on_rank(world, custom=True):
        names = names_of(world, {}, data_path=[str(tmp_path / "corpus")], splits_string="60,20,20", block_size=64)
        if custom:
            names["tokenizer"] = Words()
            run(TRAIN_STEP, names)["main"]()
            assert len(names["accelerator"].state.megatron_lm_plugin.custom_train_step_kwargs["keytoken_ids"]) == 9
        run(SCHEDULER, names)
        run(DATALOADER, names)
        run(PREPARE, names)
        assert (names["train_dataloader"] is None) == (world.rank % 2 == 1)
        names.update(completed_steps=0, eval_interval=2, eval_iters=2, shown=[])
        run(LOOP, names)
        assert len(names["losses"]) == 2
        return names["shown"]

    found = teratron.run_ranks(4, on_rank)
    assert len(found[0]) == 4 and all(losses == found[0] for losses in found)
    assert capsys.readouterr().out.count("Keytoken ids") == 1
    assert found[0][0] > 1.05 * teratron.run_ranks(4, lambda world: on_rank(world, custom=False))[0][0]


class Bytes:
    """A tokenizer of a script: GPT-2's with a token for each byte."""

    eos_token = "<|endoftext|>"

    def __init__(self, vocab_file, merge_file):
        self.tokenizer = teratron.Tokenizer("GPT2BPETokenizer", vocab_file=vocab_file, merge_file=merge_file)

    def __call__(self, texts, return_tensors, padding):
        rows = [self.tokenizer.encode(text) for text in texts]
        longest = max(map(len, rows))
        return {"input_ids": torch.tensor([row + [self.tokenizer.eod] * (longest - len(row)) for row in rows]),
                "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])}

    def batch_decode(self, rows):
        return [self.tokenizer.decode(row) for row in rows]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A folder with vocab.json and merges.txt."""
    folder = tmp_path_factory.mktemp("tokenizer")
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte if byte in shown else 256 + others.index(byte)) for byte in range(256)]
    (folder / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate([*letters, "<|endoftext|>"])}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder


class BytesModel(Model):
    class config(Model.config):
        vocab_size = 257

        @staticmethod
        def save_pretrained(folder):
            Model.config.save_pretrained(folder)
            path = f"{folder}/config.json"
            with open(path) as file:
                sizes = {**json.load(file), "vocab_size": 257, "n_positions": 128, "bos_token_id": 256, "eos_token_id": 256}
            with open(path, "w") as file:
                json.dump(sizes, file)


def test_megatron_generate(vocabulary, capsys):
    args = types.SimpleNamespace(resume_from_checkpoint=str(vocabulary))
    plugin = plugin_of(GENERATE_PLUGIN, args=args)

    def on_rank(world):
        names = names_of(world, plugin, resume_from_checkpoint=str(vocabulary))
        names["model"] = BytesModel()
        names["tokenizer"] = Bytes(f"{vocabulary}/vocab.json", f"{vocabulary}/merges.txt")
        run(GENERATE, prepared(names))
        model, generate = names["model"], names["model"].megatron_generate
        rows = torch.tensor([[65, 66, 67], [68, 69, 256]])
        mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
        greedy = generate(rows, mask, max_new_tokens=4, top_k=1, stop_token=300 - 50)
        one = generate(rows[:1], max_length=7, top_k=1, stop_token=250)
        bos = generate(rows[1:, :2], max_new_tokens=1, add_BOS=True, random_seed=3)
        before = model.trainer.parameters()[0][1].clone()
        for arguments, error, text in [
                (dict(num_beams=2), ValueError, "single prompt"), (dict(max_length=9, max_new_tokens=3), ValueError, "not both"),
                (dict(max_new_tokens=3, top_q=1), TypeError, "top_q"), (dict(max_new_tokens=3, top_p=2.0), teratron.ConfigError, "top_p"),
                (dict(attention_mask=torch.tensor([[0, 1, 1], [1, 1, 1]])), ValueError, "right")]:
            with pytest.raises(error, match=text):
                generate(rows, **arguments)
        assert torch.equal(before, model.trainer.parameters()[0][1])
        return names["generated_tokens"], greedy, one, bos, generate(rows, mask, max_new_tokens=4), generate(rows, mask, max_new_tokens=4)

    ranks = teratron.run_ranks(4, on_rank)
    beams, greedy, one, bos, sampled, again = ranks[0]
    assert all(torch.equal(mine, theirs) for rank in ranks for mine, theirs in zip(rank, ranks[0]))
    assert torch.equal(sampled, again) and beams.shape[0] == 1 and 22 < beams.shape[1] <= 22 + 64
    assert torch.equal(greedy[0, :3], torch.tensor([65, 66, 67])) and torch.equal(greedy[:1], one) and greedy[1, -1] == 250
    assert bos[0, 0] == 256 and bos.shape == (1, 4)
    assert capsys.readouterr().out.count("Are you human?") == 3


@pytest.mark.parametrize("block, setting", [(ALIBI, "alibi"), (MULTIQUERY, 1), (LOGITS, None)])
def test_options_of_the_model(block, setting):
    plugin = plugin_of(block)

    def on_rank(world):
        names = prepared(names_of(world, plugin), rows=4)
        model = names["model"]
        outputs = model(**next(iter(names["train_dataloader"])))
        config = model.trainer.config
        assert setting in (None, config.position_embedding_type, config.num_query_groups)
        return outputs.loss.item(), None if outputs.logits is None else tuple(outputs.logits.shape)

    found = teratron.run_ranks(4, on_rank)
    assert 4.0 < found[0][0] < 7.0
    last = (4, 64, 201) if setting is None else None
    assert [shape for _, shape in found][-1] == last and found[0][1] is None
