"""Python's own fork server: what of it is ours to see and to let go of."""

import subprocess
import sys

ASKED = """
import os, tempfile
from multiprocessing import forkserver
from paceline.compat import fork_server

assert fork_server.pid() is None
with tempfile.TemporaryDirectory() as directory, fork_server.sockets_under(directory):
    forkserver.ensure_running()
    assert fork_server.address().startswith(directory), fork_server.address()
    os.kill(fork_server.pid(), 0)
    os.link(fork_server.address(), directory + "/other")
    fork_server.set_address(directory + "/other")
    child = forkserver.connect_to_new_process([])  # (what it says of itself, what it is told): two pipes
    for descriptor in child:
        os.close(descriptor)
    fork_server.let_go()
    os.waitpid(fork_server.pid(), 0)  # it ends, since nobody holds its pipe
"""


def test_the_fork_server_says_where_it_is_and_ends_once_it_is_let_go() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (
        "Python keeps its fork server otherwise: its socket would have a name, and workers could outlive their "
        f"launcher\n{done.stderr}"
    )
