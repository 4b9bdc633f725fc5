"""A run's log.jsonl, as benches read it."""
import json


def rows_of(run):
    """All that is written so far; a line that is being written is left out."""
    log = run / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def steps_of(run):
    return [row for row in rows_of(run) if "event" not in row]
