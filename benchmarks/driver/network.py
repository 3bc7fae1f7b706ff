"""Makes two network namespaces that a veth pair joins, and removes them."""

import os
import subprocess

ADDRESSES = ("10.219.7.1", "10.219.7.2")


def _ip(*words):
    done = subprocess.run(("ip",) + words, capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """`with Network(name):` makes the network, and shape(rate) limits both directions. The same
    name gives the same commands, by which an interrupted run recognizes what it has measured."""

    def __init__(self, name):
        self.name = name
        self.names = tuple(f"{name}-{side}" for side in "ab")

    def fault(self):
        return "" if os.geteuid() == 0 else "network namespaces need root"

    def __enter__(self):
        self.__exit__()  # removes what a killed run left
        try:
            for name in self.names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            left, right = self.names
            _ip("-n", left, "link", "add", "veth", "type", "veth", "peer", "name", "veth",
                "netns", right)
            for name, address in zip(self.names, ADDRESSES):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", "veth")
                _ip("-n", name, "link", "set", "veth", "up")
        except OSError:
            self.__exit__()
            raise
        return self

    def shape(self, rate):
        for name in self.names:
            done = subprocess.run(
                ("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "veth", "root",
                 "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"),
                capture_output=True, text=True, timeout=20)
            if done.returncode != 0:
                raise OSError(f"tc: {done.stderr.strip()}")

    def unshape(self):
        for name in self.names:
            subprocess.run(("ip", "netns", "exec", name, "tc", "qdisc", "del", "dev", "veth",
                            "root"), capture_output=True, timeout=20, check=False)

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(("ip", "netns", "delete", name), capture_output=True, timeout=20,
                           check=False)
