#!/usr/bin/env python3
"""same_losses.py TUTTI_RUN STEPS BOUND PROGRAM [ARGUMENT...]: for each step, the program prints the
mean loss of the joined batch and the norm of its gradient. On 1, 2, 3 and 4 ranks the first
gradient's norm and all losses are equal within the relative BOUND. With --dtype bf16 and f16, if
the program has it, the last loss is within 2 %. Losses must fall."""
import re
import subprocess
import sys

run, steps, bound, program = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
LINE = re.compile(r"^step (\d+)  loss (\S+)  norm (\S+)", re.M)


def train(ranks, *more):
    command = [run, "-np", str(ranks)] + program + ["--steps", str(steps)] + list(more)
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # tutti-run puts the rank in front of each line if there are several ranks.
    found = LINE.findall(re.sub(r"^\[\d+\] ?", "", text, flags=re.M))
    if [int(step) for step, _, _ in found] != list(range(steps)):
        sys.exit(f"{' '.join(command)} printed no {steps} steps:\n{text}")
    return [float(loss) for _, loss, _ in found], float(found[0][2])


losses, norm = train(1)
print("1 rank: ", losses, "norm", norm)
if not losses[-1] < losses[0]:
    sys.exit("the loss did not fall")
for ranks in (2, 3, 4):
    others, other_norm = train(ranks)
    print(f"{ranks} ranks:", others, "norm", other_norm)
    if abs(other_norm - norm) > 1e-4 * norm:
        sys.exit(f"the first gradient's norm is {other_norm} on {ranks} ranks, {norm} on one")
    for step, (mine, other) in enumerate(zip(losses, others)):
        if abs(mine - other) > bound * mine:
            sys.exit(f"step {step}: loss {other} on {ranks} ranks, {mine} on one")
narrow = ("bf16", "f16") if "--dtype" in subprocess.run(
    [program[0], "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout else ()
for dtype in narrow:
    others, _ = train(2, "--dtype", dtype)
    print(f"{dtype}:", others)
    if not abs(others[-1] - losses[-1]) <= 0.02 * losses[-1]:
        sys.exit(f"in {dtype} the last loss is {others[-1]}, in f32 {losses[-1]}")
