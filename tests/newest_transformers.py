"""The newest transformers beside the pinned one, for tests that need it: .venv/newest holds it
(tools/requirements/newest.txt), or the folder that TROUPE_NEWEST names. `import newest_transformers` before transformers
puts it first; it is not there without ./dev setup."""
import os
import pathlib
import sys

FOLDER = pathlib.Path(os.environ.get("TROUPE_NEWEST") or pathlib.Path(__file__).resolve().parent.parent / ".venv/newest")
HERE = FOLDER.exists()
if HERE:
    sys.path.insert(0, str(FOLDER))


def check():
    """That it is the one which was imported."""
    import transformers
    if HERE and FOLDER.resolve() not in pathlib.Path(transformers.__file__).resolve().parents:
        raise AssertionError(f"transformers is {transformers.__file__}, not the one in {FOLDER}")
