"""The version of torch."""

import torch

_OLDEST = (1, 13)


def torch_version() -> tuple[int, int]:
    """Returns the version, such as (2, 15). Debian's torch has the version 1.13.0a0, so only the
    first two numbers are reliable."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


if torch_version() < _OLDEST:
    raise ImportError(
        f"tutti.torch needs torch {_OLDEST[0]}.{_OLDEST[1]} or newer, and this is {torch.__version__}; "
        "install a newer one"
    )
