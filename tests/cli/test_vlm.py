"""`pretrain vlm`: images and text on one rank and on many, frozen parts, resuming, messages about bad input."""

import pytest
from program import VOCABULARY, losses, message, needs_binary, teratron, weights

pytestmark = needs_binary

SIZES = ["--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--img-h", 24, "--img-w", 16, "--patch-dim", 8,
         "--encoder-num-layers", 3, "--vision-feature-layer", -2, "--vision-hidden-size", 24, "--vision-num-attention-heads", 2, "--dataloader-seq-length", 17,
         "--max-position-embeddings", 64]
RUN = [*SIZES, *VOCABULARY, "--mock-data", "--micro-batch-size", 2, "--global-batch-size", 8, "--lr", "1e-3", "--train-iters", 4,
       "--log-interval", 1, "--eval-iters", 0, "--device", "cpu", "--num-threads", 1, "--hidden-dropout", 0, "--attention-dropout", 0]
UNDIVIDED = ["--vision-hidden-size", 27, "--vision-num-attention-heads", 3]
LAYOUTS = [(2, ["--tp", 2, "--sequence-parallel"]), (2, ["--tp", 2, *UNDIVIDED]), (2, ["--pp", 2]), (2, ["--cp", 2]),
           (2, ["--use-distributed-optimizer"]), (2, ["--tp", 2, "--vision-tensor-model-parallel-size", 1]),
           (2, ["--pp", 2, "--freeze-ViT", "--freeze-LM"]),
           (8, ["--tp", 2, "--pp", 2, "--cp", 2, "--sequence-parallel", "--recompute-granularity", "full", "--recompute-method", "uniform"])]
OF_MODEL = ["--freeze-ViT", "--freeze-LM", *UNDIVIDED]


def train(*flags, ranks=1, **expected):
    launch = ["launch", "--nproc-per-node", ranks, "--backend", "threads", "--"] if ranks > 1 else []
    return teratron(*launch, "pretrain", "vlm", *RUN, *flags, **expected)


@pytest.fixture(scope="module")
def alone():
    """Losses of a model on one rank."""
    known = {}

    def losses_of(flags):
        own = tuple(flag for flag in flags if flag in OF_MODEL)
        if own not in known:
            known[own] = losses(train(*own).stdout)
        return known[own]
    return losses_of


@pytest.mark.parametrize("ranks, flags", LAYOUTS, ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None)
def test_layouts_train_alike(ranks, flags, alone):
    text = train(*flags, ranks=ranks).stdout
    assert losses(text) == pytest.approx(alone(flags), rel=2e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vlm")
    train("--save", folder / "run", "--save-interval", 2)
    return folder


def test_names_are_megatrons(run):
    names = weights(run / "run", 4)
    for name in ("vision_model.class_token", "vision_model.conv1.weight", "vision_model.position_embeddings.weight",
                 "vision_model.ln_pre.bias", "vision_model.decoder.layers.2.self_attention.linear_qkv.bias",
                 "vision_projection.encoder.linear_fc1.weight", "vision_projection.encoder.linear_fc2.bias",
                 "language_model.embedding.word_embeddings.weight", "language_model.decoder.layers.1.mlp.linear_fc2.weight",
                 "language_model.decoder.final_layernorm.weight"):
        assert name in names


def test_resuming_changes_no_bit(run, tmp_path):
    train("--load", run / "run", "--ckpt-step", 2, "--save", tmp_path / "on")
    one, other = weights(run / "run", 4), weights(tmp_path / "on", 4)
    assert sorted(one) == sorted(other) and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("flags, moved", [
    (["--freeze-ViT", "--freeze-LM"], "vision_projection."), (["--freeze-projector", "--freeze-ViT"], "language_model."),
    (["--freeze-projector", "--freeze-LM"], "vision_model.")])
def test_only_what_is_not_frozen_moves(run, flags, moved, tmp_path):
    """Nor is there an optimizer state of the rest."""
    train("--finetune", "--load", run / "run", "--save", tmp_path / "on", "--no-load-optim", *flags)
    one, other = weights(run / "run", 4), weights(tmp_path / "on", 4)
    changed = {name for name in one if not name.startswith("optimizer.") and not one[name].equal(other[name])}
    assert changed and all(name.startswith(moved) for name in changed)
    unused = ("vision_model.decoder.layers.2.", "vision_model.ln_post.")  # come after the last layer that is read
    assert not any(name.startswith(unused) for name in changed)
    states = [name for name in other if name.startswith("optimizer.")]
    assert states and not any(frozen in name for name in states for frozen in
                              ({"vision_model.", "vision_projection.", "language_model."} - {moved}))


def test_images_are_learned():
    """The bright part of an image says its first token, and nothing the one after it: 8 ids, a loss of (0 + ln 8) / 2."""
    flags = ["--dataloader-seq-length", 1, "--train-iters", 300, "--global-batch-size", 16, "--micro-batch-size", 16, "--lr", "3e-3",
             "--log-interval", 50, "--vocab-size", 7, "--lr-decay-style", "constant"]
    assert losses(train(*flags).stdout)[-1] < 1.25 < 1.9 < losses(train(*flags, "--train-iters", 1, "--log-interval", 1).stdout)[0]


@pytest.mark.parametrize("flags, says", [
    (["--patch-dim", 32], ["32 pixels", "16"]), (["--vision-num-attention-heads", 5], ["24", "vision_num_attention_heads = 5"]),
    (["--vision-feature-layer", 4], ["3 layers has no output 4"]), (["--pixel-shuffle"], ["class token", "--disable-vision-class-token"]),
    (["--pixel-shuffle", "--disable-vision-class-token"], ["3 x 2 patches"]),
    (["--freeze-LM", "--freeze-ViT", "--freeze-projector"], ["all frozen"]), (["--use-tiling"], ["--use-tiling"]),
    (["--vision-tensor-model-parallel-size", 3], ["--vision-tensor-model-parallel-size"]), (["--num-experts", 2], ["no layer"])])
def test_bad_settings(flags, says):
    message(train(*flags, code=2), *[word for word in says if word != "no layer"])


def test_scripts_of_megatron():
    """Flags of pretrain_vlm.py's examples; --seq-length is the tower's there."""
    text = train("--seq-length", 576, "--decoder-seq-length", 1024, "--decoder-tp-comm-overlap", "--dataloader-save", "x").stdout
    assert "iteration        4/" in text


def test_images_without_a_dataset():
    flags = [flag for flag in RUN if flag != "--mock-data"]
    result = teratron("pretrain", "vlm", *flags, "--data-path", "tokens", code=2)
    message(result, "--data-path", "no images")
