"""LLaVA of transformers in and out, its logits, losses and gradients."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from llava_models import CASES, IMAGE, VOCABULARY, random_inputs, random_model, renamed, rows_of  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = os.environ.get("TERATRON_BINARY", str(ROOT / "build/release/teratron/cli/teratron"))
DRIVER = pathlib.Path(BINARY).resolve().parents[2] / "tests" / "parity_model"

if not os.path.exists(BINARY):
    pytest.skip(f"no program at {BINARY}: set TERATRON_BINARY", allow_module_level=True)

PROCESSOR = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 30}, "crop_size": 30}


def run(*args, code=0):
    done = subprocess.run([BINARY, *map(str, args)], capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def expected_logits(model, inputs):
    pixels = inputs["pixel_values"] if len(inputs["pixel_values"]) else None
    with torch.no_grad():
        return model(input_ids=inputs["tokens"], attention_mask=inputs["attention_mask"], pixel_values=pixels).logits


def logits(flags, inputs, folder):
    save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, folder / "in.safetensors")
    run("logits", *flags, "--input", folder / "in.safetensors", "--output", folder / "out.safetensors")
    return load_file(folder / "out.safetensors")["logits"]


def assert_close(actual, expected, mask, bound=1e-4):
    error = (actual - expected)[mask.bool()].abs().max()
    assert error <= bound * max(1.0, expected[mask.bool()].abs().max()), error


@pytest.mark.parametrize("name", CASES)
def test_in_and_out(name, tmp_path):
    """Files, a checkpoint, and files again: the same bits, logits of both programs."""
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    assert (tmp_path / "out" / "preprocessor_config.json").read_text() == json.dumps(PROCESSOR)
    names = load_file(tmp_path / "out" / "model.safetensors")
    assert all(name.startswith(("language_model.model.", "language_model.lm_head.", "vision_tower.vision_model.",
                                "multi_modal_projector.")) for name in names)
    text = json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]
    assert (text["bos_token_id"], text["eos_token_id"]) == (1, 2)
    again, report = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[key]), key
    inputs = random_inputs(model.config, [1, 0, 2])
    theirs = expected_logits(model, inputs)
    assert torch.equal(expected_logits(again.eval(), inputs), theirs), "config.json says something else"
    assert_close(logits(["--load", tmp_path / "ckpt"], inputs, tmp_path), theirs, inputs["attention_mask"])


@pytest.mark.parametrize("images,padding", [([2, 1, 1, 0, 3], 3), ([0, 0], 0), ([1], 0), ([0, 4], 1)])
@pytest.mark.parametrize("name,seed", [("clip-llama", 1), ("siglip-qwen2", 2)])
def test_logits(name, seed, images, padding, tmp_path):
    model = random_model(name, seed)
    model.save_pretrained(tmp_path / "in")
    inputs = random_inputs(model.config, images, seed, padding)
    got = logits(["--hf", tmp_path / "in"], inputs, tmp_path)
    assert_close(got, expected_logits(model, inputs), inputs["attention_mask"])
    if not sum(images):  # left out
        del inputs["pixel_values"]
        assert torch.equal(logits(["--hf", tmp_path / "in"], inputs, tmp_path), got)


def old_names(name):
    """Those of published files."""
    if name.startswith("vision_tower."):
        return name.replace("vision_tower.", "vision_tower.vision_model.", 1)
    return name


def new_names(name):
    """Those of transformers 5 in memory."""
    if name.startswith("language_model.model."):
        return name.replace("language_model.model.", "model.language_model.", 1)
    return "lm_head.weight" if name == "language_model.lm_head.weight" else "model." + name


@pytest.mark.parametrize("rename", [old_names, new_names, lambda name: old_names(new_names(name))])
@pytest.mark.parametrize("name", ["clip-llama", "siglip-default"])
def test_names_of_other_releases(name, rename, tmp_path):
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    tensors = {rename(key): tensor for key, tensor in load_file(tmp_path / "in" / "model.safetensors").items()}
    if name == "clip-llama":  # a buffer of early releases
        tensors[rename("vision_tower.embeddings.position_ids")] = torch.arange(17)[None]
    save_file(tensors, tmp_path / "in" / "model.safetensors", metadata={"format": "pt"})
    inputs = random_inputs(model.config, [1, 1])
    assert_close(logits(["--hf", tmp_path / "in"], inputs, tmp_path), expected_logits(model, inputs), inputs["attention_mask"])


def test_published_config(tmp_path):
    """Keys that the first files have or lack."""
    model = random_model("clip-llama")
    model.save_pretrained(tmp_path / "in")
    path = tmp_path / "in" / "config.json"
    config = json.loads(path.read_text())
    for part, gone in (("text_config", ("rope_parameters", "head_dim", "hidden_act", "rms_norm_eps", "mlp_bias")),
                       ("vision_config", ("hidden_act", "num_channels", "layer_norm_eps", "attention_dropout"))):
        for key in gone:
            del config[part][key]
    config["text_config"].update({"_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"]})
    config["vision_config"].update({"projection_dim": 768, "vocab_size": 32000})
    for key in ("multimodal_projector_bias", "image_seq_length", "vision_feature_select_strategy", "projector_hidden_act"):
        del config[key]
    config.update({"ignore_index": -100, "vocab_size": VOCABULARY})
    path.write_text(json.dumps(config))
    inputs = random_inputs(model.config, [1, 2])
    assert_close(logits(["--hf", tmp_path / "in"], inputs, tmp_path), expected_logits(model, inputs), inputs["attention_mask"])


@pytest.mark.parametrize("change,says", [
    ({"text_config": {"model_type": "gemma"}}, ["'gemma'", "clip_vision_model with qwen2"]),
    ({"vision_config": {"model_type": "dinov2"}}, ["vision_config 'dinov2'"]),
    ({"model_type": "llava_next"}, ["'llava_next' is not supported", "tiles"]),
    ({"model_type": "qwen2_5_vl"}, ["'qwen2_5_vl' is not supported"]),
    ({"vision_config": {"attention_dropout": 0.1}}, ["'vision_config.attention_dropout' = 0.1"]),
    ({"vision_config": {"unheard_of": 3}}, ["'vision_config.unheard_of' = 3"]),
    ({"vision_feature_layer": "last"}, ["'vision_feature_layer' = \"last\""]),
    ({"vision_feature_layer": 9}, ["'vision_feature_layer' = 9", "4 layers"]),
    ({"projector_hidden_act": "swish"}, ["'projector_hidden_act' = \"swish\""])])
def test_refused_configs(change, says, tmp_path):
    random_model("clip-llama").save_pretrained(tmp_path / "in")
    path = tmp_path / "in" / "config.json"
    config = json.loads(path.read_text())
    for key, value in change.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(config))
    save_file({"tokens": torch.zeros(1, 2, dtype=torch.long)}, tmp_path / "in.safetensors")
    done = subprocess.run([BINARY, "logits", "--hf", tmp_path / "in", "--input", tmp_path / "in.safetensors", "--output",
                           tmp_path / "out"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 4) and all(word in done.stderr for word in says), done.stderr


def test_counts(tmp_path):
    """Both numbers are named, and nothing is written."""
    model = random_model("clip-llama")
    model.save_pretrained(tmp_path / "in")
    inputs = random_inputs(model.config, [1, 1])
    rows = rows_of(model.config)
    one_too_many = {**inputs, "tokens": inputs["tokens"].clone()}
    one_too_many["tokens"][0, 0] = IMAGE
    split = {**inputs, "tokens": inputs["tokens"].clone()}
    split["tokens"][0, 0], split["tokens"][1, int((inputs["tokens"][1] == IMAGE).nonzero()[0])] = IMAGE, 5
    other_size = {**inputs, "pixel_values": torch.zeros(2, 3, 28, 28)}
    padded = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
    padded["attention_mask"][1, 0] = 0
    for wrong, says in [({**inputs, "pixel_values": inputs["pixel_values"][:1]}, [f"{2 * rows} image tokens", f"need {rows}"]),
                        (one_too_many, [f"{2 * rows + 1} image tokens", f"need {2 * rows}"]),
                        (split, [f"row 0 has {rows + 1} image tokens", f"{rows} rows"]),
                        ({"tokens": inputs["tokens"]}, [f"{2 * rows} image tokens", "0 images"]),
                        (other_size, ["pixel_values", "[2, 3, 28, 28]", "[any number, 3, 30, 30]"]),
                        (padded, ["row 1 has padding before tokens"]),
                        ({**inputs, "pixel_values": inputs["pixel_values"].half()}, ["the dtype is F16", "float32"])]:
        save_file({name: tensor.contiguous() for name, tensor in wrong.items()}, tmp_path / "in.safetensors")
        text = run("logits", "--hf", tmp_path / "in", "--input", tmp_path / "in.safetensors", "--output", tmp_path / "out", code=3)
        assert all(word in text for word in says), text
        assert not (tmp_path / "out").exists()


def training_batch(config, inputs):
    """Columns as the program stacks them; the losses of the text alone."""
    tokens = inputs["tokens"]
    is_image = tokens == config.image_token_id
    rows = torch.where(is_image, is_image.long().cumsum(1) - 1, -1)
    labels = torch.cat([tokens[:, 1:], torch.zeros(len(tokens), 1, dtype=torch.long)], 1)
    learned = inputs["attention_mask"].bool() & (labels != config.image_token_id)
    learned[:, -1] = False
    learned &= torch.cat([inputs["attention_mask"][:, 1:], torch.zeros(len(tokens), 1, dtype=torch.long)], 1).bool()
    index = torch.arange(tokens.shape[1])[:, None].expand(-1, len(tokens))
    batch = {"tokens": tokens.T, "labels": torch.where(learned, labels, 0).T, "loss_mask": learned.float().T,
             "sequence_index": index, "image_rows": rows.T, "images": is_image.sum(1, keepdim=True) // rows_of(config)}
    if len(inputs["pixel_values"]):
        batch["pixel_values"] = inputs["pixel_values"]
    return batch, labels, learned


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    """Losses and gradients of the program, for a model and flags."""
    def compute(model, inputs, flags=()):
        folder = tmp_path_factory.mktemp("llava")
        model.save_pretrained(folder / "in")
        weights = renamed({name: weight.detach() for name, weight in model.state_dict().items()}, model.config)
        save_file({f"weight.{name}": weight.contiguous().clone() for name, weight in weights.items()}, folder / "weights.safetensors")
        batch, labels, learned = training_batch(model.config, inputs)
        save_file({f"0.{name}": column.contiguous().clone() for name, column in batch.items()}, folder / "batches.safetensors")
        flags = ["--hf-config", str(folder / "in"), "--seq-length", str(inputs["tokens"].shape[1]), "--micro-batch-size", "1",
                 "--train-iters", "1", "--lr", "1e-3", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(VOCABULARY - 1),
                 "--make-vocab-size-divisible-by", "1", *flags]
        (folder / "cases.json").write_text(json.dumps([{
            "family": "vlm", "name": "out", "flags": flags, "dtype": "fp32", "steps": 0, "vocabulary": VOCABULARY,
            "weights": str(folder / "weights.safetensors"), "batches": str(folder / "batches.safetensors")}]))
        done = subprocess.run([DRIVER, folder / "cases.json", folder], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        ours = load_file(folder / "out.safetensors")
        shutil.rmtree(folder)
        pixels = inputs["pixel_values"] if len(inputs["pixel_values"]) else None
        theirs = model(input_ids=inputs["tokens"], attention_mask=inputs["attention_mask"], pixel_values=pixels).logits
        loss = torch.nn.functional.cross_entropy(theirs[learned], labels[learned])
        assert ours["loss.0"].item() == pytest.approx(loss.item(), rel=1e-5)
        model.zero_grad()
        loss.backward()
        expected = renamed({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}, model.config)
        return {name.removeprefix("gradient."): tensor for name, tensor in ours.items() if name.startswith("gradient.")}, expected
    if not DRIVER.is_file():
        pytest.skip("TERATRON_BINARY names no build with tests")
    return compute


def assert_gradients(ours, theirs):
    largest = max((gradient.norm() for gradient in theirs.values()), default=0.0)
    for name, gradient in ours.items():
        expected = theirs.get(name, torch.zeros_like(gradient))  # of micro-batches without images
        assert (gradient - expected).norm() <= 1e-4 * max(expected.norm(), 1e-3 * largest), name


@pytest.mark.parametrize("images", [[1, 0, 2], [0, 0]])
@pytest.mark.parametrize("name", CASES)
def test_gradients(gradients, name, images):
    model = random_model(name, seed=5)
    ours, theirs = gradients(model, random_inputs(model.config, images, seed=3))
    if sum(images):
        assert sorted(ours) == sorted(theirs)  # what comes after the last feature has none
    assert_gradients(ours, theirs)


@pytest.mark.parametrize("flags,frozen", [
    (["--freeze-ViT"], ["vision_model."]), (["--freeze-LM"], ["language_model."]), (["--freeze-projector"], ["vision_projection."]),
    (["--freeze-ViT", "--freeze-LM"], ["vision_model.", "language_model."]),
    (["--freeze-ViT", "--freeze-projector"], ["vision_model.", "vision_projection."])])
def test_frozen_parts(gradients, flags, frozen):
    """They have no gradients, and those of the others do not change."""
    model = random_model("clip-llama", seed=6)
    for images in ([1, 2], [0, 0]):
        ours, theirs = gradients(model, random_inputs(model.config, images, seed=4), flags)
        kept = {name: gradient for name, gradient in theirs.items() if not name.startswith(tuple(frozen))}
        if sum(images):
            assert sorted(ours) == sorted(kept)
        assert_gradients(ours, kept)


def test_recomputation(gradients):
    model = random_model("clip-qwen2", seed=7)
    ours, theirs = gradients(model, random_inputs(model.config, [2, 1], seed=5),
                             ["--recompute-granularity", "full", "--recompute-method", "uniform"])
    assert sorted(ours) == sorted(theirs)
    assert_gradients(ours, theirs)
