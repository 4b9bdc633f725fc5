"""axolotl: a plugin, because axolotl rewrites an experts_implementation that it does not know to `eager`.

    plugins:
      - troupe.axolotl.Plugin"""
import logging

from axolotl.integrations.base import BasePlugin

from . import patching


class Plugin(BasePlugin):
    def post_model_build(self, cfg, model):
        """Patches the model's experts, or raises Unsupported with what cannot be computed; logs the report."""
        logging.getLogger("axolotl").info("%s", patching.patch(model))
