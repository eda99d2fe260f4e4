"""Two hosts that are network namespaces of this machine, joined by a pair of virtual network cards.

A host has an address, a name, a loopback, and shared memory of its own, and nothing reaches it but by its card. The
folder of runs and the processes' numbers are those of the machine.
"""

import os
import subprocess
import uuid
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
SSH = """#!/bin/sh
# ssh -o ... -o ... [-tt] HOST COMMAND
while [ "$1" = -o ]; do shift 2; done
[ "$1" = -tt ] && shift
name={name}-$1
setup='mount -t tmpfs tmpfs /dev/shm && hostname "$0" && exec sh -c "$1"'
exec ip netns exec "$name" unshare --uts --ipc --mount sh -c "$setup" "$name" "$2"
"""


class TwoHosts:
    """`close` takes them away. `environment`: in which ssh reaches them by ADDRESSES."""

    def __init__(self, folder: Path) -> None:
        self._name = f"paceline-{uuid.uuid4().hex[:8]}"
        (folder / "ssh").write_text(SSH.format(name=self._name))
        (folder / "ssh").chmod(0o755)
        self.environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
        try:
            for address in ADDRESSES:
                _ip("netns", "add", self._of(address))
            first, second = map(self._of, ADDRESSES)
            _ip("link", "add", "card", "netns", first, "type", "veth", "peer", "name", "card", "netns", second)
            for address in ADDRESSES:
                _ip("-n", self._of(address), "address", "add", f"{address}/24", "dev", "card")
                for device in ("lo", "card"):
                    _ip("-n", self._of(address), "link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    def sent(self, address: str) -> int:
        """Returns the bytes that have left the host by its card."""
        counter = "/sys/class/net/card/statistics/tx_bytes"
        return int(_ip("netns", "exec", self._of(address), "cat", counter))

    def unplug(self, address: str) -> None:
        _ip("-n", self._of(address), "link", "set", "card", "down")

    def plug_in(self, address: str) -> None:
        _ip("-n", self._of(address), "link", "set", "card", "up")

    def close(self) -> None:
        for address in ADDRESSES:
            subprocess.run(["ip", "netns", "delete", self._of(address)], stderr=subprocess.DEVNULL)

    def _of(self, address: str) -> str:
        return f"{self._name}-{address}"


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
