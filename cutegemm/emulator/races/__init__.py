# SPDX-License-Identifier: Apache-2.0
"""The race detector: an observer that tracks happens-before for each cell of memory."""
