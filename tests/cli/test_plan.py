"""`teratron plan`: what a command line would do, on a machine that could never do it."""
import re

import pytest
from program import MOCK, needs_binary, teratron, train

pytestmark = needs_binary

MODEL = ["--num-layers", "24", "--hidden-size", "1024", "--num-attention-heads", "16", "--seq-length", "1024",
         "--tokenizer-type", "NullTokenizer", "--vocab-size", "50257", "--micro-batch-size", "4"]


def plan(*flags, code=0):
    return teratron("plan", *flags, code=code)


def test_a_layout_for_512_ranks_is_shown_with_the_source_of_every_setting():
    result = plan("gpt", "--world-size", "512", *MODEL, "--tp", "8", "--pp", "4", "--global-batch-size", "1024",
                  "--bf16", "--use-distributed-optimizer")
    assert "tensor_model_parallel_size = 8  (--tp)" in result.stdout
    assert "data_parallel_size = 16  (derived)" in result.stdout
    assert "num_micro_batches = 16  (derived)" in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.split()[:1] in (["0"], ["3"])]
    assert "tp+pp " in result.stdout, "the model-parallel groups"
    gradients = max(float(line.split()[3]) for line in rows if "embedding" in line or "loss" in line)
    whole, part = re.search(r"Gradients stay whole on each rank, up to (\S+) GiB, where a part would be (\S+):", result.stdout).groups()
    assert float(whole) == pytest.approx(gradients, abs=1e-3) and float(part) == pytest.approx(gradients / 16, abs=1e-3)
    assert "embedding 0-5" in rows[0] and rows[-1].endswith("18-23 loss")


def test_parameters_of_a_rank_are_those_of_the_model():
    """GPT2-large over 2 x 2 ranks, as Megatron-LM counts it: 210,753,280 on the first stage, 209,445,120 on the last."""
    result = plan("gpt", "--num-layers", "36", "--hidden-size", "1280", "--num-attention-heads", "20", "--seq-length",
                  "1024", "--tokenizer-type", "NullTokenizer", "--vocab-size", "50257", "--micro-batch-size", "1", "--tp",
                  "2", "--pp", "2", "--world-size", "4")
    counts = [int(line.split()[1]) for line in result.stdout.splitlines() if line.strip().startswith(("0 ", "1 "))]
    assert counts == [210753280, 209445120]


def planned(*flags):
    """The rows of the memory table by column; the last ones, stage by stage."""
    lines = plan("gpt", *flags).stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.split()[:2] == ["stage", "parameters"])
    names = lines[first].split()
    rows = [line.split() for line in lines[first + 1:] if line.split() and line.split()[0].isdigit()]
    return [{name: float(value) for name, value in zip(names[:7], row)} for row in rows]


GIB = 2.0**30


def test_published_bytes_of_the_distributed_optimizer():
    """"12 bytes of a parameter become 12 / 4 = 3 on four ranks"; in bf16 the weights are half of the master weights: 10."""
    model = ["--num-layers", "24", "--hidden-size", "1024", "--num-attention-heads", "16", "--seq-length", "1024", "--micro-batch-size",
             "4", "--global-batch-size", "16", "--tokenizer-type", "NullTokenizer", "--vocab-size", "50256", "--use-distributed-optimizer"]
    for precision, ranks, expected in (("--fp16", 1, 12), ("--fp16", 4, 3), ("--bf16", 1, 10), ("--bf16", 4, 2.5)):
        row, = planned(*model, precision, "--world-size", str(ranks))
        assert abs(row["optimizer"] * GIB / row["parameters"] - expected) < 0.01 * expected, precision


