# SPDX-License-Identifier: Apache-2.0
"""Launches in a row under programmatic dependent launch: what may meet an unfinished earlier launch is found."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm import emulator
from cutegemm.emulator import Launch, Options, run_sequence
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import HEADER, aligned

WAIT, TRIGGER = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
THREADS = 64


def kernel(body: str) -> str:
    """A kernel of two warps; %rd0 and %rd1 point to this thread's word of p0 and p1, %p0 is true in warp 1."""
    return f"""{HEADER}
.visible .entry k(.param .u64 p0, .param .u64 p1)
{{
 .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
 .shared .align 8 .b8 bar[8];
 mov.u32 %r0, %tid.x; ld.param.u64 %rd2, [p0]; ld.param.u64 %rd3, [p1]; mov.u32 %r9, %ctaid.x;
 mad.lo.u32 %r8, %r9, {THREADS}, %r0; setp.ge.u32 %p0, %r0, 32;
 mad.wide.u32 %rd0, %r8, 4, %rd2; mad.wide.u32 %rd1, %r8, 4, %rd3;
{body}
 ret;
}}
"""


LOAD, STORE = " ld.global.u32 %r1, [%rd0];", " add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;"
WRITER = kernel(TRIGGER + LOAD + STORE)  # p1 = p0 + 1, triggers at its start


def run(*launches: tuple[str, int, int], pdl: bool = True, **sequence) -> tuple[list[np.ndarray], list]:
    """Run kernels on arrays named by number: (text, p0, p1); gives the arrays and the findings."""
    arrays = [aligned(2 * THREADS, np.uint32, 10 * i) for i in range(6)]
    made = [
        Launch(text, grid=2, block=THREADS, args=[arrays[a], arrays[b]], pdl=pdl and i > 0)
        for i, (text, a, b) in enumerate(launches)
    ]
    return arrays, run_sequence(made, **sequence).findings


def kinds(*launches: tuple[str, int, int], **options) -> list[str]:
    """Kinds of the findings."""
    return [f.kind for f in run(*launches, **options)[1]]


@pytest.mark.parametrize(
    "reader, found",
    [
        (WAIT + LOAD + STORE, []),
        (LOAD + WAIT + STORE, ["write-read race"]),
        (LOAD + STORE, ["write-read race"]),
    ],
)
def test_a_read_of_what_the_launch_before_writes_comes_after_the_wait(reader, found):
    """The result is that of the stream's order; a read before griddepcontrol.wait, or without one, is a finding."""
    arrays, findings = run((WRITER, 0, 1), (kernel(reader), 1, 2))
    assert (arrays[2] == 2).all()
    assert [f.kind for f in findings] == found
    assert all("launch 1 CTA" in str(f) and "earlier store by CTA" in str(f) for f in findings)


def test_without_pdl_launches_follow_each_other():
    """A launch without the attribute starts when all before it have ended."""
    assert kinds((WRITER, 0, 1), (kernel(LOAD + STORE), 1, 2), pdl=False) == []


def test_a_launch_that_never_triggers_is_over_when_the_next_starts():
    """An implicit trigger is the end of the launch."""
    assert kinds((kernel(LOAD + STORE), 0, 1), (kernel(LOAD + STORE), 1, 2)) == []


def test_a_cta_that_ended_without_a_trigger_is_over():
    """Only CTA 0 of the first launch triggers, so CTA 1 has ended before the second starts."""
    some = kernel("setp.ne.u32 %p1, %r9, 0; @%p1 bra REST; " + TRIGGER + "\nREST:" + LOAD + STORE)
    only = "setp.{}.u32 %p1, %r9, 0; @%p1 bra END;" + LOAD + STORE + "\nEND:"
    assert kinds((some, 0, 1), (kernel(only.format("eq")), 1, 2)) == []
    assert kinds((some, 0, 1), (kernel(only.format("ne")), 1, 2)) == ["write-read race"]


@pytest.mark.parametrize("body, found", [(STORE, ["read-write race"]), (WAIT + STORE, [])])
def test_a_write_over_what_the_launch_before_reads(body, found):
    """What an unfinished launch reads may not be written before the wait."""
    assert kinds((WRITER, 0, 1), (kernel(" mov.u32 %r1, 7;" + body), 3, 0)) == found


@pytest.mark.parametrize("other, found", [("", ["write-read race"]), (WAIT, [])])
def test_every_loading_warp_has_to_wait(other, found):
    """If one of two loading warps waits, the other one's loads are still a race."""
    text = kernel(f"@%p0 bra SECOND; {WAIT} bra BOTH;\nSECOND: {other}\nBOTH:{LOAD}{STORE}")
    assert kinds((WRITER, 0, 1), (text, 1, 2)) == found


