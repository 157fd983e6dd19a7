"""bench/peers/compare.py with a program that only says how fast it was, and peers that are not run."""

import importlib.util
import stat
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "peers" / "compare.py"
PROGRAM = """#!/bin/sh
# Fails in FP8 with the output layer, in FP8 the second time, and altogether where there is a file `broken`.
folder=$(dirname "$0")
case "$*" in
    *--fp8-output-proj*) exit 7 ;;
    *--fp8-format*) mkdir "$folder/second" 2>/dev/null || exit 8 ;;
esac
[ ! -e "$folder/broken" ] || exit 3
while [ "$1" != --json ]; do shift; done
echo '{"tokens_per_second": 10.0, "step_ms": 1.0}' >"$2"
"""


@pytest.fixture
def compare(tmp_path, monkeypatch):
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    real_peer = module.peer
    monkeypatch.setattr(module, "peer", lambda *_, **__: {"tokens_per_second": 5.0, "step_ms": 2.0})
    monkeypatch.setattr(module, "floor", lambda _: {"tokens_per_second": 20.0, "step_ms": 0.5})

    def run(*flags):
        monkeypatch.setattr("sys.argv", ["compare.py", "--teratron", str(program), *flags])
        return module.main()

    run.module, run.real_peer = module, real_peer
    return run


def medians(output):
    return [line for line in output.splitlines() if "in the median" in line]


def test_ratios_of_all(compare, capsys):
    assert compare("--rounds", "2") == 0
    lines = medians(capsys.readouterr().out)
    assert len(lines) == 4
    assert all("teratron is 2.000 times that" in line for line in lines if line.startswith("torch.compile"))
    assert "teratron is 0.500 times that" in lines[-1]


def test_goes_on_without_who_fails(compare, capsys):
    assert compare("--fp8", "--rounds", "2") == 1
    output = capsys.readouterr().out
    assert output.count("teratron, FP8, output layer too") == 1
    assert "failed with exit code 7; the others go on" in output
    assert "failed with exit code 8; the others go on" in output
    lines = medians(output)
    assert len(lines) == 5
    assert sum(line.startswith("teratron, FP8 ") for line in lines) == 1  # of the first round


@pytest.mark.parametrize("said", ["", "not a result", "{}", "7"])
def test_a_peer_without_a_result_has_failed(compare, capsys, monkeypatch, said):
    monkeypatch.setattr(compare.module, "started", lambda *_, **__: subprocess.Popen(
        ["printf", "%s", said], stdout=subprocess.PIPE, text=True))
    monkeypatch.setattr(compare.module, "peer", compare.real_peer)
    assert compare("--rounds", "1") == 1
    output = capsys.readouterr().out
    assert output.count("where its result should be; the others go on") == 2
    assert len(medians(output)) == 2


def test_says_no_ratio_without_teratron(compare, capsys, tmp_path):
    (tmp_path / "broken").touch()
    assert compare("--rounds", "1") == 1
    lines = medians(capsys.readouterr().out)
    assert len(lines) == 3
    assert not any("times that" in line for line in lines)


def test_an_interrupt_ends_it(compare, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare("--rounds", "1")
