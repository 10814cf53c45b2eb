# SPDX-License-Identifier: Apache-2.0
"""Kernels become Python functions, one a block."""
