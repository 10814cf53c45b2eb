# SPDX-License-Identifier: Apache-2.0
"""PTX as text becomes kernels, instructions and blocks."""
