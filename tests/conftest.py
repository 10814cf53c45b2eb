# SPDX-License-Identifier: Apache-2.0
"""What every test stands on: the GPU marker, workers, one kernel cache for all of them, hypothesis profiles."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Most workers of a run that names none; each holds torch and what it has compiled.
MOST_WORKERS = 8

# A run of the whole suite takes one in so many rows of tests marked "sliced", and of tests without rows in files that
# are marked as a whole one in so many; HEAD's hash chooses which.
SLICES, WHOLE_SLICES = 12, 4
SLICED = "CUTEGEMM_TEST_SLICES"  # tells workers that the whole suite runs

# this process's number among the workers of a run of the whole suite
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) if SLICED in os.environ else None

# MB by which a worker may grow before what its tests left behind goes back to the system
GROWTH = 64

# read when the DSL is first imported
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
# Read when torch and NumPy are first imported. Workers fill the cores; threads that wait for one another's share of a
# small product take more than ten times the product.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Compiled kernels serve the whole run, workers included, and no other run unless a directory to keep is named.
    _CACHE = tempfile.TemporaryDirectory(prefix="cutegemm-test-cache-")
    os.environ["CUTEGEMM_CACHE_DIR"] = os.environ.get("CUTEGEMM_TEST_CACHE_DIR") or _CACHE.name

# The part of the tests that needs no torch runs without it, too (tools/release.sh).
TORCH = importlib.util.find_spec("torch") is not None

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("default", max_examples=40, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("long", max_examples=2_000, deadline=None, suppress_health_check=_SLOW)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--profile long`: the same properties on more drawn cases."""
    default = os.environ.get("HYPOTHESIS_PROFILE", "default")
    parser.addoption(
        "--profile", choices=("default", "long"), default=default, help="how many cases are drawn"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile before any test module is read."""
    settings.load_profile(config.getoption("--profile"))


@pytest.fixture(scope="session", autouse=True)
def compiled_elsewhere() -> Iterator[None]:
    """A worker stays small: kernels are compiled in a process beside it, which is renewed now and then.

    What imports and collecting left behind is set apart, so that each garbage collection takes less time and the large
    arrays of an emulated launch, which lie in cycles, are not kept for long.
    """
    gc.collect()
    gc.freeze()
    if "cutegemm.spec" not in sys.modules:
        # nothing in this run compiles
        yield
        return
    from cutegemm.compiling import kernel_cache as cache
    from tests.support.compile_elsewhere import Elsewhere

    here, elsewhere = cache.compile_config, Elsewhere()
    cache.compile_config = elsewhere
    if "PYTEST_XDIST_WORKER" in os.environ:
        # the cores have work, and the helper has started
        cache.START = sys.maxsize
    yield
    cache.compile_config = here
    elsewhere.end()


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """What a module's tests compiled and emulated is kept on disk alone once they are done."""
    yield
    cache, parse = (
        sys.modules.get(f"cutegemm.{x}") for x in ("compiling.kernel_cache", "emulator.ptx.parse")
    )
    compiled = cache is not None and cache._MEMORY
    emulated = parse is not None and parse.module_of.cache_info().currsize
    if compiled:
        cache._MEMORY.clear()
    if emulated:
        parse.module_of.cache_clear()
    if compiled or emulated:
        gc.collect()


class Memory:
    """Gives back what a test leaves: an emulated launch's arrays lie in cycles, and the C library keeps freed pages."""

    def __init__(self) -> None:
        from tests.support import resident

        self._support, self._least = resident, resident.resident()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        """After a test that made this process grow."""
        if self._support.resident() > self._least + GROWTH:
            self._support.give_back()
            self._least = self._support.resident()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes is kept: looking for garbage in it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What collecting holds is no test's; where nothing was imported nothing grows."""
    if "cutegemm.spec" in sys.modules:
        session.config.pluginmanager.register(Memory())


def _missing_gpu() -> str | None:
    """Why GPU tests cannot run here, or None."""
    if not TORCH:
        return "needs a Hopper GPU; torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return "needs a Hopper GPU; torch sees no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        return f"needs a Hopper GPU (9.0); {torch.cuda.get_device_name()} is {capability[0]}.{capability[1]}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in as many workers as there are cores; named files and tests run in one process.

    `-n` says otherwise. A worker takes neighbouring tests, which share fixtures, and steals when it has none left.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if whole and config.getoption("--profile") != "long":
        os.environ.setdefault(SLICED, str(SLICES))
    # A worker is given the run's own arguments and no number of workers: it must not start workers in its turn.
    if (
        not whole
        or "PYTEST_XDIST_WORKER" in os.environ
        or not config.pluginmanager.hasplugin("xdist")
        or config.getoption("numprocesses") is not None
    ):
        return
    if config.getoption("usepdb") or config.getoption("collectonly"):
        return
    config.option.numprocesses = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    config.option.dist = "worksteal"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Without torch, files that import it are skipped. Every other worker begins with the last file.

    What one worker has imported and compiled by then the other reads; in step, each would compile everything.
    """
    report = yield
    if WORKER and WORKER % 2 and isinstance(collector, pytest.Directory) and report.passed:
        report.result.reverse()
    if not TORCH and report.failed and "No module named 'torch'" in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, "needs torch")
    return report


def _other_slices(items: list[pytest.Item]) -> list[pytest.Item]:
    """The rows and tests that other commits run: of emulated kernels, seconds each, and neighbours resemble each other.

    Some of each file runs. A marker of a test alone means its rows.
    """
    slices = int(os.environ.get(SLICED, "1"))
    rows: dict[tuple[str, int], dict[str, list[pytest.Item]]] = {}
    for x in items:
        marker = x.get_closest_marker("sliced")
        if not marker or marker.args == (False,) or x.get_closest_marker("gpu"):
            continue
        path = x.nodeid.partition("::")[0]
        if hasattr(x, "callspec"):
            rows.setdefault((path, slices), {}).setdefault(x.callspec.id, []).append(x)
        elif marker not in x.own_markers:
            rows.setdefault((path, WHOLE_SLICES), {}).setdefault(x.name, []).append(x)
    if slices == 1 or not rows:
        return []
    from tests.support.heads import seed, taken

    kept = {(key, name) for key, named in rows.items() for name in taken(named, key[1], seed())}
    return [
        x for key, named in rows.items() for name, xs in named.items() if (key, name) not in kept for x in xs
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave other slices' rows out; skip GPU tests, with the reason, where there is no Hopper GPU."""
    if WORKER is not None:
        # one order for all workers, whatever theirs was
        items.sort(key=lambda x: x.path.parts)
    if left := set(_other_slices(items)):
        config.hook.pytest_deselected(items=[x for x in items if x in left])
        items[:] = [x for x in items if x not in left]
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _missing_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which combinations and slices ran, so that they can be run again."""
    ran = (x for kind in ("passed", "failed") for x in terminalreporter.stats.get(kind, ()))
    if any("test_combinations" in getattr(x, "nodeid", "") for x in ran):
        from tests.support.heads import VARIABLE, seed

        terminalreporter.write_line(f"combinations and slices: {VARIABLE}={seed()}")
