"""Detects another distribution with the name under which this package is imported."""

import os


def other_distribution():
    """Returns a line about a distribution `tutti` that is installed beside this package, or None.
    Both are in one folder, so the files of either may have replaced those of the other."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        names = os.listdir(folder)
    except OSError:  # the folder may be entered but not read
        return None
    for name in names:
        stem, kind = os.path.splitext(name)
        if kind in (".dist-info", ".egg-info") and stem.split("-")[0] == "tutti":
            return (
                f"tutti: another distribution of the name tutti is installed in {folder} ({stem}), and "
                "its files may have replaced some of these: pip uninstall tutti, then "
                "pip install --force-reinstall tutti-collectives"
            )
    return None
