"""python -m troupe.megablocks SCRIPT [ARGUMENT...]: runs a script as it stands, with `import megablocks` giving this package."""
import pathlib
import runpy
import sys

from troupe import megablocks


def main(words):
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    script = pathlib.Path(words[0])
    if not script.is_file():
        print(f"troupe.megablocks: {script} is no file", file=sys.stderr)
        return 2
    megablocks.install()
    sys.argv = words
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
