# SPDX-License-Identifier: Apache-2.0
"""The hardware: limits of sm_90 with their sources, and records of GPUs."""
