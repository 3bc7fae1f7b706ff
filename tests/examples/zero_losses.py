#!/usr/bin/env python3
"""zero_losses.py TUTTI_RUN STEPS STATES PROGRAM [ARGUMENT...]: under ZeRO 1, 2 and 3 on 2 and 4
ranks, in shared memory and over TCP, the losses equal those of one rank without ZeRO within 1e-3.
Between steps a rank holds as many bytes as the stage's formula says, within 10 %. STATES is the
number of optimizer state values per parameter. In the last quarter of the steps nothing is
negotiated."""
import os
import re
import subprocess
import sys

run, steps, states, program = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
STEP = re.compile(r"^step \d+  loss (\S+)  .* (\d+) messages", re.M)
PARAMETERS = re.compile(r" ([0-9.]+) million parameters")
HELD = re.compile(r"^held: values (\d+), gradients (\d+), state (\d+) bytes; at most in a step: values (\d+)", re.M)


def train(ranks, backend, stage):
    command = [run, "-np", str(ranks)] + program + ["--steps", str(steps), "--zero", str(stage)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, TUTTI_BACKEND=backend)).stdout
    text = re.sub(r"^\[\d+\] ?", "", text, flags=re.M)  # tutti-run adds the rank in front
    found = STEP.findall(text)
    if len(found) != steps:
        sys.exit(f"{' '.join(command)} printed no {steps} steps:\n{text}")
    return [float(loss) for loss, _ in found], [int(messages) for _, messages in found], text


losses, _, text = train(1, "shm", 0)
print("one rank:", losses)
if not losses[-1] < losses[0]:
    sys.exit("the loss did not fall")
whole = float(PARAMETERS.search(text)[1]) * 4e6  # bytes of all parameters
for backend in ("shm", "tcp"):
    for ranks in (2, 4):
        for stage in (1, 2, 3):
            name = f"ZeRO-{stage} on {ranks} ranks over {backend}"
            others, messages, text = train(ranks, backend, stage)
            worst = max(abs(mine - other) / mine for mine, other in zip(losses, others))
            part = whole / ranks
            wanted = {"values": part + (whole if stage < 3 else 0),
                      "gradients": part + (whole if stage < 2 else 0), "state": states * part}
            numbers = [int(number) for number in HELD.search(text).groups()]
            held = dict(zip(wanted, numbers))
            print(f"{name}: losses within {worst:.1e}, messages a step {messages}, held",
                  ", ".join(f"{what} {held[what] / wanted[what]:.3f}" for what in wanted),
                  f"of the formula, values at most {numbers[3] / whole:.2f} of all in a step")
            if worst > 1e-3:
                sys.exit(f"{name}: losses {others}, expected {losses}")
            if any(messages[-(steps // 4):]):
                sys.exit(f"{name}: messages of each step {messages}, expected none in the last {steps // 4}")
            for what in wanted:
                if abs(held[what] - wanted[what]) > 0.1 * wanted[what]:
                    sys.exit(f"{name}: holds {held[what]} bytes of {what}, expected {wanted[what]:.0f}")
