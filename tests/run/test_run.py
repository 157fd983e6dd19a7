"""The script ./run, where it can be tried without a build, and the wrapper that starts a packaged program."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("TERATRON_BINARY")
needs_binary = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")
needs_fortunes = pytest.mark.skipif(not Path("/usr/share/games/fortunes").exists(), reason="package fortunes is missing")


def run(*command, **environment):
    env = {"PATH": "/usr/bin:/bin", **{k: str(v) for k, v in environment.items()}}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env, timeout=120)


def test_help_names_every_command():
    text = run(ROOT / "run", "help").stdout
    for command in "demo test build teratron package wheel tidy format clean".split():
        assert f"\n  {command} " in text


@pytest.mark.parametrize("arguments", [["dmeo"], ["build", "--preset", "fast"], ["demo", "--frehs"], ["test", "--all"],
                                       ["package", "--small"], ["wheel", "--small"], ["demo", "--all-archs"], ["build", "--bar"], ["clean", "all"], ["format", "x"],
                                       ["test", "--preset"]])
def test_what_it_does_not_know_is_an_error(arguments):
    result = run(ROOT / "run", *arguments)
    assert result.returncode == 1
    assert arguments[-1] in result.stderr


@pytest.fixture
def checkout(tmp_path):
    """A folder with ./run alone, in which script(TEXT) starts bash with its functions; what still runs is killed."""
    shutil.copy(ROOT / "run", tmp_path)
    started = []

    def script(text):
        started.append(subprocess.Popen(["bash", "-c", f"source {tmp_path}/run; {text}"], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    yield tmp_path, script
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_second_command_waits_for_the_first_one_s_build(checkout):
    folder, script = checkout
    os.mkfifo(folder / "go")
    stubs = "set_up() { echo set up; }; build_targets() { echo begins $1; read -r <go; echo ends $1; }; "
    first = script(stubs + "build a")
    assert [first.stdout.readline() for _ in range(2)] == ["set up\n", "begins a\n"]
    second = script(stubs + "build b")
    assert "another ./run builds here: waiting" in second.stderr.readline()
    other = script(stubs + "preset=dev; folder=build/dev; build_targets() { echo built; }; build c")
    assert other.communicate(timeout=60)[0] == "set up\nbuilt\n"
    (folder / "go").write_text("\n")
    assert first.communicate(timeout=60) == ("ends a\n", "")
    assert [second.stdout.readline() for _ in range(2)] == ["set up\n", "begins b\n"]
    (folder / "go").write_text("\n")
    assert second.communicate(timeout=60)[0] == "ends b\n"


def test_clean_waits_for_a_build_and_keeps_the_locks(checkout):
    folder, script = checkout
    (folder / "build/release").mkdir(parents=True)
    (folder / "build/release.log").touch()
    os.mkfifo(folder / "go")
    first = script("locked build/release bash -c 'echo begins; read -r <go; touch build/release/built'")
    assert first.stdout.readline() == "begins\n"
    cleaning = script("command_clean")
    assert "waiting" in cleaning.stderr.readline()
    (folder / "go").write_text("\n")
    assert first.wait(timeout=60) == 0 and cleaning.wait(timeout=60) == 0
    assert os.listdir(folder / "build") == ["release.lock"]


def test_a_failed_build_ends_the_command(checkout):
    _, script = checkout
    failing = script("set_up() { die 'no disk'; }; build a; echo went on")
    out, error = failing.communicate(timeout=60)
    assert (failing.returncode, out, error) == (1, "", "run: no disk\n")


@pytest.mark.parametrize("uv_works", [True, False])
def test_packages_are_installed_by_pip_where_uv_cannot(tmp_path, uv_works):
    (tmp_path / "tools").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    shutil.copy(ROOT / "tools/pip_install", tmp_path / "tools")
    for name, code in ("uv", 0 if uv_works else 1), ("pip", 0):
        program = tmp_path / ".venv/bin" / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\nexit {code}\n')
        program.chmod(0o755)
    result = run(tmp_path / "tools/pip_install", "one", "two")
    assert result.returncode == 0, result.stderr
    installers = [line.split()[0] for line in result.stdout.splitlines()]
    assert installers == (["uv"] if uv_works else ["uv", "pip"])
    assert all(line.endswith(" one two") for line in result.stdout.splitlines())


@pytest.fixture
def package(tmp_path):
    """A package whose program prints its arguments and where it looks for libraries, and a torch beside it."""
    (tmp_path / "package/libexec").mkdir(parents=True)
    program = tmp_path / "package/libexec/teratron"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$LD_LIBRARY_PATH" "$@"\n')
    program.chmod(0o755)
    shutil.copy(ROOT / "tools/package_wrapper", tmp_path / "package/teratron")
    site = tmp_path / "site-packages"
    (site / "torch/lib").mkdir(parents=True)
    (site / "torch/lib/libtorch_cpu.so").touch()
    (site / "torch/lib/libtorch_cuda.so").touch()
    (site / "torch/__init__.py").write_text("raise ImportError('must not be imported')\n")
    (site / "torch/version.py").write_text("__version__ = '2.11.0+cu130'\n")
    return tmp_path


def test_wrapper_takes_torch_from_the_variable(package):
    site = package / "site-packages"
    result = run(package / "package/teratron", "env", "a b", TERATRON_TORCH=site)
    assert result.returncode == 0, result.stderr
    libraries, *arguments = result.stdout.splitlines()
    assert libraries.split(":") == [f"{site}/torch/lib", f"{site}/nvidia/cu13/lib", f"{site}/nvidia/nccl/lib",
                                    f"{site}/nvidia/cudnn/lib", f"{package}/package/lib"]
    assert arguments == ["env", "a b"]


def test_wrapper_asks_python_without_importing_torch(package):
    result = run(package / "package/teratron", PYTHONPATH=package / "site-packages")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{package}/site-packages/torch/lib:")


def test_wrapper_works_through_a_link(package):
    os.symlink(package / "package/teratron", package / "elsewhere")
    result = run(package / "elsewhere", "x", TERATRON_TORCH=package / "site-packages")
    assert (result.returncode, result.stdout.splitlines()[1:]) == (0, ["x"])


@pytest.mark.parametrize("version", ["2.10.1+cu130", "2.12.0", "1.2.11"])
def test_wrapper_refuses_another_torch(package, version):
    (package / "site-packages/torch/version.py").write_text(f"__version__ = '{version}'\n")
    result = run(package / "package/teratron", TERATRON_TORCH=package / "site-packages")
    assert result.returncode == 2
    assert "torch 2.11 is needed" in result.stderr and version in result.stderr


def test_wrapper_says_that_torch_is_missing_or_without_cuda(package):
    result = run(package / "package/teratron", TERATRON_TORCH=package)
    assert result.returncode == 2 and "pip install torch==2.11.0" in result.stderr
    (package / "site-packages/torch/lib/libtorch_cuda.so").unlink()
    result = run(package / "package/teratron", TERATRON_TORCH=package / "site-packages")
    assert result.returncode == 2 and "without CUDA 13" in result.stderr


@needs_fortunes
def test_fortunes_become_json_lines():
    result = run(ROOT / "tools/fortunes_to_jsonl")
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert len(texts) > 1000 and all(texts)
    assert not [text for text in texts if "\n%\n" in text]
    assert any('"' in text for text in texts) and any("\n" in text and "\t" in text for text in texts)


def take_until(lines, text):
    """The lines up to the first that holds the text."""
    for line in lines:
        yield line
        if text in line:
            return


class Demo:
    """./run demo in a separate folder, with the built program and so many iterations."""

    def __init__(self, folder, iterations):
        self.folder = folder
        self.groups = []
        program = folder / "program"
        program.write_text(f"""#!/bin/sh
