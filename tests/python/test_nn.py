"""Layers, pipeline, buffers, optimizer and checkpoints for loops of a program: examples/own_loop.py, and each part alone."""
import importlib.util
import shutil
from pathlib import Path

import pytest
import teratron
import torch
from teratron import nn

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def own_loop():
    spec = importlib.util.spec_from_file_location("own_loop", ROOT / "examples/own_loop.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(own_loop, ranks, tp, pp, folder, steps):
    return teratron.run_ranks(ranks, lambda world: own_loop.Training(world, tp, pp, folder).run(steps))


def test_a_loop_of_the_parts_is_the_trainer_in_every_layout(own_loop, tmp_path):
    assert len((ROOT / "examples/own_loop.py").read_text().splitlines()) <= 250
    whole = trained(own_loop, 8, 2, 2, tmp_path / "whole", 10)
    assert all(losses == whole[0] for losses in whole)

    def work(world):
        # The same training, as examples/own_loop in C++ is compared with.
        config = teratron.Config(
            num_layers=4, hidden_size=32, num_attention_heads=4, seq_length=16, max_position_embeddings=16, micro_batch_size=2,
            global_batch_size=16, lr=1e-2, lr_decay_style="constant", lr_warmup_iters=5, train_iters=10, eval_iters=0, device="cpu",
            tokenizer_type="NullTokenizer", vocab_size=30, mock_data=True, hidden_dropout=0, attention_dropout=0,
            tensor_model_parallel_size=2, pipeline_model_parallel_size=2, sequence_parallel=True, use_distributed_optimizer=True,
            world_size=8)
        with teratron.Trainer(config, world=world) as trainer:
            return [trainer.step().loss for _ in range(10)]

    assert teratron.run_ranks(8, work)[0] == whole[0]
    halves = [trained(own_loop, 8, 2, 2, tmp_path / "halves", steps)[0] for steps in (5, 10)]
    assert halves == [whole[0][:5], whole[0][5:]]
    shutil.rmtree(tmp_path / "halves" / "iter_0000010")
    serial = trained(own_loop, 1, 1, 1, tmp_path / "halves", 10)[0]
    assert serial == pytest.approx(whole[0][5:], rel=1e-6), "the checkpoint of 8 ranks on one"


def parts(world, tp, seed=3):
    mesh = teratron.Mesh(world, tp=tp)
    return mesh, nn.Scope(seed=seed), nn.Parallel(mesh)


def test_layers_are_modules_with_torchs_values():
    """Each parallel layer on 2 ranks against torch's on whole weights."""
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(1))

    def work(world):
        mesh, root, parallel = parts(world, 2)
        column = nn.ColumnParallelLinear(root / "fc1", 8, 12, parallel)
        row = nn.RowParallelLinear(root / "fc2", 12, 8, parallel)
        assert isinstance(column.weight, torch.nn.Parameter) and [*dict(column.named_parameters())] == ["weight", "bias"]
        mine = x.clone().requires_grad_()
        y = row(torch.nn.functional.gelu(column(mine)))
        (y * torch.arange(8.0)).sum().backward()
        assert column.weight.grad is None
        weights = [parallel.group.all_gather(column.weight), torch.cat(parallel.group.all_gather(row.weight).chunk(2), 1)]
        grads = [parallel.group.all_gather(root.main_grad("fc1.weight")), root.main_grad("fc2.bias")]
        return y.detach(), mine.grad, weights, grads

    for y, dx, (w1, w2), (dw1, db2) in teratron.run_ranks(2, work):
        expected = x.clone().requires_grad_()
        w1 = w1.clone().requires_grad_()
        found = torch.nn.functional.gelu(expected @ w1.T) @ w2.T
        (found * torch.arange(8.0)).sum().backward()
        for one, other in ((y, found), (dx, expected.grad), (dw1, w1.grad), (db2, 6 * torch.arange(8.0))):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_loss_of_sharded_logits_is_torchs():
    hidden = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(8).view(4, 2) * 3

    def work(world):
        mesh, root, parallel = parts(world, 2)
        words = nn.VocabParallelEmbedding(root / "words", 25, 8, parallel, padded=32, std=1.0)
        output = nn.OutputLayer(words, parallel)
        logits = output.logits(hidden)
        shown = logits.detach().clone().requires_grad_()
        apart = nn.vocab_parallel_cross_entropy(shown, labels, parallel, 25)
        apart.sum().backward()
        fused = output(hidden, labels)
        whole = torch.cat([*parallel.group.all_gather(logits.detach()[None])], -1)[..., :25].requires_grad_()
        expected = torch.nn.functional.cross_entropy(whole.reshape(-1, 25), labels.reshape(-1), reduction="none").view(4, 2)
        expected.sum().backward()
        mine = torch.nn.functional.pad(whole.grad, (0, 7))[..., 16 * world.rank:16 * world.rank + 16]
        for one, other in ((apart, expected), (fused, expected), (shown.grad, mine), (words(labels), words(labels))):
            torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-5, atol=1e-6)
        return words(labels).detach()

    first, second = teratron.run_ranks(2, work)
    assert torch.equal(first, second) and first.shape == (4, 2, 8)


