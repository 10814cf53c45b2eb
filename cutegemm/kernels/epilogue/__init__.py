# SPDX-License-Identifier: Apache-2.0
"""From accumulators and inputs to stored matrices and partial reductions."""
