"""--help of every command says what holds for the command that prints it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from program import message, needs_binary, teratron

pytestmark = needs_binary

INFERENCE = {"generate", "serve", "eval", "logits"}


# Commands whose --help is a page that lists what follows them, without --help-all.
PAGES = {"", "pretrain", "finetune", "data", "tokenizer", "ckpt"}


def help_of(command):
    whole = "--help" if command in PAGES else "--help-all"  # --help alone shows a part
    return teratron(*command.split(), whole).stdout


def subjects(text):
    """The subcommands or families that a --help lists."""
    return re.findall(r"^  ([a-z0-9-]+)  ", text, re.M)


@pytest.fixture(scope="module")
def helps():
    with ThreadPoolExecutor(4) as pool:
        first = subjects(help_of(""))
        texts = dict(zip(first, pool.map(help_of, first), strict=True))
        more = [f"{name} {subject}" for name, text in texts.items() for subject in subjects(text)]
        more += ["finetune gpt", "bench generate", "bench serve",
                 *(f"finetune {family} --task {task}" for family in ("gpt", "bert") for task in ("classification", "regression"))]
        texts.update(zip(more, pool.map(help_of, more), strict=True))
    assert len(texts) > 35
    return texts


def rows(text):
    """The flags and the description of each row."""
    found = []
    for line in text.splitlines():
        if match := re.match(r"  (--?\S.*?)(?: {2,}(\S.*))?$", line):
            found.append(([word.rstrip(",") for word in match[1].split() if word.startswith("-")], match[2] or ""))
        elif found and line.startswith(" " * 30):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def test_no_flag_and_no_heading_is_there_twice(helps):
    for command, text in helps.items():
        flags = [flag for names, _ in rows(text) for flag in names]
        assert len(flags) == len(set(flags)), command
        headings = [line for line in text.split("\n\n") if re.match(r"[A-Z][A-Za-z0-9 ]*\n  --", line)]
        titles = [heading.splitlines()[0] for heading in headings]
        assert len(titles) == len(set(titles)), (command, titles)


def test_no_row_repeats_itself(helps):
    for command, text in helps.items():
        for names, description in rows(text):
            flags = re.findall(r"--[a-z][a-z0-9-]+", description)
            assert len(flags) == len(set(flags)), (command, names, description)


def test_commands_that_run_models_do_not_speak_of_training(helps):
    for command in INFERENCE:
        assert not re.search(r"\b(pre)?train(s|ed|ing)?\b|\bT5\b|Finetuning|optimizer|\bloss\b", helps[command]), command


def test_choices_are_the_commands_own(helps):
    def choices(command, flag):
        return set(re.search(rf"^  {flag} {{(.*?)}}", helps[command], re.M)[1].split("|"))
    for family in ("gpt", "bert"):
        assert choices(f"finetune {family} --task regression", "--task") == {"classification", "regression"}
    assert choices("tasks", "--task") == {"WIKITEXT103", "LAMBADA", "RACE", "MNLI", "QQP"}
    for command in ("logits", "pretrain gpt"):
        assert choices(command, "--cp-comm-type") == {"p2p", "all_gather", "a2a"}


def test_shapes_that_generate(helps):
    assert "bert-large" in helps["bench"]
    for command in ("generate", "serve"):
        assert "gpt2-124m" in helps[f"bench {command}"] and "bert-large" not in helps[f"bench {command}"]
        message(teratron("bench", command, "--shape", "bert-large", code=2), "--shape", "bert-large does not generate", "gpt2-124m")
    assert "--json" not in helps["bench serve"]


def test_help_fits_a_screen(helps):
    """At most 60 lines of 110 columns, 25 flags, and an example that is a command."""
    def check(command):
        page = teratron(*command.split(), "--help").stdout
        lines = page.splitlines()
        assert lines[0].startswith("usage: teratron"), command
        assert len(lines) <= 60 and max(map(len, lines)) <= 110, (command, len(lines), max(lines, key=len))
        assert len([names for names, _ in rows(page)]) <= 25, command
        example = re.search(rf"^example:\n  teratron {command.split(' --')[0]}", page, re.M)
        assert example, command
        assert not re.search(r"SECTION:\s.*\.$", page, re.M), ("a summary among the sections", command)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, sorted(command for command in {"", *helps} if not re.search(r"--(?!task)", command))))


def test_examples_of_help_train():
    """As printed, but for the number of steps."""
    for family in ("gpt", "bert", "t5", "mamba", "vlm"):
        page = teratron("pretrain", family, "--help").stdout.replace("\\\n", "")
        example = re.search(r"^example:\n  teratron (.*)$", page, re.M)[1]
        short = ["--train-iters", 1, "--eval-iters", 0, "--device", "cpu", "--seq-length", 64, *(["--num-layers", 1] if family == "gpt" else [])]
        assert "iteration        1/" in teratron(*example.split(), *short).stdout


def test_short_help_has_the_flags_of_its_model():
    assert "--hybrid-layer-pattern" in teratron("pretrain", "mamba", "--help").stdout
    assert "--hybrid-layer-pattern" not in teratron("pretrain", "gpt", "--help").stdout
    assert "--decoder-seq-length" in teratron("pretrain", "t5", "--help").stdout
    assert "--lora-rank" in teratron("finetune", "gpt", "--help").stdout


def test_parts_of_help_of_other_commands():
    assert [names for names, _ in rows(teratron("plan", "--help", "--gpu-memory").stdout)] == [["--gpu-memory"]]
    assert "--predictions" in teratron("eval", "--help", "predictions").stdout
    assert "--help-all" in teratron("env", "--help", "zzzzqqqq", code=2).stderr
    assert len(rows(teratron("logits", "--help-all").stdout)) > len(rows(teratron("logits", "--help").stdout))


def test_chat_takes_what_a_conversation_can_use():
    page = teratron("chat", "--help").stdout
    assert page.splitlines()[1].startswith("Chat with a trained model") and "--temperature" in page and "--prompt" not in teratron("chat", "--help-all").stdout
    message(teratron("chat", "--load", "x", "--prompt", "a", "--num-beams", "3", code=2), "prompt is not for conversations", "num_beams is not for conversations")


def test_help_of_training_fits_a_screen():
    page = teratron("pretrain", "gpt", "--help").stdout.splitlines()
    assert len(page) <= 60 and max(map(len, page)) <= 110 and 20 <= len([names for names, _ in rows("\n".join(page))]) <= 25
    assert "teratron pretrain gpt --model-preset gpt2 --mock-data" in "\n".join(page) and "--help-all" in "\n".join(page)


def test_parts_of_help():
    def part(*words, **expected):
        return teratron("pretrain", "gpt", "--help", *words, **expected)
    flag = part("--lr").stdout
    assert [names for names, _ in rows(flag)] == [["--lr"]]
    found = [names[0] for names, _ in rows(part("warmup").stdout)]
    assert "--lr-warmup-fraction" in found and all("warmup" in names or "warm-up" in names for names in found) or len(found) < 40
    section = rows(part("logging").stdout)
    assert ["--log-interval"] in [names for names, _ in section] and ["--lr"] not in [names for names, _ in section]
    assert "Did you mean" in part("tensor-modl-parallel-size", code=2).stderr and "Did you mean tensor?" in part("tensr", code=2).stderr
    assert teratron("pretrain", "--help", "lr").stdout == part("lr").stdout and "--lora-rank" in teratron("finetune", "--help", "lora").stdout
    assert "--lora-rank" in teratron("finetune", "--help-all").stdout and teratron("finetune", "--help").stdout.count("--") < 40
    assert "--help-all" in part("zzzzqqqq", code=2).stderr
