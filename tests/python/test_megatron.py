"""Scripts of pretrain() (pretrain_scripts.py): their losses are those of the command."""
import json
import sys
import types

import pytest
import teratron
import torch
from pretrain_scripts import BERT, GPT, T5
from small import GRID, LONG
from teratron.megatron import get_ltor_masks_and_position_ids, mpu

COMMON = dict(num_layers=2, hidden_size=32, num_attention_heads=2, micro_batch_size=2, global_batch_size=4, train_iters=3, lr=1e-2,
              eval_interval=2, eval_iters=1, log_interval=1, hidden_dropout=0, attention_dropout=0, device="cpu", mock_data=True)
SIZES = {"gpt": dict(seq_length=16, max_position_embeddings=16), "bert": dict(seq_length=16, max_position_embeddings=16),
         "t5": dict(encoder_seq_length=16, decoder_seq_length=8, max_position_embeddings=16)}
TOKENIZER = dict(tokenizer_type="NullTokenizer", vocab_size=50)


def flags(program, run, **more):
    from teratron._config import flags_of
    return flags_of({**COMMON, **SIZES[program], "run_dir": run, **more})


def module_of(text):
    module = types.ModuleType("script")
    exec(compile(text, "script.py", "exec"), module.__dict__)
    return module


def steps_of(folder):
    """Losses by name and gradient norms of the steps, and losses of the evaluations."""
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return ([event["losses"] | {"norm": event["grad_norm"]} for event in events if event["type"] == "step"],
            [event["losses"] for event in events if event["type"] in ("validation", "evaluation", "valid", "test")])


def close(found, expected):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected):
        assert one.keys() == other.keys()
        assert list(one.values()) == pytest.approx(list(other.values()), rel=2e-5)


def on_ranks(script, program, folder, ranks=1, **more):
    argv = flags(program, folder, **more)
    return teratron.run_ranks(ranks, lambda world: script.main(argv, world).world_size)


def of_the_engine(program, folder, ranks=1, **more):
    config = {**COMMON, **SIZES[program], **more, "run_dir": folder, "world_size": ranks}
    teratron.run_ranks(ranks, lambda world: teratron.Trainer(teratron.Config(program=program, **config), world=world).train() and None)


@pytest.mark.parametrize("more", [{}, {"count_tokens": True}] if LONG else [{"count_tokens": True}])
def test_gpt(tmp_path, capfd, more):
    grid = dict(ranks=4, **GRID)
    assert on_ranks(module_of(GPT), "gpt", tmp_path / "script", **grid, **more) == [4] * 4
    shown = capfd.readouterr().out
    assert shown.count("building GPT model") == 1 and "> counts 12 8 4" in shown and "iteration        3/       3" in shown
    of_the_engine("gpt", tmp_path / "engine", **grid, **TOKENIZER)
    for found, expected in zip(steps_of(tmp_path / "script"), steps_of(tmp_path / "engine")):
        close(found, expected)


def test_gpt_on_a_dataset_of_the_script(tmp_path):
    on_ranks(module_of(GPT), "gpt", tmp_path / "script", ranks=2, counting=True, mock_data=False)
    assert [set(step) for step in steps_of(tmp_path / "script")[0]] == [{"lm loss", "norm"}] * 3
    with pytest.raises(ValueError, match="other tokens"):
        on_ranks(module_of(GPT), "gpt", tmp_path / "changed", changes_tokens=True)


def test_bert_on_a_dataset_of_the_script(tmp_path):
    """Samples by Megatron-LM's names are those of the engine's mock data: the same losses."""
    class Samples:
        def __len__(self):
            return 100

        def __getitem__(self, i):
            ids = torch.tensor([2, *(5 + (i + s) % 40 for s in range(6)), 3, *(5 + (i * s) % 40 for s in range(5)), 3, 0, 0])
            chosen = torch.zeros(16, dtype=torch.long)
            chosen[[2 + i % 4, 9]] = 1
            return {"text": torch.where(chosen == 1, 4, ids), "types": (torch.arange(16) > 7).long(), "is_random": torch.tensor(i % 2),
                    "labels": torch.where(chosen == 1, ids, -1), "loss_mask": chosen, "padding_mask": (torch.arange(16) < 14).long()}

    def pretrained(world, checks):
        script = module_of(BERT)
        inner = script.get_batch

        def get_batch(data_iterator):
            batch = inner(data_iterator)
            tokens, types, order, loss_mask, labels, padding_mask = batch
            for row in range(2):
                sample = Samples()[int(tokens[row, 1]) - 5]
                checks.append(all(torch.equal(found[row].long(), sample[name].long()) for found, name in zip(
                    (tokens, types, order, loss_mask, labels, padding_mask),
                    ("text", "types", "is_random", "loss_mask", "labels", "padding_mask"))))
            return batch

        script.get_batch = get_batch
        script.train_valid_test_datasets_provider = lambda counts: (Samples(), None, None)
        argv = flags("bert", tmp_path / "run", mask_prob=0.2, eval_iters=0, mock_data=False, pipeline_model_parallel_size=2, **TOKENIZER)
        return script.pretrain(script.train_valid_test_datasets_provider, script.model_provider, script.ModelType.encoder_or_decoder,
                               script.forward_step, argv=argv, world=world).world_size

    checks = []
    assert teratron.run_ranks(2, lambda world: pretrained(world, checks)) == [2, 2]
    assert len(checks) == 12 and all(checks)


