"""The command: finds out what SOURCE is, reads it, writes OUTPUT."""
import argparse
import json
import pathlib
import re
import signal
import sys

from . import back, dcp, hub, legacy, megatron
from .tensors import BESIDE, Fault, listed

TRACKER = "latest_checkpointed_iteration.txt"


def located(source):
    """The folder that holds the tensors: Megatron's tracker file names a step."""
    tracker = source / TRACKER
    if not tracker.exists():
        return source
    text = tracker.read_text().strip()
    if text != "release" and not text.isdecimal():
        raise Fault(f"{tracker}: says {text!r}, neither a step nor release. Give the step's folder itself")
    folder = source / (text if text == "release" else f"iter_{int(text):07d}")
    if not folder.is_dir():
        raise Fault(f"{tracker}: says {text}, and {folder.name} is not there. Give another step's folder itself: "
                    f"{listed(p.name for p in source.glob('iter_*')) or 'none is there'}")
    return folder


def opened(source, ranks, sums):
    """(tensors, names of what is none, the saved arguments or None)"""
    folder = located(source)
    if not folder.is_dir():
        raise Fault(f"{folder}: is no folder")
    if (folder / ".metadata").exists():
        dcp.check_kind(folder)
        common = folder / "common.pt"
        args = legacy.load(common).get("args") if common.exists() else None
        return *dcp.Reader(folder, sums).tensors(), args
    if any(folder.glob("*.distcp")):
        raise Fault(f"{folder}: .metadata is missing, which is written last: the save did not end. Take an earlier step")
    if any(folder.glob("mp_rank_*")):
        joined = legacy.Joined(folder, ranks, sums)
        return *joined.tensors(), joined.args
    raise Fault(f"{folder}: expected {TRACKER}, .metadata with *.distcp, or mp_rank_* folders; found "
                f"{listed(p.name for p in folder.iterdir()) or 'nothing'}")


def hub_names(tensors):
    """Removes the prefix that a trainer put before Hugging Face's names."""
    heads = [n for n in tensors if re.search(r"(^|\.)(model\.embed_tokens|transformer\.wte)\.weight$", n)]
    if len(heads) != 1:
        raise Fault(f"the tensors' names are of no known form: {listed(tensors, 4)}. --raw writes them as they are")
    prefix = re.sub(r"(model\.embed_tokens|transformer\.wte)\.weight$", "", heads[0])
    if other := [n for n in tensors if not n.startswith(prefix)]:
        raise Fault(f"left over, beside the model at {prefix}: {listed(other)}. --raw writes them too")
    return {n.removeprefix(prefix): t for n, t in tensors.items()}


def convert_back(options):
    if options.to == "dcp":
        count = back.as_dcp(options.source, options.output)
    else:
        count = back.as_torch_dist(options.source, options.output, options.local, options.multiple)
    print(f"{options.output}: {count} tensors, {options.to}")


def convert(options):
    if options.to != "hub":
        return convert_back(options)
    found, other, args = opened(options.source, options.ranks, options.sums)
    tensors = {n: t for n, t in found.items() if not BESIDE.search(n)}
    beside = sorted({*found, *other} - set(tensors))
    if unknown := [n for n in other if not BESIDE.search(n)]:
        print(f"passed over, no tensors: {listed(unknown)}")
    if not tensors:
        raise Fault(f"{options.source}: holds no tensor of a model, only {listed(beside)}")
    config = json.loads(options.config.read_text()) if options.config else None
    if options.raw:
        config, made = None, tensors
    elif megatron.is_megatron(tensors):
        if config is None and args is None:
            raise Fault(f"{options.source}: saved no arguments, so heads, top-k and the like are not known. Give the "
                        "config.json of this model: --config; or --raw")
        config = config or megatron.config_of(args, next(iter(tensors.values())).dtype)
        if options.vocab:
            config["vocab_size"] = options.vocab
        made = megatron.to_hub(tensors, config)
    else:
        if config is None:
            raise Fault(f"{options.source}: a config.json is needed: --config; or --raw writes the tensors as they are")
        made = hub_names(tensors)
    size = hub.write(options.output, config, made, int(options.shard * 2**30))
    print(f"{options.output}: {len(made)} tensors, {size / 1e9:.3g} GB" + (f", {config['model_type']}" if config else ""))
    if beside:
        print(f"passed over {len(beside)}, not the model's: {listed(beside, 3)}")
    if config:
        print(f"next: troupe import {options.output} RUN --check-logits")


def parsed(words):
    parser = argparse.ArgumentParser(prog="python3 -m troupe_foreign", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="A checkpoint of PyTorch's DCP, of Megatron-LM or of MegaBlocks' fork to a "
                                     "Hugging Face folder, or the other way.",
                                     epilog="Example: python3 -m troupe_foreign megatron/checkpoints mixtral\n"
                                     "Every tensor is used, or named in an error; nothing of a pickle is run.")
    parser.add_argument("source", type=pathlib.Path, help="with .metadata, mp_rank_* or Megatron's tracker file")
    parser.add_argument("output", type=pathlib.Path, help="a new folder")
    parser.add_argument("--config", type=pathlib.Path, help="the model's config.json; else of the saved arguments")
    parser.add_argument("--vocab", type=int, help="rows of a padded vocabulary that are true")
    parser.add_argument("--ranks", type=lambda text: text.split(","), metavar="tp,pp,ep",
                        help="what the numbers of mp_rank_* are; MegaBlocks: tp,dp,pp; else as the saved arguments say")
    parser.add_argument("--raw", action="store_true", help="every tensor under the name that it has, no config.json")
    parser.add_argument("--to", choices=("hub", "dcp", "torch_dist"), default="hub",
                        help="dcp, torch_dist: the other way, SOURCE is a Hugging Face folder (`troupe export` writes one)")
    parser.add_argument("--local", action="store_true", help="of torch_dist: for --transformer-impl local")
    parser.add_argument("--multiple", type=int, default=128, metavar="ROWS",
                        help="of torch_dist: the vocabulary is padded to a multiple of it; 128 x tensor ranks is Megatron's")
    parser.add_argument("--no-sums", dest="sums", action="store_false", help="do not compare the files' check sums")
    parser.add_argument("--shard", type=float, default=4.0, metavar="GIB", help="size of a file; 4")
    return parser.parse_args(words)


def main(words=None):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half written is removed
    options = parsed(words)
    try:
        convert(options)
    except (Fault, OSError, json.JSONDecodeError) as e:
        where = f"{options.config}: " if isinstance(e, json.JSONDecodeError) else ""
        print(f"error: {where}{e}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
