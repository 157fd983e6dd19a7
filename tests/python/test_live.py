"""Texts of a model in training, the halves of a step, and models of Python."""
import pytest
import teratron
import torch
from small import C, GRID, Same, losses


def test_texts_in_training_are_those_of_its_checkpoint(tmp_path):
    def work(world):
        with teratron.Trainer(C(world_size=4, save=tmp_path, **GRID), world=world) as trainer:
            before = losses(trainer, 2)
            answers = trainer.generate(["1 2 3", [7]], max_new_tokens=5, top_k=1, logprobs=True)
            texts = [trainer.generate([[1, 2]] * 3, seed=seed, max_new_tokens=4) for seed in (3, 3, 4)]
            trainer.save()
            return answers, texts, before + losses(trainer, 2)

    ranks = teratron.run_ranks(4, work)
    answers, texts, trained = ranks[0]
    assert all(rank == ranks[0] for rank in ranks)
    with teratron.Trainer(C()) as trainer:
        assert losses(trainer, 4) == pytest.approx(trained, rel=1e-5), "generating changes nothing"
    model = teratron.LanguageModel(tmp_path, device="cpu")
    assert ["1 2 3" + answers[0]["text"], "7" + answers[1]["text"]] == model.generate(["1 2 3", "7"], max_new_tokens=5, greedy=True)
    assert answers[0]["prompt_tokens"] == [1, 2, 3] and len(answers[0]["tokens"]) == 5 and answers[0]["finish_reason"] == "length"
    ids = torch.tensor([[*answers[0]["prompt_tokens"], *answers[0]["tokens"]]])
    expected = model.logits(ids).log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
    assert answers[0]["logprobs"] == pytest.approx(expected.tolist(), abs=1e-5)
    tokens = [[answer["tokens"] for answer in answers] for answers in texts]
    assert tokens[0] == tokens[1] != tokens[2] and tokens[0][0] != tokens[0][1]


def test_requests_are_checked():
    with teratron.Trainer(C()) as trainer:
        assert trainer.generate([]) == []
        for options, error, text in [({"top_p": 3.0}, teratron.ConfigError, "top_p"), ({"greedy": True}, teratron.DataError, "greedy"),
                                     ({"max_new_tokens": "x"}, teratron.DataError, "max_new_tokens")]:
            with pytest.raises(error, match=text):
                trainer.generate([[1]], **options)
        with pytest.raises(teratron.ConfigError, match="300"):
            trainer.generate([[300]])
    bert = teratron.Config(program="bert", num_layers=2, hidden_size=64, num_attention_heads=4, micro_batch_size=2, seq_length=64,
                           max_position_embeddings=64, lr=1e-3, train_iters=2, mock_data=True, device="cpu")
    with teratron.Trainer(bert) as trainer, pytest.raises(teratron.ConfigError, match="do not generate"):
        trainer.generate([[1]])


def test_two_halves_are_a_step():
    def work(world):
        grid = dict(world_size=4, **GRID)
        with teratron.Trainer(C(**grid), world=world) as whole, teratron.Trainer(C(**grid), world=world, train_step=Same) as halves:
            batches = halves.batches()
            found = []
            for _ in range(3):
                item = next(batches) if batches is not None else None
                before = halves.iteration
                halves.compute_gradients(item)
                assert halves.iteration == before
                result = halves.update()
                found.append((result.loss, result.grad_norm, result.lr, result.iteration))
            expected = [(r.loss, r.grad_norm, r.lr, r.iteration) for r in (whole.step() for _ in range(3))]
            halves.compute_gradients(item)  # no update follows
            with pytest.raises(RuntimeError, match="compute_gradients"):
                whole.update()
            return found, expected

    for found, expected in teratron.run_ranks(4, work):
        assert found == expected


def seeded(seed, module):
    """The module with values that the seed decides. Ranks that are threads draw from torch's own generator in any order."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            value.uniform_(-0.5, 0.5, generator=generator)
    return module


class Layers(torch.nn.Module):
    """Some layers of a residual network on tokens, with the embedding or the loss."""

    def __init__(self, stage):
        super().__init__()
        if stage.is_first:
            self.words = seeded(1, torch.nn.Embedding(256, 64))
        places = range(stage.first_layer, stage.first_layer + stage.layers)
        self.layers = torch.nn.ModuleDict({str(i): seeded(10 + i, torch.nn.Linear(64, 64)) for i in places})
        if stage.is_last:
            self.head = seeded(2, torch.nn.Linear(64, 256))

    def forward(self, hidden, batch):
        x = self.words(batch.tokens) if hasattr(self, "words") else hidden
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        if not hasattr(self, "head"):
            return x
        losses = torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), batch.labels.flatten(), reduction="none")
        return losses.view(batch.labels.shape)


def test_a_model_of_torch_trains_in_every_layout(tmp_path):
    def trained(ranks, **grid):
        def work(world):
            with teratron.Trainer(C(world_size=ranks, clip_grad=0.0, weight_decay=0.0, save=tmp_path / str(ranks), **grid),
                                  world=world, model=Layers) as trainer:
                found = losses(trainer, 3) + [trainer.evaluate(iters=1).loss]
                trainer.save()
                return found
        return teratron.run_ranks(ranks, work)[0]

    one = trained(1)
    assert trained(4, pipeline_model_parallel_size=2, use_distributed_optimizer=True) == pytest.approx(one, rel=1e-5)
    checkpoint = teratron.Checkpoint(tmp_path / "4")
    assert {"words.weight", "layers.0.weight", "layers.1.bias", "head.weight"} <= set(checkpoint.keys())
    module = torch.nn.ModuleList([Layers(teratron.Stage(0, 1, True, False)), Layers(teratron.Stage(1, 1, False, True))])
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0)
    with teratron.Trainer(C()) as trainer:
        batches = trainer.batches()
        expected = []
        for _ in range(2):
            batch = next(batches)
            loss = module[1](module[0](None, batch), batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    assert one[:2] == pytest.approx(expected, rel=1e-4)


def test_what_a_model_returns_is_checked():
    class Bad(Layers):
        def forward(self, hidden, batch):
            return super().forward(hidden, batch).sum()

    for model, error, text in [(Bad, ValueError, r"losses \[S, B\]"), (lambda stage: 3, TypeError, "int")]:
        with pytest.raises(error, match=text), teratron.Trainer(C(), model=model) as trainer:
            trainer.step()
    with teratron.Trainer(C(), model=Layers) as trainer, pytest.raises(teratron.ConfigError, match="generate"):
        trainer.generate([[1]])
