"""The names of MegaBlocks' autograd classes. `apply` is the function, whose gradient is that of Troupe's operator."""
from ...checks import Unsupported


def with_apply(name, function):
    """The class of that name. Its own forward would not be called by apply, so it takes no subclass."""
    def refuse(cls):
        raise Unsupported(f"{cls.__name__}: {name} takes no subclass, since its gradient is that of an operator. Derive from "
                          f"torch.autograd.Function and call ops.{function.__name__} there")

    return type(name, (), {"apply": staticmethod(function), "__doc__": f"apply is ops.{function.__name__}.",
                           "__init_subclass__": classmethod(refuse), "__module__": function.__module__})
