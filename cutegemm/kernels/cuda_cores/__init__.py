# SPDX-License-Identifier: Apache-2.0
"""Exact fp32 on the CUDA cores."""
