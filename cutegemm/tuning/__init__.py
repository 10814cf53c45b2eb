# SPDX-License-Identifier: Apache-2.0
"""The tuner: candidates are checked, timed in interleaved rounds, and the fastest is stored in the database.

proposals        the specs to measure, best predicted first
random_operands  tensors with the problem's memory layout
trial            checks a candidate's results
timing           device time by graph replay
race, interval   interleaved rounds with early stopping, and the confidence interval of a win
tuner            problem by problem, resumable
outcomes         results and progress display
gpu              what runs the candidates: a GPU, or a test's fake
child            the process that measures; if it hangs or dies, that costs one candidate

Torch is imported when something is tuned.
"""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cutegemm import checks
from cutegemm.database import Database
from cutegemm.errors import InputError, field_error
from cutegemm.problems import Problem, listed
from cutegemm.spec import GemmSpec, checked_spec

if TYPE_CHECKING:
    from rich.console import Console

    from cutegemm.tuning.gpu import Bench
    from cutegemm.tuning.outcomes import Report
    from cutegemm.tuning.race import Regime

# candidates per problem by default
CANDIDATES = 32
MOST_CANDIDATES = 1 << 30
# attributes that a bench must have
_BENCH = ("record", "memory", "backend", "versions", "one_pass", "sound")


@checks.keywords(GemmSpec)
def tune(
    spec: GemmSpec,
    problems: Iterable[Problem],
    *,
    candidates: int = CANDIDATES,
    again: bool = False,
    seconds: float | None = None,
    database: Database | None = None,
    bench: Bench | None = None,
    regime: Regime | None = None,
    console: Console | None = None,
) -> Report:
    """Measure candidates for each problem and store the fastest, so that `build` and `run` use it.

    A candidate is checked before it is timed. The cost model's choice stays unless another one is faster by more than
    the noise between rounds. Results are stored after every twelve candidates: after Ctrl-C, the same call continues
    where it stopped. Several processes can run the same call at once, on one GPU or on several of one model: each
    problem is measured by one of them.

    Args:
        spec: its specified fields are kept; unspecified fields are tuned.
        problems: to tune, in this order.
        candidates: the most that are measured per problem. A problem with fewer from an earlier call gets the rest.
        again: whether to measure problems that have an entry.
        seconds: after which no further batch of twelve candidates starts; None measures all.
        database: where entries go; None is the user's.
        bench: runs candidates in this process. None is the current CUDA device in a child process, so that a candidate
            that hangs or crashes the device costs only itself.
        regime: how long to time; None is sustained, about 5 s per problem.
        console: shows progress; None is standard error.

    Raises:
        SpecError, InputError: an argument has another type.
        HardwareError: there is no Hopper GPU.

    Example:
        >>> cutegemm.tune(GemmSpec(), [cutegemm.problem(4096, 4096, 4096)])      # doctest: +SKIP
    """
    spec = checked_spec(spec)
    wanted = listed("problems", problems)
    candidates = checks.integer(InputError, "candidates", candidates, 1, MOST_CANDIDATES)
    until = math.inf if seconds is None else time.monotonic() + _positive("seconds", seconds)
    if database is not None and not isinstance(database, Database):
        raise field_error(InputError, "database", database, "must be a cutegemm.database.Database")
    checks.truth(InputError, "again", again)
    if bench is not None and not all(hasattr(bench, x) for x in _BENCH):
        raise field_error(
            InputError, "bench", bench, f"must have {', '.join(_BENCH)}, as cutegemm.tuning.gpu.Bench"
        )
    if console is not None and not hasattr(console, "print"):
        raise field_error(InputError, "console", console, "must be a rich.console.Console")
    # imports torch
    from cutegemm.running.backends.launcher import current_device
    from cutegemm.tuning import child
    from cutegemm.tuning.gpu import GpuBench
    from cutegemm.tuning.outcomes import Report, Screen
    from cutegemm.tuning.race import Regime
    from cutegemm.tuning.tuner import Tuner, each

    if regime is not None and not isinstance(regime, Regime):
        raise field_error(InputError, "regime", regime, "must be a cutegemm.tuning.race.Regime")
    file, taken = database or Database(), regime or Regime()
    if bench is None:
        # raises if there is no Hopper GPU
        GpuBench()
        device, _ = current_device()
        job = child.Job(
            spec, tuple(dict.fromkeys(wanted)), file.path, candidates, taken, again, until, device
        )
        with Screen(console, len(wanted)) as screen:
            return Report(tuple(child.tuned(job, screen)))
    tuner = Tuner(spec, bench, file, candidates, taken, until=until)
    with Screen(console, len(wanted)) as screen:
        return Report(tuple(each(tuner, wanted, screen, again)))


def _positive(field: str, value: object) -> float:
    """A number of seconds, as a float.

    Raises:
        InputError: it is not a number, not positive, or beyond any float.
    """
    try:
        # NumPy's numbers too
        found = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else 0.0
    except OverflowError:
        found = 0.0
    if not found > 0:
        raise field_error(
            InputError, field, value, "must be a positive number of seconds, in a float's range", 60
        )
    return found


__all__ = ["tune"]