def test_published_activations_of_selective_recomputation():
    """Of GPT-3's activations with stored scores, s b h (34 + 5 a s / h) bytes of a layer over t ranks (Korthikanti et al. 2022),
    selective recomputation saves 70 %. Fused attention does not store scores in the first place."""
    layers, hidden, heads, sequence, ranks = 96, 12288, 96, 2048, 8
    rows = planned("--num-layers", str(layers), "--hidden-size", str(hidden), "--num-attention-heads", str(heads), "--seq-length",
                   str(sequence), "--micro-batch-size", "1", "--global-batch-size", "64", "--tokenizer-type", "NullTokenizer", "--vocab-size",
                   "51199", "--tp", str(ranks), "--pp", "8", "--sp", "--bf16", "--world-size", "64")
    microbatches = 7  # that stage 1 of 8 holds, of its 12 layers
    layer = rows[1]["activations"] * GIB / microbatches / 12
    stored = sequence * hidden * (34 + 5 * heads * sequence / hidden) / ranks
    assert 0.70 < 1 - layer / stored < 0.75


def test_every_problem_is_told_at_once():
    result = plan("gpt", "--world-size", "6", *MODEL, "--tp", "5", "--pp", "7", "--clip-grad", "1", code=2)
    for text in ("num_attention_heads = 16 is not divisible", "num_layers = 24 is not divisible",
                 "needs a multiple of 35 ranks, and there are 6"):
        assert text in result.stderr


def test_wrong_values_are_told_with_the_contradictions():
    result = plan("gpt", "--world-size", "6", *MODEL, "--lr", "much", "--pp", "7", code=2)
    assert "--lr" in result.stderr and "num_layers = 24 is not divisible" in result.stderr
    assert "--pp" in plan("--show-schedule", "--pp", "many", "--num-micro-batches", "2", code=2).stderr


def test_the_model_may_come_from_a_checkpoint(tmp_path):
    train(*MOCK, "--train-iters", "1", "--save", str(tmp_path))
    result = plan("gpt", "--use-checkpoint-args", "--load", str(tmp_path), "--vocab-size", "60", "--micro-batch-size", "2", "--tp", "2")
    assert "num_layers = 2" in result.stdout and "hidden_size = 16" in result.stdout


def test_a_schedule_needs_no_model():
    result = plan("--show-schedule", "--pp", "2", "--num-micro-batches", "2")
    assert "stage 0  | F0 F1 .  .  B0 -- .  B1 --" in result.stdout
    assert "idle: 33.3 %" in result.stdout
    interleaved = plan("--show-schedule", "--pp", "4", "--vpp", "2", "--num-micro-batches", "8").stdout
    assert "F7.1" in interleaved and "idle: 15.8 %" in interleaved


def test_bad_words_are_configuration_errors():
    for flags in (["bart"], ["gpt", "--world-size", "many"], ["gpt", "--world-size", "0"], ["--show-schedule", "--vpp", "2"],
                  ["gpt", *MODEL, "--gpu-memory", "much"], ["gpt", *MODEL, "--gpu-memory", "0"], ["gpt", *MODEL, "--gpu-memory", "inf"],
                  ["--show-schedule", "--pp", "1000000", "--num-micro-batches", "1000000"],
                  ["--show-schedule", "--pp", "4", "--vpp", "2", "--num-micro-batches", "6"]):
        assert plan(*flags, code=2).stderr.startswith("error:"), flags


def test_uneven_stages_are_shown():
    result = plan("gpt", *MODEL, "--pp", "4", "--pipeline-model-parallel-layout", "Et*5|t*7|t*7|t*5,L")
    assert "5-11" in result.stdout and "19-23 loss" in result.stdout


def test_the_optimizer_decides_its_memory():
    """Four bytes a moment; for masters four beside fp16, two beside bf16, their other half. Here in weights of four bytes."""
    def columns(*flags):
        rows = [line.split() for line in plan("gpt", *MODEL, *flags).stdout.splitlines()]
        return next(row for row in rows if len(row) > 6 and row[0] == "0" and row[1].isdigit() and int(row[1]) > 1000)

    fp32 = columns()
    weights = float(fp32[2])
    memory = lambda *flags: float(columns(*flags)[4])
    assert abs(float(fp32[4]) - 2 * weights) < 0.01
    assert abs(memory("--optimizer", "sgd") - weights) < 0.01
    assert memory("--optimizer", "sgd", "--sgd-momentum", "0") == 0
    assert abs(memory("--optimizer", "sgd", "--fp16") - 2 * weights) < 0.01
    assert abs(memory("--optimizer", "sgd", "--bf16") - 1.5 * weights) < 0.01


