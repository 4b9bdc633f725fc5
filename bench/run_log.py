"""A run's log.jsonl, as benches and tools read it."""
import contextlib
import json


def rows_of(run):
    """All that is written so far. Rows end at line feeds alone; one that is being written or was torn is left out."""
    log, rows = run / "log.jsonl", []
    for line in log.read_bytes().split(b"\n")[:-1] if log.exists() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def steps_of(run):
    return [row for row in rows_of(run) if "event" not in row]
