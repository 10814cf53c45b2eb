# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call (names, layouts, types, addresses), its kind, and its results."""
