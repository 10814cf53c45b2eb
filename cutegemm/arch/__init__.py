# SPDX-License-Identifier: Apache-2.0
"""What the hardware is: limits of sm_90 with their sources, and records of GPUs."""
