"""Whose a file is, and its reader."""
from . import bridge, flat_yaml, scripts, tuning
from .common import yaml_of
from .settings import Fault

READERS = {"Primus": flat_yaml.primus, "FlagScale": flat_yaml.flagscale, "LLaMA-Factory": tuning.llama_factory, "Axolotl": tuning.axolotl,
           "Megatron-Bridge": bridge.bridge, "script": scripts.read}


def kind_of_yaml(content):
    if not isinstance(content, dict):
        return None
    if "modules" in content and isinstance(content["modules"], dict):
        return "Primus"
    experiment = content.get("experiment")
    if isinstance(experiment, dict) and "task" in experiment or {"system", "model"} <= set(content):
        return "FlagScale"
    if "base_model" in content:
        return "Axolotl"
    return "LLaMA-Factory" if "model_name_or_path" in content else None


def kind_of(file):
    if file.suffix in (".yaml", ".yml"):
        return kind_of_yaml(yaml_of(file)[0])
    if file.suffix == ".sh":
        return "script"
    if file.suffix == ".py" or ".py:" in file.name:
        return "Megatron-Bridge"
    return None


def read(file, troupe, variables, config):
    kind = kind_of(file)
    if kind is None:
        names = [name for name in READERS if name != "script"] + list(scripts.PROJECTS)
        raise Fault(f"{file}: is of none of {', '.join(names)}. `troupe convert recipe` reads Megatron-LM's, LLM-Foundry's, torchtitan's and "
                    "MegaBlocks' files")
    return READERS[kind](file, troupe, variables, config)
