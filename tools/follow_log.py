#!/usr/bin/env python3
"""Sends what a run logs to Weights & Biases, MLflow or trackio, while it trains or afterwards. The run itself needs
neither an account nor a network: this reads RUN/log.jsonl and nothing else.

    follow_log.py RUN --to wandb --project NAME     (pip install wandb; --name, --entity and --folder, too)
    follow_log.py RUN --to mlflow --project NAME    (pip install mlflow)
    follow_log.py RUN --to trackio --project NAME   (pip install trackio)
    follow_log.py RUN                               prints a line a record

It ends when the run does; --once: with what is there now. Started again it sends all of it again, to the
same run there.
"""
import argparse
import json
import pathlib
import sys
import time


def records(path, once, pause=1.0):
    """The log's whole lines, as they come; the last one, half written, waits."""
    rest = ""
    with open(path, encoding="utf-8") as log:
        while True:
            rest += log.read()
            lines = rest.split("\n")
            rest = lines.pop()
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:  # torn by a full disk or a kill; the run goes on after it
                    print(f"{path}: a line is torn: {line[:60]!r}", file=sys.stderr)
                    continue
                yield record
                if record.get("event") == "end":
                    return
            if once:
                return
            time.sleep(pause)


def scalars(record):
    """Numbers by name; an evaluation's carry the set's: val/books/loss."""
    of = f"val/{record['set']}/" if record.get("event") == "eval" else ""
    skipped = ("step", "time")
    return {name.replace("val/", of, 1) if of else name: value for name, value in record.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in skipped}


def sender(args):
    """What takes (step, scalars), and what ends it."""
    name = args.run.resolve().name
    shown = args.name or name
    if args.to == "wandb":
        import wandb
        run = wandb.init(project=args.project, entity=args.entity, dir=args.folder, name=shown, id=name, resume="allow")
        return (lambda step, values: run.log(values, step=step)), run.finish
    if args.to == "mlflow":
        import mlflow
        mlflow.set_experiment(args.project)
        mlflow.start_run(run_name=shown)
        return (lambda step, values: mlflow.log_metrics(values, step=step)), mlflow.end_run
    if args.to == "trackio":
        import trackio
        run = trackio.init(project=args.project, name=shown, resume="allow", embed=False)
        return (lambda step, values: run.log(values, step=step)), run.finish
    return (lambda step, values: print(step, json.dumps(values), flush=True)), lambda: None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--to", choices=("wandb", "mlflow", "trackio", "print"), default="print")
    parser.add_argument("--project", default="troupe")
    parser.add_argument("--name", help="the run's name there; else its folder's")
    parser.add_argument("--entity", help="wandb: whose project it is")
    parser.add_argument("--folder", help="wandb: where its own files go")
    parser.add_argument("--once", action="store_true")
    args = parser.parse_args()
    send, finish = sender(args)
    for record in records(args.run / "log.jsonl", args.once):
        if record.get("event") not in (None, "eval"):
            continue
        if values := scalars(record):
            send(record["step"], values)
    finish()


if __name__ == "__main__":
    main()
