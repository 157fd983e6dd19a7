"""The scripts of examples/ in a fresh clone: where they find the program."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "examples").glob("*.sh") if path.name != "find_teratron.sh")
VARIABLES = {name: "x" for name in "CHECKPOINT CHECKPOINT_PATH PRETRAINED_CHECKPOINT VOCAB_FILE MERGE_FILE DATA_PATH VALID_DATA "
             "DATA GPT BERT MNLI TOKENIZER_MODEL".split()}
ARGUMENTS = {"ngc_345m.sh": ["lambada"], "generate_text.sh": ["run", "prompts", "a"], "gpt2_345m.sh": ["tp2", "x", "y"], "two_machines.sh": ["127.0.0.1", "0", "env"],
             "wikitext2.sh": ["train", "valid", "tokenizer", "out"]}


@pytest.fixture
def clone(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho {path.name} "$@"\n')
    path.chmod(0o755)
    return path


def run(clone, script, *arguments, **variables):
    return subprocess.run([clone / "examples" / script, *(arguments or ARGUMENTS.get(script, ["x", "y", "z"]))], capture_output=True,
                          text=True, cwd=clone, timeout=60, env={"PATH": "/usr/bin:/bin", **VARIABLES, **variables})


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_build_is_found(clone, script):
    missing = run(clone, script)
    assert missing.returncode == 1 and "Build it first: ./run build" in missing.stderr, missing
    program(clone / "build/release/teratron/cli/teratron")
    done = run(clone, script)
    assert done.returncode == 0 and done.stdout.startswith("teratron "), done


def test_the_variable_and_the_path_come_first(clone):
    program(clone / "build/release/teratron/cli/teratron")
    program(clone / "on path/teratron").rename(clone / "on path/other")
    shutil.copy(clone / "on path/other", clone / "on path/teratron")
    script = "pretrain_gpt.sh"
    assert run(clone, script, TERATRON="echo two words").stdout.startswith("two words pretrain gpt")
    assert run(clone, script, TERATRON=str(clone / "on path/other")).stdout.startswith("teratron pretrain gpt")
    (clone / "on path/teratron").write_text("#!/bin/sh\necho on the path\n")
    assert run(clone, script, PATH=f"{clone}/on path:/usr/bin:/bin").stdout == "on the path\n"
    link = clone / "elsewhere"
    link.symlink_to(clone / "examples")
    assert "pretrain gpt" in subprocess.run([link / script], capture_output=True, text=True, cwd="/",
                                            env={"PATH": "/usr/bin:/bin", **VARIABLES}).stdout


def test_build_prints_the_line_for_the_path():
    text = subprocess.run(["bash", "-c", f"source {ROOT}/run; build() {{ :; }}; main build"], capture_output=True, text=True,
                          env=dict(os.environ)).stdout
    assert text == f"export PATH={ROOT}/build/release/teratron/cli:$PATH\n"