case $1 in pretrain) exec {BINARY} "$@" --train-iters {iterations} --lr-warmup-iters 1 --eval-iters 1 --num-threads 1 ;; esac
exec {BINARY} "$@"
""")
        program.chmod(0o755)

    def start(self, *arguments):
        script = (f"source {ROOT}/run; cd {self.folder}; need_packages() {{ :; }}; build() {{ :; }}; "
                  f"binary() {{ echo {self.folder}/program; }}; has_gpu() {{ false; }}; command_demo {' '.join(arguments)}")
        process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   start_new_session=True)
        self.groups.append(process.pid)
        return process

    def kill(self):
        """Whatever a failed test left running."""
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def finish(self, *arguments):
        process = self.start(*arguments)
        output = process.communicate(timeout=120)[0]
        assert process.returncode == 0, output[-2000:]
        return output


@pytest.fixture
def demo(tmp_path, request):
    demo = Demo(tmp_path, request.param)
    yield demo
    demo.kill()


@needs_binary
@needs_fortunes
@pytest.mark.parametrize("demo", [6], indirect=True)
def test_demo_trains_writes_and_knows_that_it_is_done(tmp_path, demo):
    output = demo.finish()
    left = tmp_path / "runs/demo"
    for name in ("report.html", "metrics.jsonl", "checkpoints/latest_checkpointed_iteration.txt", "samples.txt"):
        assert (left / name).stat().st_size > 0, name
    assert list((left / "tensorboard").iterdir())
    assert "validation loss" in output
    samples = (left / "samples.txt").read_text()
    for prompt in ("The best way to", "A computer is", "Never trust"):
        assert prompt in samples
    again = demo.finish()
    assert "already finished" in again and "teratron tokenizer" not in again
    assert (left / "samples.txt").read_text() == samples
    assert "already finished" not in demo.finish("--fresh")


@needs_binary
@needs_fortunes
@pytest.mark.parametrize("demo", [2000], indirect=True)
def test_interrupted_demo_goes_on_where_it_was(tmp_path, demo):
    tracker = tmp_path / "runs/demo/checkpoints/latest_checkpointed_iteration.txt"

    def interrupt_after_a_log_line():
        process = demo.start()
        before = "".join(take_until(process.stdout, " lm loss: "))
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        rest = process.communicate(timeout=60)[0]
        assert process.returncode == 75, rest
        assert "./run demo goes on from here" in rest
        return before

    interrupt_after_a_log_line()
    saved = int(tracker.read_text())
    assert saved >= 10
    assert f"at iteration {saved}" in interrupt_after_a_log_line()
    assert int(tracker.read_text()) > saved


@needs_binary
def test_bundle_runs_elsewhere(tmp_path):
    import torch
    bundled = run(ROOT / "tools/bundle", tmp_path / "made", BINARY)
    assert bundled.returncode == 0, bundled.stderr
    shutil.move(tmp_path / "made", tmp_path / "moved")
    result = run(tmp_path / "moved/teratron", "env", TERATRON_TORCH=Path(torch.__file__).parents[1])
    assert result.returncode == 0, result.stderr
    assert "torch         2.11" in result.stdout
    libraries = [path.name for path in (tmp_path / "moved/lib").iterdir()]
    assert not [name for name in libraries if name.startswith(("libtorch", "libc10", "libstdc++", "libcud"))]
    assert str(ROOT) not in subprocess.run(["readelf", "-d", tmp_path / "moved/libexec/teratron"], capture_output=True,
                                           text=True).stdout


@needs_binary
@needs_fortunes
def test_speedrun_ends_with_a_report_with_scores(tmp_path):
    """All of its steps with little data and few of each."""
    program = tmp_path / "program"
    program.write_text(f"""#!/bin/sh