def test_a_wait_orders_whom_its_thread_releases():
    """Warp 0 waits and then meets warp 1 at a barrier: both may read."""
    text = kernel(f"@%p0 bra BOTH; {WAIT}\nBOTH: bar.sync 0;{LOAD}{STORE}")
    assert kinds((WRITER, 0, 1), (text, 1, 2)) == []


@pytest.mark.parametrize("sync, found", [("", ["write-read race"]), ("bar.warp.sync 0xffffffff;", [])])
def test_a_wait_orders_its_lane_alone(sync, found):
    """One lane of each warp waits: the others may read once the lanes have met."""
    text = kernel(
        f"and.b32 %r2, %r0, 31; setp.ne.u32 %p1, %r2, 0; @%p1 bra ALL; {WAIT}\nALL: {sync}{LOAD}{STORE}"
    )
    assert kinds((WRITER, 0, 1), (text, 1, 2)) == found


def test_the_lane_that_waited_may_read_at_once():
    """Within the branch of the lane that waits, its own loads are ordered."""
    text = kernel(f"and.b32 %r2, %r0, 31; setp.ne.u32 %p1, %r2, 0; @%p1 bra END; {WAIT}{LOAD}{STORE}\nEND:")
    assert kinds((WRITER, 0, 1), (text, 1, 2)) == []


# Second of three launches -> findings of a third that reads what the first wrote, before its wait, after it.
MIDDLES = {
    "waits, then triggers": (WAIT + TRIGGER, [], []),
    "triggers, then waits": (TRIGGER + WAIT, ["write-read race"], []),
    "triggers, never waits": (TRIGGER, ["write-read race"], ["write-read race"]),
    "waits, never triggers": (WAIT, [], []),
    "neither": ("", ["write-read race"], ["write-read race"]),
}


@pytest.mark.parametrize("middle", list(MIDDLES))
def test_a_launch_reaches_back_further_than_one(middle):
    """A launch that triggers before it has waited lets its successor start while its predecessor runs."""
    body, early, late = MIDDLES[middle]
    between = (kernel(body + LOAD + STORE), 3, 4)
    assert kinds((WRITER, 0, 1), between, (kernel(LOAD + WAIT + STORE), 1, 2)) == early
    assert kinds((WRITER, 0, 1), between, (kernel(WAIT + LOAD + STORE), 1, 2)) == late


def test_what_nothing_writes_may_be_read_before_the_wait():
    """Weights are exempt until something in the sequence writes them."""
    reads_early = kernel(LOAD + WAIT + STORE)
    assert kinds((WRITER, 0, 1), (reads_early, 3, 2)) == []
    assert kinds(
        (kernel(TRIGGER + STORE.replace("add.u32 %r1, %r1, 1", "mov.u32 %r1, 1")), 0, 3), (reads_early, 3, 2)
    )


def test_constants_are_exempt_from_a_launch_before_the_sequence():
    """With `constant=`, the first launch may read early what is declared and nothing else."""
    arrays = [aligned(2 * THREADS, np.uint32) for _ in range(3)]
    text = kernel(LOAD + WAIT + STORE)
    first = Launch(text, grid=2, block=THREADS, args=arrays[:2], pdl=True)
    assert not run_sequence([first]).findings
    assert not run_sequence([first], constant=[arrays[0]]).findings
    found = run_sequence([first], constant=[arrays[2]]).findings
    assert [f.kind for f in found] == ["write-read race"] and "a launch before the sequence" in str(found[0])


def test_findings_of_another_kernel_name_its_own_lines():
    """A finding between two kernels gives each access the line of its own PTX."""
    (found,) = run((WRITER, 0, 1), (kernel("\n\n\n" + LOAD + STORE), 1, 2))[1]
    writes = next(i for i, line in enumerate(WRITER.splitlines(), 1) if "st.global" in line)
    assert found.lines == (writes, writes + 3)


def test_an_empty_sequence_is_refused():
    """At least one launch."""
    with pytest.raises(EmulatorError, match=r"^launches=\[\]: at least one launch$"):
        emulator.run_sequence([])


def test_options_hold_for_every_launch():
    """Without the detector nothing is found, and results are the same."""
    arrays, findings = run((WRITER, 0, 1), (kernel(LOAD + STORE), 1, 2), options=Options())
    assert not findings and (arrays[2] == 2).all()