def test_a_transformer_layer_is_its_parts():
    def work(world):
        mesh, root, parallel = parts(world, 1)
        layer = nn.TransformerLayer(root / "layer", 16, 2, parallel)
        names = {"input_layernorm.weight", "input_layernorm.bias", "self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias",
                 "self_attention.linear_proj.weight", "self_attention.linear_proj.bias", "pre_mlp_layernorm.weight",
                 "pre_mlp_layernorm.bias", "mlp.linear_fc1.weight", "mlp.linear_fc1.bias", "mlp.linear_fc2.weight", "mlp.linear_fc2.bias"}
        values = dict(layer.named_parameters())
        assert set(values) == names and {name for name, _ in root.parameters()} == {"layer." + name for name in names}
        x = torch.randn(5, 2, 16)
        places = torch.arange(5)[:, None].expand(5, 2)
        with torch.no_grad():
            for name, value in values.items():
                value.add_(0.1 * torch.randn(value.shape))
            y = nn.apply_bias_grad(layer(x.clone(), places))
            F = torch.nn.functional
            normed = F.layer_norm(x, (16,), values["input_layernorm.weight"], values["input_layernorm.bias"])
            qkv = F.linear(normed, values["self_attention.linear_qkv.weight"], values["self_attention.linear_qkv.bias"])
            q, k, v = qkv.view(5, 2, 2, 3, 8).permute(3, 1, 2, 0, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).permute(2, 0, 1, 3).reshape(5, 2, 16)
            h = x + F.linear(mixed, values["self_attention.linear_proj.weight"], values["self_attention.linear_proj.bias"])
            normed = F.layer_norm(h, (16,), values["pre_mlp_layernorm.weight"], values["pre_mlp_layernorm.bias"])
            inner = F.gelu(F.linear(normed, values["mlp.linear_fc1.weight"], values["mlp.linear_fc1.bias"]), approximate="tanh")
            expected = h + F.linear(inner, values["mlp.linear_fc2.weight"], values["mlp.linear_fc2.bias"])
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)

    teratron.run_ranks(1, work)


def test_what_does_not_fit_is_named():
    def work(world):
        mesh, root, parallel = parts(world, 2)
        with pytest.raises(teratron.ConfigError, match="out_features"):
            nn.ColumnParallelLinear(root / "a", 4, 3, parallel)
        nn.Norm(root / "b", 4, parallel)
        with pytest.raises(ValueError, match="b already"):
            nn.Norm(root / "b", 4, parallel)
        with pytest.raises(KeyError):
            root.main_grad("c")
        with pytest.raises(teratron.ConfigError, match="dtype"):
            nn.Scope(dtype=torch.int64)
        with pytest.raises(teratron.ConfigError, match="decay_style"):
            nn.LRSchedule(max_lr=1.0, decay_samples=1, decay_style="none")
        pipeline = nn.Pipeline(mesh, root)
        for result, error in ((None, TypeError), (torch.ones(2), ValueError)):
            with pytest.raises(error, match="forward"):
                pipeline.run(lambda i, hidden: result, hidden_shape=(1,), microbatches=1)
        with pytest.raises(ValueError, match="of the user"):
            pipeline.run(fails, hidden_shape=(1,), microbatches=1)

    def fails(i, hidden):
        raise ValueError("of the user")

    teratron.run_ranks(2, work)


def test_batches_are_of_any_dataset():
    class Counting:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"text": [i] * 9}

    def work(world):
        mesh = teratron.Mesh(world)
        batches = nn.Batches(Counting(), mesh, seq_length=8, micro_batch_size=1)
        seen = [int(next(batches).tokens[0, 0]) for _ in range(2)]
        with pytest.raises(teratron.DataError, match="ends"):
            next(batches)
        return seen

    assert teratron.run_ranks(2, work) == [[0, 2], [1, 3]]
