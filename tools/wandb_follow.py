#!/usr/bin/env python3
"""Follows the metrics.jsonl of a training run and feeds it to Weights & Biases, MLflow, or the screen.

usage: tools/wandb_follow.py RUN/metrics.jsonl [--to wandb|mlflow|print] [--project NAME] [--once]

Project, name and folder are those of the run's --wandb-project, --wandb-exp-name and --wandb-save-dir unless given here.

Run it beside the training, or afterwards; training itself knows nothing of these services and cannot be slowed by them.
Without --once it waits for more lines until the run's "end" event (a resumed run is followed on by starting it again).
The schema of the file is docs/metrics.md. Metric names are TensorBoard's.
"""
import argparse
import importlib
import json
import re
import sys
import time

STEP_NAMES = {"learning_rate": "learning-rate", "decoupled_learning_rate": "decoupled-learning-rate",
              "global_batch_size": "batch-size", "loss_scale": "loss-scale",
              "grad_norm": "grad-norm", "num_zeros": "num-zeros", "params_norm": "params-norm"}
INTERVAL_NAMES = {"seconds_per_iteration": "iteration-time", "tokens_per_second": "tokens-per-second",
                  "tflops_per_gpu": "throughput", "mfu": "mfu"}


class MissingPackage(Exception):
    pass


def set_or_none(text):
    """A setting's text; the listing writes None for what was not set."""
    return None if text in (None, "None") else text


def optional_import(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingPackage(f"the package {name} is not installed: pip install {name}, or use --to print") from None


class Wandb:
    def __init__(self, project):
        self.wandb, self.project, self.run = optional_import("wandb"), project, None

    def start(self, run):
        self.finish()
        arguments = run["arguments"]
        given = {"name": arguments.get("wandb_exp_name"), "dir": arguments.get("wandb_save_dir")}
        self.run = self.wandb.init(project=self.project or set_or_none(arguments.get("wandb_project")) or "teratron",
                                   id=run["run_id"] or None, resume="allow", config={**arguments, **run["facts"]},
                                   **{key: value for key, value in given.items() if set_or_none(value)})

    def log(self, metrics, step):
        self.run.log(metrics, step=step)

    def finish(self):
        if self.run is not None:
            self.run.finish()
            self.run = None


class MLflow:
    def __init__(self, project):
        self.mlflow, self.context = optional_import("mlflow"), None
        self.mlflow.set_experiment(project or "teratron")

    def start(self, run):
        self.finish()
        self.context = self.mlflow.start_run(run_name=run["run_id"] or None)
        self.context.__enter__()
        self.mlflow.log_params(run["facts"])

    def log(self, metrics, step):
        # MLflow allows letters, digits, and _-./ in names.
        self.mlflow.log_metrics({re.sub(r"[^\w\-./]", "_", name): value for name, value in metrics.items()}, step=step)

    def finish(self):
        if self.context is not None:
            self.context.__exit__(None, None, None)
            self.context = None


class Print:
    def __init__(self, project):
        pass

    def start(self, run):
        print(json.dumps({"run": run}), flush=True)

    def log(self, metrics, step):
        print(json.dumps({"step": step, "metrics": metrics}), flush=True)

    def finish(self):
        pass


def metrics_of(event):
    """The numbers of an event under TensorBoard's names; what is null or absent is left out."""
    kind, losses = event.get("type"), event.get("losses", {})
    if kind == "step":
        metrics = {**losses, **{name: event.get(key) for key, name in STEP_NAMES.items()}}
    elif kind == "interval":
        metrics = {name: event.get(key) for key, name in INTERVAL_NAMES.items()}
    elif kind == "evaluation" and not event.get("repeated"):  # as in TensorBoard
        metrics = {f"{name} {event['split']}": loss for name, loss in losses.items()}
        metrics |= {f"{name} {event['split']} ppl": ppl for name, ppl in event.get("perplexity", {}).items()}
    else:
        metrics = {}
    return {name: value for name, value in metrics.items() if value is not None}


def lines_of(path, once):
    """Whole lines as they appear; a line still being written is waited for."""
    with open(path, encoding="utf-8") as file:
        partial = ""
        while True:
            partial += file.readline()
            if partial.endswith("\n"):
                yield partial
                partial = ""
            elif once:
                return
            else:
                time.sleep(1.0)


def follow(path, service, once):
    started = False
    for line in lines_of(path, once):
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}: a line that is not JSON is left out", file=sys.stderr)
            continue
        if event.get("type") == "run" or not started:
            service.start({"run_id": event.get("run_id", ""), "facts": event.get("facts", {}),
                           "arguments": event.get("arguments", {})})
            started = True
        metrics = metrics_of(event)
        if metrics:
            service.log(metrics, event["iteration"])
        if event.get("type") == "end" and not once:
            break
    service.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jsonl")
    parser.add_argument("--to", choices=["wandb", "mlflow", "print"], default="wandb")
    parser.add_argument("--project")
    parser.add_argument("--once", action="store_true", help="read what is there and stop")
    arguments = parser.parse_args()
    try:
        open(arguments.jsonl, "rb").close()
        service = {"wandb": Wandb, "mlflow": MLflow, "print": Print}[arguments.to](arguments.project)
        follow(arguments.jsonl, service, arguments.once)
    except (MissingPackage, OSError) as error:
        print(f"wandb_follow: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