def test_whether_a_model_fits_is_shown_with_what_to_change():
    fits = plan("gpt", *MODEL, "--bf16", "--gpu-memory", "80").stdout
    assert "Fits (80 GiB)" in fits and "yes" in fits and "a step takes at least" not in fits

    def peaks(output):
        return [float(line.split()[7]) for line in output.splitlines() if len(line.split()) > 9 and line.split()[0].isdigit() and "," not in line.split()[1]]
    small = plan("gpt", *MODEL, "--bf16", "--gpu-memory=8").stdout
    assert "Does not fit (8 GiB)" in small and "  no  " in small
    for name, flags, size in (("small", MODEL, "8"), ("larger", [*MODEL, "--num-layers", "96"], "20"), ("much larger", [*MODEL, "--hidden-size", "8192"], "24")):
        before = plan("gpt", *flags, "--bf16", "--gpu-memory", size).stdout
        assert before.startswith(f"Does not fit ({size} GiB)"), name
        remedies = [line.strip() for line in before.splitlines() if line.startswith("  --")]
        assert 1 <= len(remedies) <= 3, (name, before)
        for remedy in remedies:
            changes, effect = remedy.split(": ", 1)
            changed = plan("gpt", *flags, "--bf16", "--gpu-memory", size, *changes.split()).stdout
            assert changed.startswith(f"Fits ({size} GiB)"), (name, remedy)
            assert f"{max(peaks(changed)):.2f} instead of {max(peaks(before)):.2f} GiB" in effect, (name, remedy)
    hopeless = plan("gpt", *MODEL, "--bf16", "--gpu-memory", "1.1").stdout
    assert "No change of layout" in hopeless and not [line for line in hopeless.splitlines() if line.startswith("  --")]
    assert "a step takes at least" in plan("gpt", *MODEL, "--bf16", "--gpu-memory", "NVIDIA H100 80GB HBM3").stdout


def test_remedies_keep_the_ranks_that_there_are():
    """More tensor or pipeline parallelism takes replicas where there are several, else more ranks; the flags hold as they are printed."""
    llama = ["gpt", "--model-preset", "llama3-8b", "--bf16", "--gpu-memory", "80GB"]
    for ranks, costs in ((8, r"[124] replicas in place of 8"), (1, r"with (twice|4 times|8 times) the ranks")):
        said = plan(*llama, "--world-size", ranks).stdout
        remedies = [line.strip() for line in said.splitlines() if line.startswith("  --")]
        assert len(remedies) == 3 and sum(bool(re.search(costs, line)) for line in remedies) >= 2 and "ranks; with" not in said, said
        if ranks == 8:
            for remedy in remedies:
                changed = plan(*llama, "--world-size", ranks, *remedy.split(": ")[0].split()).stdout
                assert changed.startswith("Fits (80 GiB)"), remedy


@pytest.mark.parametrize("size", ["80", "80GiB", "80GB", "80 gb", "80G", "80.0gib", "81920MiB", "81920M", "0.078125TB"])
def test_units_of_memory(size):
    assert plan("gpt", *MODEL, "--bf16", "--gpu-memory", size).stdout.startswith("Fits (80 GiB).")


@pytest.mark.parametrize("size", ["80GBs", "80 KB", "GB", "-80GB", "80  GB", "80B", "80Gi b", "nanGB"])
def test_units_that_are_none(size):
    said = plan("gpt", *MODEL, "--bf16", "--gpu-memory=" + size, code=2).stderr
    assert said.startswith("error:") and "--gpu-memory" in said and "80GB" in said


