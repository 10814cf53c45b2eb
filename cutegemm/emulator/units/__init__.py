# SPDX-License-Identifier: Apache-2.0
"""Instructions that access memory, synchronise or use the tensor cores."""
