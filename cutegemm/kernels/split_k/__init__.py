# SPDX-License-Identifier: Apache-2.0
"""How the partial sums of split-K are reduced."""
