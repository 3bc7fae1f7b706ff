"""python -m tutti.run: starts the launcher tutti-run of this package or of its installation."""

import os
import shutil
import sys


def find():
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, "bin", "tutti-run")]
    # The tools may be installed with this package: PREFIX/lib/python3/dist-packages/tutti and
    # PREFIX/bin.
    folder = here
    for _ in range(5):
        folder = os.path.dirname(folder)
        places.append(os.path.join(folder, "bin", "tutti-run"))
    places.append(shutil.which("tutti-run") or "")
    for place in places:
        if is_program(place):
            return place
    return None


def is_program(path):
    """Returns False for the script of the same name, which would call this module again."""
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def main():
    program = find()
    if program is None:
        sys.exit("tutti.run: there is no tutti-run, neither in this package nor on the PATH")
    os.execv(program, ["tutti-run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