def test_t5(tmp_path):
    grid = dict(ranks=2, pipeline_model_parallel_size=2, pipeline_model_parallel_split_rank=1, **TOKENIZER)
    on_ranks(module_of(T5), "t5", tmp_path / "script", **grid)
    of_the_engine("t5", tmp_path / "engine", **grid)
    close(steps_of(tmp_path / "script")[0], steps_of(tmp_path / "engine")[0])


def test_bert_as_processes(script, launch, tmp_path):
    """The script of the walk, under `teratron launch`."""
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(45))]) + "\n")
    grid = dict(tensor_model_parallel_size=2, vocab_file=vocabulary)
    done = script(BERT, *flags("bert", tmp_path / "script", **grid), launch=launch(2), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("building BERT model ...") == 1 and done.stdout.count("> finished creating BERT datasets ...") == 1
    of_the_engine("bert", tmp_path / "engine", 2, **grid)
    for found, expected in zip(steps_of(tmp_path / "script"), steps_of(tmp_path / "engine")):
        close(found, expected)


def test_masks_and_positions():
    data = torch.tensor([[5, 9, 6, 7, 9, 8], [1, 2, 3, 4, 5, 6]])
    hidden, mask, positions = get_ltor_masks_and_position_ids(data, 9, True, True, True)
    assert positions.tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]] and mask.tolist() == [[1, 0, 1, 1, 0, 1], [1] * 6]
    seen = ~hidden[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0],
                                   [0, 0, 0, 0, 0, 1]]
    hidden, mask, positions = get_ltor_masks_and_position_ids(data, 9, False, False, False)
    assert hidden.shape == (1, 1, 6, 6) and torch.equal(~hidden[0, 0], torch.ones(6, 6).tril().bool())
    assert mask.min() == 1 and positions[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_ranks_and_what_is_refused(tmp_path, monkeypatch):
    from teratron.megatron import get_args, get_timers, get_tokenizer, initialize_megatron, pretrain

    def work(world):
        initialize_megatron(args_defaults=TOKENIZER, argv=flags("gpt", tmp_path, **GRID), world=world)
        total = torch.tensor([1.0 + world.rank])
        torch.distributed.all_reduce(total, group=mpu.get_tensor_model_parallel_group())
        get_timers()("x").start()
        get_timers()("x").stop()
        tokenizer = get_tokenizer()
        return (total.item(), mpu.get_pipeline_model_parallel_rank(), mpu.is_pipeline_first_stage(), mpu.get_data_parallel_world_size(),
                mpu.get_tensor_model_parallel_src_rank(), get_args().hidden_size, tokenizer.tokenize("1 2"), get_timers()("x").elapsed() > 0)

    found = teratron.run_ranks(4, work)
    assert found[3] == (7.0, 1, False, 1, 2, 32, [1, 2], True) and found[0][:3] == (3.0, 0, True)
    script = module_of(GPT)
    for change, error, text in [(dict(hidden_size=33), teratron.ConfigError, "hidden"), (dict(no_such_flag=3), teratron.ConfigError, "no")]:
        with pytest.raises(error, match=text):
            on_ranks(script, "gpt", tmp_path / "x", **change)
    with pytest.raises(teratron.ConfigError, match="process_non_loss_data_func"):
        pretrain(None, None, None, None, process_non_loss_data_func=print)
    script.model_provider = lambda **_: torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match="model_provider"):
        on_ranks(script, "gpt", tmp_path / "x")
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(RuntimeError, match="initialize_megatron"):
        get_args()
