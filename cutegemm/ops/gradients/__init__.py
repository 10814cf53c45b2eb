# SPDX-License-Identifier: Apache-2.0
"""The op's gradients: the GEMMs that they need, and the autograd function that runs them."""
