# SPDX-License-Identifier: Apache-2.0
"""The fp64 reference, bounds of a kernel's error, and calls that are checked against both."""
