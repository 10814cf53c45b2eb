# SPDX-License-Identifier: Apache-2.0
"""The race detector: an observer that knows happens-before, cell by cell."""
