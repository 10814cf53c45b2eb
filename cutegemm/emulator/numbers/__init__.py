# SPDX-License-Identifier: Apache-2.0
"""Register values and arithmetic, bit for bit as on the hardware."""
