# SPDX-License-Identifier: Apache-2.0
"""Observers of a run: races, bank conflicts, L2, meters, roles."""
