# SPDX-License-Identifier: Apache-2.0
"""Observers of a launch (coverage, meter, L2, outputs), warp roles, and findings."""
