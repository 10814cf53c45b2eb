# SPDX-License-Identifier: Apache-2.0
"""The fused epilogues that benchmarks time, at a size for the CPU."""

from benchmarks.results import Case
from benchmarks.suites import EPILOGUES

OF = {
    name: Case(suite="epilogue", dtype="bf16", majors="kk", m=48, n=128, k=64, epilogue=name, beta=beta)
    for name, beta, _ in EPILOGUES
}
SMALL = list(OF.values())
