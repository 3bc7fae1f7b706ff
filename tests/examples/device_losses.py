#!/usr/bin/env python3
"""device_losses.py TUTTI_RUN STEPS BOUND PROGRAM [ARGUMENT...]: for each step, the program prints
the mean loss of the joined batch and the norm of its gradient. With --device fake-cuda, on one rank
and on two, all losses equal the CPU's within the relative BOUND, and a second run prints the same
digits. In bf16 and f16 the last loss is within 2 % of the CPU's. Losses must fall."""
import re
import subprocess
import sys

run, steps, bound, program = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
LINE = re.compile(r"^step (\d+)  loss (\S+)  norm (\S+)", re.M)


def train(ranks, *more):
    command = [run, "-np", str(ranks)] + program + ["--steps", str(steps)] + list(more)
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = LINE.findall(re.sub(r"^\[\d+\] ?", "", text, flags=re.M))
    if [int(step) for step, _, _ in found] != list(range(steps)):
        sys.exit(f"{' '.join(command)} printed no {steps} steps:\n{text}")
    return [loss for _, loss, _ in found], [norm for _, _, norm in found]


cpu, _ = train(1)
print("cpu:", *cpu)
if not float(cpu[-1]) < float(cpu[0]):
    sys.exit("the loss did not fall")
fake = ("--device", "fake-cuda")
for ranks in (1, 2):
    first, second = train(ranks, *fake), train(ranks, *fake)
    print(f"fake-cuda, {ranks} ranks:", *first[0])
    if first != second:
        sys.exit(f"a second run on {ranks} ranks printed {second}, the first {first}")
    for step, (wanted, got) in enumerate(zip(map(float, cpu), map(float, first[0]))):
        if not abs(got - wanted) <= bound * wanted:
            sys.exit(f"step {step}: loss {got} on {ranks} ranks of fake-cuda, {wanted} on the cpu")
for dtype in ("bf16", "f16"):
    losses, _ = train(1, *fake, "--dtype", dtype)
    print(f"fake-cuda, {dtype}:", *losses)
    if not abs(float(losses[-1]) - float(cpu[-1])) <= 0.02 * float(cpu[-1]):
        sys.exit(f"in {dtype} the last loss is {losses[-1]}, in f32 on the cpu {cpu[-1]}")
