# SPDX-License-Identifier: Apache-2.0
"""Launches: what to run, the machine that runs it, contexts of several in a row, reports and tables."""
