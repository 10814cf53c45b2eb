# SPDX-License-Identifier: Apache-2.0
"""Epilogues: what happens to an accumulator element on its way to D, as data."""

from cutegemm.epilogue.graph import Graph, Node, Result, linear_combination

__all__ = ["Graph", "Node", "Result", "linear_combination"]
