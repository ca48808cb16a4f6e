"""Starts a program once for each rank of a world, as torchrun does, which itself imports torch: ``ranks.py 2 FILE``."""

import os
import socket
import subprocess
import sys
import time

size = int(sys.argv[1])
with socket.socket() as unused:
    unused.bind(("127.0.0.1", 0))
    world = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    world["MASTER_PORT"] = str(unused.getsockname()[1])
ranks = [
    subprocess.Popen((sys.executable, *sys.argv[2:]), env={**os.environ, **world, "RANK": rank, "LOCAL_RANK": rank})
    for rank in map(str, range(size))
]
while None in (statuses := [each.poll() for each in ranks]) and not any(statuses):
    time.sleep(0.02)
for each in ranks:
    each.terminate()
sys.exit(any(statuses))
