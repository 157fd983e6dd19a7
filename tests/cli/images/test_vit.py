"""Image classifiers: Hugging Face's vit in and out, training on folders of images, what is refused."""
import json
import re

import pytest

from program import needs_binary, teratron

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")
from safetensors.torch import load_file, save_file  # noqa: E402

pytestmark = needs_binary
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def vit(folder, seed=1, **changes):
    """A model with random weights, as transformers saves it."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 12, "patch_size": 4,
             **changes}
    names = dict(enumerate(NAMES))
    config = transformers.ViTConfig(**sizes, id2label=names, label2id={name: label for label, name in names.items()})
    model = transformers.ViTForImageClassification(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder)
    size = sizes["image_size"]
    transformers.ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(folder)
    return model


def drawings(folder, count, seed, side=16):
    """Squares in three colours, somewhere on gray."""
    random = torch.Generator().manual_seed(seed)
    for name, colour in (("blue", (30, 30, 220)), ("green", (20, 200, 40)), ("red", (220, 20, 20))):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            image = Image.new("RGB", (side, side), (128, 128, 128))
            x, y = (int(v) for v in torch.randint(0, side // 2, (2,), generator=random))
            ImageDraw.Draw(image).rectangle((x, y, x + side // 3, y + side // 3), fill=colour)
            image.save(folder / name / f"{i}.{['jpg', 'png', 'webp'][i % 3]}", quality=95)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings")
    drawings(folder / "train", 24, 1)
    drawings(folder / "valid", 8, 2)
    return ["--data-path", folder / "train", folder / "valid"]


TINY = ["--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--img-h", "16", "--img-w", "16", "--patch-dim", "4",
        "--micro-batch-size", "4", "--global-batch-size", "8", "--lr", "2e-3", "--log-interval", "1", "--device", "cpu"]


def losses(said):
    return [float(loss) for loss in re.findall(r"\| loss: (\S+)", said)]


@pytest.mark.parametrize("seed, changes", [(1, {}), (2, {"hidden_act": "gelu_pytorch_tanh", "patch_size": 6, "num_attention_heads": 2}),
                                           (3, {"image_size": 20, "patch_size": 5, "hidden_size": 32, "num_hidden_layers": 2})])
def test_hugging_face_in_and_out(tmp_path, seed, changes):
    model = vit(tmp_path / "in", seed, **changes)
    side = changes.get("image_size", 12)
    pixels = torch.randn(7, 3, side, side)
    with torch.no_grad():
        expected = model(pixels).logits
    save_file({"pixel_values": pixels}, tmp_path / "pixels.safetensors")
    teratron("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ours")
    for source in (["--load", tmp_path / "ours"], ["--hf", tmp_path / "in"]):
        teratron("logits", *source, "--input", tmp_path / "pixels.safetensors", "--output", tmp_path / "out.safetensors")
        assert (load_file(tmp_path / "out.safetensors")["logits"] - expected).abs().max() <= 1e-5 * expected.abs().max()
    teratron("ckpt", "convert", "--load", tmp_path / "ours", "--to-hf", tmp_path / "back")
    back, info = transformers.ViTForImageClassification.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info.values()) and list(back.config.id2label.values()) == NAMES
    assert all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), model.state_dict().values()))
    assert (tmp_path / "back/preprocessor_config.json").exists()


def test_gradients_are_those_of_transformers(tmp_path, data):
    """One step of plain SGD moves the weights by the gradients."""
    model = vit(tmp_path / "in", image_size=16, patch_size=4)
    model.classifier = torch.nn.Linear(24, 5)
    model.save_pretrained(tmp_path / "in")
    teratron("finetune", "vit", "--task", "classification", "--hf", tmp_path / "in", *data, "--class-names", "blue", "green", "red", "x",
             "y", "--no-image-augmentation", "--micro-batch-size", "72", "--global-batch-size", "72", "--train-iters", "1", "--optimizer",
             "sgd", "--sgd-momentum", "0", "--lr", "0.1", "--lr-decay-style", "constant", "--weight-decay", "0", "--clip-grad", "0",
             "--eval-iters", "0", "--device", "cpu", "--save", tmp_path / "run", "--hf-out", tmp_path / "out")
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path / "in")
    train = data[1]
    pixels, labels = [], []
    for label, name in enumerate(["blue", "green", "red"]):
        for file in sorted((train / name).iterdir()):
            pixels.append(processor(Image.open(file).convert("RGB"), return_tensors="pt")["pixel_values"])
            labels.append(label)
    model.train()
    model(torch.cat(pixels), labels=torch.tensor(labels)).loss.backward()
    tuned = transformers.ViTForImageClassification.from_pretrained(tmp_path / "out").state_dict()
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - tuned[name]) / 0.1
        assert (moved - parameter.grad).norm() <= 1e-4 * parameter.grad.norm() + 2e-5, name


def test_every_layout_has_the_losses_of_one_rank(data):
    job = [*TINY, *data, "--train-iters", "4", "--eval-iters", "1", "--eval-interval", "4"]
    expected = losses(teratron("pretrain", "vit", *job).stdout)
    assert len(expected) == 4
    for ranks, flags in ((2, ["--tp", "2"]), (2, ["--pp", "2"]), (2, ["--use-distributed-optimizer"]),
                         (4, ["--tp", "2", "--pp", "2"])):
        found = losses(teratron("launch", "--backend", "threads", "--nproc-per-node", ranks, "--", "pretrain", "vit", *job, *flags).stdout)
        assert found == pytest.approx(expected, rel=2e-5), flags


def test_it_learns_colours_and_says_so(tmp_path, data):
    said = teratron("pretrain", "vit", *TINY, *data, "--lr-decay-style", "constant", "--train-iters", "60", "--eval-iters", "3", "--eval-interval", "60", "--save",
                    tmp_path / "run", "--log-interval", "20").stdout
    assert "72 images of 3 classes" in said
    accuracy = [float(line.split("accuracy value:")[1].split("|")[0]) for line in said.splitlines() if "accuracy value:" in line]
    assert accuracy and accuracy[0] > 0.95
    resumed = teratron("pretrain", "vit", *TINY, *data, "--lr-decay-style", "constant", "--train-iters", "62", "--save", tmp_path / "run", "--load", tmp_path / "run",
                       "--eval-iters", "0").stdout
    assert "iteration       61/      62" in resumed


@pytest.mark.parametrize("change, code, text", [
    (["--patch-dim", "32"], 2, "a patch of 32 pixels is larger"), (["--num-classes", "5"], 2, "5 classes have 3 names"),
    (["--context-parallel-size", "2"], 2, "attended to as a whole"), (["--num-experts", "4"], 2, "--num-experts"),
    (["--data-path", "nowhere"], 3, "nowhere"), (["--class-names", "a", "b", "c"], 3, "'blue' is a class that the model does not have"),
    (["--vision-backbone-type", "swin"], 2, "--vision-backbone-type")])
def test_what_is_refused(tmp_path, data, change, code, text):
    said = teratron("pretrain", "vit", *TINY, *data, "--train-iters", "1", *change, code=code)
    assert text in said.stdout + said.stderr


def test_a_damaged_image_is_named(tmp_path):
    folder = drawings(tmp_path / "train", 3, 5)
    (folder / "red/1.png").write_bytes((folder / "red/1.png").read_bytes()[:60])
    said = teratron("pretrain", "vit", *TINY, "--data-path", folder, "--train-iters", "2", code=3)
    assert "red/1.png" in said.stderr
    (folder / "red/notes.txt").write_text("no image")
    (folder / "empty").mkdir()
    said = teratron("pretrain", "vit", *TINY, "--data-path", folder, "--train-iters", "2", code=3)
    assert "the class has no images" in said.stderr


def test_mock_data_are_learned():
    said = teratron("pretrain", "vit", *TINY, "--mock-data", "--num-classes", "4", "--train-iters", "40", "--eval-iters", "0").stdout
    found = losses(said)
    assert found[-1] < 0.7 * found[0]


def test_the_folder_of_an_export_says_its_classes(tmp_path, data):
    vit(tmp_path / "in", image_size=16)
    teratron("finetune", "vit", "--hf", tmp_path / "in", *data, "--train-iters", "1", "--micro-batch-size", "8", "--global-batch-size", "8",
             "--lr", "1e-4", "--task", "classification", "--eval-iters", "0", "--save", tmp_path / "run", "--hf-out", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert list(config["id2label"].values()) == ["blue", "green", "red"]
