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


STOPPED = """
import multiprocessing, os, signal
from multiprocessing import forkserver
from paceline.compat import fork_server

forkserver.ensure_running()
os.kill(fork_server.pid(), signal.SIGSTOP)
with fork_server.kept_awake():
    child = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    child.start()
    child.join()
assert child.exitcode == 0
"""


def test_a_stopped_fork_server_is_woken_to_start_a_process() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"Python waits for a stopped fork server without end\n{done.stderr}"
