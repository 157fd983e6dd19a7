"""bench/peers/compare.py and results_table.py, with a program that only prints a speed and stubbed peers."""

import importlib
import json
import stat
import subprocess
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "bench" / "peers"
PROGRAM = """#!/bin/sh
# Fails in FP8 with the output layer, in FP8 the second time, and always where there is a file `broken`.
folder=$(dirname "$0")
case "$*" in
    *--fp8-output-proj*) exit 7 ;;
    *--fp8-format*) mkdir "$folder/second" 2>/dev/null || exit 8 ;;
esac
[ ! -e "$folder/broken" ] || exit 3
while [ "$1" != --json ]; do shift; done
echo '{"tokens_per_second": 10.0, "step_ms": 1.0, "device": "NVIDIA H200"}' >"$2"
"""


@pytest.fixture
def results_table(monkeypatch):
    monkeypatch.syspath_prepend(str(PEERS))
    return importlib.import_module("results_table")


@pytest.fixture
def compare(tmp_path, monkeypatch, results_table):
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    module = importlib.reload(importlib.import_module("compare"))
    real_peer = module.peer
    monkeypatch.setattr(module, "peer", lambda *_, **__: {"tokens_per_second": 5.0, "step_ms": 2.0})
    monkeypatch.setattr(module, "floor", lambda _: {"tokens_per_second": 20.0, "step_ms": 0.5})

    def run(*flags):
        results = tmp_path / "results"
        monkeypatch.setattr("sys.argv", ["compare.py", "--teratron", str(program), "--results", str(results), *flags])
        code = module.main()
        run.results = results_table.load(results)
        return code

    run.module, run.real_peer = module, real_peer
    return run


def medians(output):
    return [line for line in output.splitlines() if "in the median" in line]


def test_ratios_of_all(compare, capsys):
    assert compare("--rounds", "2") == 0
    lines = medians(capsys.readouterr().out)
    assert len(lines) == 4
    assert all("teratron is 2.000 times as fast" in line for line in lines if line.startswith("torch.compile"))
    assert "teratron is 0.500 times as fast" in lines[-1]


def test_writes_the_medians_with_ratios_and_goals(compare, results_table):
    assert compare("--shape", "gpt-1.5b", "--rounds", "1") == 0
    assert compare("--shape", "gpt-1.5b", "--rounds", "1", "--fp8") == 1
    first, second = compare.results
    assert first["command"] == "bench/peers/compare.py --shape gpt-1.5b --rounds 1"
    assert (first["device"], first["shape"], first["unit"]) == ("1 x NVIDIA H200", "gpt-1.5b", "tokens/s")
    assert first["ours"] == {"teratron": 10.0}
    assert first["peers"] == {"torch.compile, fp32 masters": 5.0, "torch.compile, all bf16": 5.0, "floor": 20.0}
    assert first["ratios"]["teratron / torch.compile, all bf16"] == 2.0 and first["ratios"]["teratron / floor"] == 0.5
    assert first["goals"]["teratron / torch.compile, fp32 masters"] == 1.1
    assert second["ratios"]["teratron, FP8 / teratron"] == 1.0
    assert "FP8: 10" in results_table.table(compare.results)


def test_bert_has_peers_and_goals_of_its_own(compare, capsys):
    assert compare("--shape", "bert-large", "--rounds", "1") == 0
    assert compare("--shape", "bert-large", "--rounds", "1", "--dropout", "0.1") == 0
    plain, dropped = compare.results
    everywhere, masked = "torch.compile, fp32 masters", "torch.compile, fp32 masters, masked positions"
    assert plain["peers"] == dropped["peers"] == {everywhere: 5.0, masked: 5.0}
    assert plain["goals"] == {f"teratron / {everywhere}": 1.25, f"teratron / {masked}": 1.1}
    assert set(dropped["goals"].values()) == {1.0} and "--dropout 0.1" in dropped["command"]
    for flags, said in ((["--shape", "bert-large", "--gpus", "2"], "one GPU"), (["--dropout", "0.1"], "needs a BERT")):
        with pytest.raises(SystemExit):
            compare(*flags)
        assert said in capsys.readouterr().err


def test_models_with_experts_have_a_peer_and_goals_of_their_own(compare, capsys):
    assert compare("--shape", "qwen3-30b-a3b-4l", "--rounds", "1") == 0
    assert compare("--shape", "mixtral-8x7b-2l", "--rounds", "1") == 0
    grouped = "torch.compile, fp32 masters, _grouped_mm"
    by_shape = {result["shape"]: result for result in compare.results}
    assert by_shape["qwen3-30b-a3b-4l"]["peers"] == {grouped: 5.0, "floor": 20.0}
    assert by_shape["qwen3-30b-a3b-4l"]["goals"] == {f"teratron / {grouped}": 1.3, "teratron / floor": 0.8}
    assert by_shape["mixtral-8x7b-2l"]["goals"] == {"teratron / floor": 0.9}
    for flags in (["--gpus", "2"], ["--fp8"]):
        with pytest.raises(SystemExit):
            compare("--shape", "mixtral-8x7b-2l", *flags)
        assert "models with experts" in capsys.readouterr().err


