# SPDX-License-Identifier: Apache-2.0
"""Translates kernels to Python functions, one for each basic block."""
