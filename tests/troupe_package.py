"""The Python package of this tree over the library of TROUPE_BUILD, for tests: `from troupe_package import troupe`."""
import os
import pathlib
import sys

os.environ.setdefault("TROUPE_LIBRARY", str(pathlib.Path(os.environ["TROUPE_BUILD"], "libtroupe.so")))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import troupe as troupe  # noqa: E402
