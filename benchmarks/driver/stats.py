"""Medians and their bounds."""

import random
from statistics import median

SEED = 20231121
RESAMPLES = 2000


def bound_of_median(values):
    """The 95 % bootstrap bound of the median; the same values always give the same bound."""
    if len(values) < 2:
        return (values[0], values[0])
    source = random.Random(SEED)
    medians = sorted(median(source.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return (medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1])


def is_better(better, one, other):
    return one < other if better == "lower" else one > other


def reaches(better, value, wanted):
    return value == wanted or is_better(better, value, wanted)
