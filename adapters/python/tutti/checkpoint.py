"""Reads checkpoints that the library wrote as numpy arrays, without a communicator
(docs/checkpoints.md)."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, NamedTuple

import numpy

from ._errors import CorruptDataError, InputOutputError

# numpy has no bfloat16, so its bits are read as 16-bit integers.
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?",
}  # fmt: skip


class Checkpoint(NamedTuple):
    step: int
    words: dict[str, str]
    tensors: dict[str, numpy.ndarray[Any, Any]]


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """Returns the steps of the whole checkpoints in a folder, in ascending order."""
    # A name such as ".step-12.replaced" counts as step 12 while there is no "step-12"; see
    # _place().
    names = (
        entry.name.removeprefix(".").removesuffix(".replaced")
        if entry.name.startswith(".") and entry.name.endswith(".replaced")
        else entry.name
        for entry in pathlib.Path(folder).iterdir()
    )
    return sorted({int(name[5:]) for name in names if name[:5] == "step-" and name[5:].isdigit()})


def _place(folder: str | os.PathLike[str], step: int) -> pathlib.Path:
    """Returns the folder of a step. On file systems that cannot exchange two names, this is for a
    moment the folder of the checkpoint that is being replaced."""
    place = pathlib.Path(folder) / f"step-{step}"
    return place if place.exists() else place.with_name(f".step-{step}.replaced")


def read(folder: str | os.PathLike[str], step: int | None = None) -> Checkpoint:
    """Reads the whole newest checkpoint of a folder, or that of `step`. Any number of ranks may
    have written it.

    Raises InputOutputError if there is none. Raises CorruptDataError if a file does not have the
    length in the manifest, or describes a tensor differently than the manifest. Checksums are
    checked only by the library.
    """
    there = steps(folder)
    if not there or (step is not None and step not in there):
        raise InputOutputError(f'no step {"" if step is None else step} in "{folder}"; there are {there}')
    place = _place(folder, there[-1] if step is None else step)
    manifest = json.loads((place / "manifest.json").read_text())["checkpoint"]
    if manifest["version"] != 1:
        raise CorruptDataError(
            f'"{place}" has a manifest of version {manifest["version"]}, expected 1'
        )
    files = [place / file["name"] for file in manifest["files"]]
    for path, file in zip(files, manifest["files"]):
        if path.stat().st_size != file["bytes"]:
            raise CorruptDataError(
                f'"{path}" has {path.stat().st_size} bytes, expected {file["bytes"]}'
            )
    tensors = {}
    for name, tensor in manifest["tensors"].items():
        whole = numpy.empty(tensor["shape"], _DTYPES[tensor["dtype"]])
        flat = whole.reshape(-1)
        at = 0
        for part in sorted(tensor["parts"], key=lambda part: part["begin"]):
            count = part["end"] - part["begin"]
            if part["begin"] != at or count < 0:
                raise CorruptDataError(
                    f'"{place}": no part of tensor "{name}" begins at element {at}'
                )
            elements = numpy.fromfile(
                files[part["file"]], whole.dtype, count, offset=part["offset"]
            )
            if len(elements) != count:
                raise CorruptDataError(
                    f'"{files[part["file"]]}" ends after {len(elements)} of {count} elements of '
                    f'tensor "{name}"'
                )
            at = part["end"]
            flat[part["begin"] : at] = elements
        if at != flat.size:
            raise CorruptDataError(
                f'"{place}": the parts of tensor "{name}" end at element {at}, expected {flat.size}'
            )
        tensors[name] = whole
    return Checkpoint(manifest["step"], manifest["words"], tensors)
