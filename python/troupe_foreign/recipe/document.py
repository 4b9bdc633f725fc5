"""A recipe's text, with keys that no flag has put in, and sections taken out."""
import json
import re


def yaml_value(value):
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(yaml_value(one) for one in value) + "]"
    text = str(value)
    return text if re.fullmatch(r"[\w./+-]+", text) else json.dumps(text)


def without_section(recipe, name):
    """The recipe without a section and its lines."""
    out, inside = [], False
    for line in recipe.splitlines():
        if re.match(r"\S", line) and not line.startswith("#"):
            inside = line.startswith(f"{name}:")
        if not inside:
            out.append(line)
    return "".join(line + "\n" for line in out)


def without_value(recipe, path):
    """The recipe without one key's line."""
    out, at = [], []
    for line in recipe.splitlines():
        found = re.match(r"^( *)(\w+):", line)
        if found:
            at = [*at[:len(found[1]) // 2], found[2]]
        if not found or ".".join(at) != path:
            out.append(line)
    return "".join(line + "\n" for line in out)


def with_value(recipe, path, value, origin):
    """The recipe with `path: value`, in the section that is there or behind all."""
    lines, parts = recipe.splitlines(), path.split(".")
    at, depth = len(lines), 0
    begin, end = 0, len(lines)
    while depth < len(parts) - 1:
        head = re.compile(rf"^{'  ' * depth}{re.escape(parts[depth])}:\s*(#.*)?$")
        found = next((i for i in range(begin, end) if head.match(lines[i])), None)
        if found is None:
            break
        deeper = "  " * (depth + 1)
        begin = found + 1
        end = next((i for i in range(begin, end) if lines[i].strip() and not lines[i].startswith(deeper)), end)
        at, depth = end, depth + 1
    key = re.compile(rf"^{'  ' * depth}{re.escape(parts[-1])}:")
    if depth == len(parts) - 1:
        lines[begin:end] = [line for line in lines[begin:end] if not key.match(line)]
        at = min(at, len(lines)) if end == at else at
        at = next((i for i in range(begin, len(lines)) if lines[i].strip() and not lines[i].startswith("  " * depth)), len(lines)) \
            if depth else len(lines)
    new = ["  " * i + parts[i] + ":" for i in range(depth, len(parts) - 1)]
    new.append("  " * (len(parts) - 1) + f"{parts[-1]}: {yaml_value(value)}  # {origin}")
    return "".join(line + "\n" for line in lines[:at] + new + lines[at:])
