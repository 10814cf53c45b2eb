# SPDX-License-Identifier: Apache-2.0
"""Values of registers and the arithmetic on them, bit for bit as the hardware's."""
