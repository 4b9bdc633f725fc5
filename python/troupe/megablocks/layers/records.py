"""What layers leave for the losses of a step, in the order of their calls, each with the Arguments of its layer.

A loss takes the records of its own Arguments, so two models do not mix. Nothing is recorded in the pass that a checkpoint
repeats inside backward: the first pass recorded it. The first pass of a reentrant checkpoint has no graph, so that its
record could have no gradient: that is an error."""
from ...checks import Unsupported
from ...losses import in_backward
from .arguments import Arguments

PLAIN = (int, float, str, bool, type(None))


def _plain(args):
    return {name: value for name, value in vars(args).items() if isinstance(value, PLAIN)}


class Records(list):
    """[(Arguments or None, record)]"""

    def add(self, args, record, layer):
        """`layer` remembers whether its last record could have a gradient."""
        tensor = record[-1] if isinstance(record, tuple) else record
        if in_backward():
            if not getattr(layer, "_recorded_with_grad", True):
                raise Unsupported(f"{type(layer).__name__}: a reentrant checkpoint runs the layer without a graph first, so "
                                  "its balance loss would have no gradient. Use torch.utils.checkpoint.checkpoint(..., "
                                  "use_reentrant=False)")
            return
        layer._recorded_with_grad = tensor.requires_grad
        self.append((args, record))

    def of(self, args: Arguments):
        """Those of this object; of equal arguments where a model made a copy a layer; all that were saved by hand."""
        own = [record for key, record in self if key is args]
        if own:
            return own
        equal = [record for key, record in self if key is not None and _plain(key) == _plain(args)]
        return equal or [record for key, record in self if key is None]
