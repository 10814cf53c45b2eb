# SPDX-License-Identifier: Apache-2.0
"""The host side of a launch: arguments, global tensors, shared-memory layouts and TMA atoms."""
