"""Worker processes of tests, which are forked from a server with the modules of all tests."""

from multiprocessing import forkserver

from paceline.testing import processes

# Workers import these, here and in the engine; scikit-learn comes with the data.
PRELOADED = [
    *processes.PRELOADED,
    "paceline.engine.launch.virtual",
    "sklearn.datasets",
    "hypothesis",
    "pytest",
    "paceline.engine.launch.fork_server",
]


def preload_in_every_fork_server() -> None:
    """Makes the fork server of this process import `PRELOADED`, whoever starts it. The engine's own does without
    most of them, so that each worker forked from it later would spend half a second to import them.
    """
    set_preload = forkserver.set_forkserver_preload

    def with_ours(modules: list[str]) -> None:
        set_preload([*(module for module in modules if module not in PRELOADED), *PRELOADED])

    forkserver.set_forkserver_preload = with_ours