data=runs/speedrun/data
case $1 in
  tokenizer) for file in chats questions texts; do head -n 40 $data/$file.jsonl >$data/cut && mv $data/cut $data/$file.jsonl; done ;;
  pretrain) exec {BINARY} "$@" --train-iters 6 --lr-warmup-iters 1 --eval-iters 1 --num-threads 1 --device cpu ;;
esac
exec {BINARY} "$@"
""")
    program.chmod(0o755)
    script = (f"source {ROOT}/run; cd {tmp_path}; need_packages() {{ :; }}; build() {{ :; }}; binary() {{ echo {program}; }}; "
              "has_gpu() { false; }; command_speedrun")
    done = run("bash", "-c", script)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    left = tmp_path / "runs/speedrun"
    page = json.loads(re.search(r'id="metrics">(.*?)</script>', (left / "report.html").read_text())[1])
    assert {(score["model"], score["data"]) for score in page["score"]} == {(m, d) for m in ("base", "chat") for d in ("questions.jsonl", "texts.jsonl")}
    assert all(0 <= score["figures"]["accuracy"] <= 1 for score in page["score"] if score["data"] == "questions.jsonl")
    assert page["step"] and len(page["sample"]) >= 3 and (left / "finetuning" / "report.html").exists()
    assert json.loads((left / "chat" / "tokenizer_config.json").read_text())["chat_template"]
    assert "serve --hf runs/speedrun/chat" in done.stdout + done.stderr
    again = run("bash", "-c", script)
    assert again.returncode == 0 and "teratron pretrain" not in again.stderr and "teratron eval" not in again.stderr


def test_what_the_speedrun_scores_fits_in_the_model(tmp_path):
    """Whatever the tokenizer makes of it: a token has a byte at least."""
    texts = [f"{'/' * (i % 9)} {'-=#' * (i % 40)} " + "word " * (i % 70) + "-- A. Author" * (i % 2) for i in range(9000)]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert run(ROOT / "tools/speedrun_data", tmp_path / "all.jsonl", tmp_path).returncode == 0
    scored = [[line["continuation"]] for line in map(json.loads, (tmp_path / "texts.jsonl").read_text().splitlines())]
    scored += [line["choices"] for line in map(json.loads, (tmp_path / "questions.jsonl").read_text().splitlines())]
    assert len(scored) > 200 and max(len(text.encode()) for each in scored for text in each) < 128


@needs_binary
def test_commands_have_manual_pages(tmp_path):
    commands = ["env", "merge", "report", "ckpt", "pretrain"]
    done = run(ROOT / "tools/man_pages", BINARY, tmp_path, *commands)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text() for path in (tmp_path / "man1").iterdir()}
    assert {f"teratron-{command}.1" for command in commands} <= pages.keys()
    assert {"teratron.1", "teratron-pretrain-gpt.1", "teratron-ckpt-convert.1"} <= pages.keys() and "teratron-serve.1" not in pages
    for name, text in pages.items():
        assert text.startswith(".TH TERATRON") and ".SH NAME" in text and len(text.splitlines()) > 10, name
    assert "\\-\\-tensor\\-model\\-parallel\\-size" in pages["teratron-pretrain-gpt.1"]
