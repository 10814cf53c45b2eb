# SPDX-License-Identifier: Apache-2.0
"""Parses PTX text to kernels, instructions and basic blocks."""
