# SPDX-License-Identifier: Apache-2.0
"""Values of 8 bits: maxima of elements, scales from them, and quotients."""