def test_long_sequences_have_a_peer_and_a_goal_of_their_own(compare, capsys, monkeypatch):
    peers, ours = [], []
    monkeypatch.setattr(compare.module, "peer", lambda _, program, *flags, launcher=(): peers.append((program.name, flags, launcher)) or
                        {"tokens_per_second": 5.0, "step_ms": 2.0})
    real_run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: ours.append(command) or real_run(command, **more))
    assert compare("--shape", "llama3-8b-12l", "--gpus", "2", "--sequence", "32768", "--recompute", "--rounds", "1") == 0
    flags = ("--sequence", "32768", "--loss-chunks", "8", "--recompute")
    assert peers == [("torch_context_parallel.py", flags, ["-m", "torch.distributed.run", "--nproc-per-node", "2"])]
    command = " ".join(map(str, ours[0]))
    assert "--context-parallel-size 2 --seq-length 32768 --max-position-embeddings 32768 --micro-batch-size 1 --loss-chunks 8" in command
    assert "--recompute-granularity full" in command
    [result] = compare.results
    name = "context_parallel + FSDP2 + torch.compile"
    assert result["peers"] == {name: 5.0, "floor": 20.0}
    assert result["goals"] == {f"teratron / {name}": 1.15, "teratron / floor": 0.88}
    for flags, said in ((["--sequence", "32768"], "several GPUs"), (["--sequence", "30", "--gpus", "4"], "divides it"),
                        (["--recompute"], "needs --sequence")):
        with pytest.raises(SystemExit):
            compare(*flags)
        assert said in capsys.readouterr().err


def test_continues_without_a_failed_contestant(compare, capsys):
    assert compare("--fp8", "--rounds", "2") == 1
    output = capsys.readouterr().out
    assert output.count("teratron, FP8, output layer too") == 1
    assert "failed with exit code 7; the others continue" in output
    assert "failed with exit code 8; the others continue" in output
    lines = medians(output)
    assert len(lines) == 5
    assert sum(line.startswith("teratron, FP8 ") for line in lines) == 1  # of the first round


@pytest.mark.parametrize("printed", ["", "not a result", "{}", "7"])
def test_a_peer_without_a_result_has_failed(compare, capsys, monkeypatch, printed):
    monkeypatch.setattr(compare.module, "started", lambda *_, **__: subprocess.Popen(
        ["printf", "%s", printed], stdout=subprocess.PIPE, text=True))
    monkeypatch.setattr(compare.module, "peer", compare.real_peer)
    assert compare("--rounds", "1") == 1
    output = capsys.readouterr().out
    assert output.count("instead of a result; the others continue") == 2
    assert len(medians(output)) == 2


def test_no_ratio_and_no_file_without_teratron(compare, capsys, tmp_path):
    (tmp_path / "broken").touch()
    assert compare("--rounds", "1") == 1
    lines = medians(capsys.readouterr().out)
    assert len(lines) == 3
    assert not any("times as fast" in line for line in lines)
    assert compare.results == []


def test_an_interrupt_ends_it(compare, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare("--rounds", "1")


def test_the_tables_in_the_docs_are_generated(results_table):
    document = results_table.DOCUMENT.read_text()
    assert document == results_table.with_tables(document, results_table.load()), "run bench/peers/results_table.py"


def test_ratios_follow_from_the_values(results_table):
    for result in results_table.load():
        values = {**result["ours"], **result["peers"]}
        for key, ratio in result["ratios"].items():
            a, b = (values[name] for name in key.split(" / "))
            expected = b / a if result["unit"] == "ms/step" else a / b
            assert ratio == pytest.approx(expected, abs=6e-4, rel=1e-4), (result["command"], key)


@pytest.mark.parametrize("change", [{"unit": "ms"}, {"date": 2026}, {"extra": ""}, {"ours": {}},
                                    {"goals": {"teratron / x": 1.0}}])
def test_a_file_that_breaks_the_schema_is_named(results_table, tmp_path, change):
    result = {**dict.fromkeys(results_table.TEXTS, ""), "unit": "MB/s", "ours": {"teratron": 1.0}, "peers": {},
              "ratios": {}, "goals": {}}
    results_table.check(result)
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "wrong.json").write_text(json.dumps({**result, **change}))
    with pytest.raises(ValueError, match="wrong.json"):
        results_table.load(tmp_path)