def first_lines(*flags, count=3):
    return plan(*flags).stdout.splitlines()[:count]


def test_the_answer_comes_first():
    verdict, size, *_ = first_lines("gpt", *MODEL, "--bf16", "--gpu-memory", "80")
    assert verdict.startswith("Fits (80 GiB). A rank takes up to ") and size.startswith("354,") and "parameters in all, on 1 rank" in size
    verdict, size, *_ = first_lines("gpt", *MODEL, "--bf16", "--tp", "2", "--world-size", "8")
    assert "--gpu-memory" in verdict and "on 8 ranks: tensor 2 x pipeline 1 x context 1 x data 4" in size


@pytest.mark.parametrize("layout", [[], ["--tp", "2"], ["--pp", "2"], ["--num-experts", "4", "--ep", "2", "--world-size", "2"]])
def test_parameters_in_all_do_not_depend_on_the_layout(layout):
    experts = ["--num-experts", "4"] if "--num-experts" in layout else []
    count = lambda *flags: first_lines("gpt", *MODEL, *flags)[1].split()[0]
    assert count(*layout) == count(*experts)


def test_parameters_in_all_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    with __import__("torch").device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    assert first_lines("gpt", "--model-preset", "gpt2")[1].split()[0] == f"{sum(p.numel() for p in model.parameters()):,}"


def test_no_files_of_a_tokenizer_are_needed(tmp_path):
    small = ["--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "128", "--max-position-embeddings", "128"]
    for family, flags, vocabulary in (("gpt", ["--tokenizer-type", "GPT2BPETokenizer"], 50257), ("gpt", ["--data-path", "nowhere"], 50257),
                                      ("bert", ["--vocab-file", tmp_path / "none.txt"], 30522),
                                      ("gpt", ["--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", tmp_path / "none"], 32000)):
        text = plan(family, *small, *flags)
        assert f"a vocabulary of {vocabulary}" in text.stderr + text.stdout, (family, flags)
        assert "parameters in all" in text.stdout and "has no effect without --tokenizer-type" not in text.stderr
    assert "parameters in all" in plan("gpt", "--model-preset", "llama3-8b").stdout


def test_lines_fit_a_screen():
    for flags in (["--world-size", "4096", "--tp", "8", "--pp", "4", "--global-batch-size", "4096", "--num-layers", "32"],
                  ["--world-size", "512", "--tp", "8", "--cp", "8", "--global-batch-size", "512"]):
        lines = plan("gpt", *MODEL[2:], "--num-layers", "24", "--bf16", *flags, "--num-attention-heads", "16").stdout.splitlines()
        mesh = lines[next(i for i, line in enumerate(lines) if "(fastest first)" in line):]
        mesh = mesh[:mesh.index("")] if "" in mesh else mesh
        assert len(mesh) > 4 and max(map(len, mesh)) <= 110, max(mesh, key=len)


def test_recomputation_without_effect_says_so():
    """Of the CPU's attention and of fused kernels; with scores that are kept, how much it saves."""
    says = "has no effect here: fused attention keeps no scores"
    fused = plan("gpt", *MODEL, "--bf16", "--recompute-activations", "--attention-dropout", "0")
    kept = [plan("gpt", *MODEL, "--bf16", *flags).stdout for flags in ([], ["--recompute-activations"])]
    if says in fused.stdout + fused.stderr:
        peak = [max(float(line.split()[7]) for line in plan("gpt", *MODEL, "--bf16", "--attention-dropout", "0", *flags).stdout.splitlines()
                    if line.split()[:1] == ["0"] and len(line.split()) > 9) for flags in ([], ["--recompute-activations"])]
        assert peak[0] == peak[1]
    else:
        assert "Selective recomputation saves" in fused.stdout
    assert "has no effect" not in kept[0] and kept
