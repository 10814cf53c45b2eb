# SPDX-License-Identifier: Apache-2.0
"""The reference in fp64, bounds of a kernel's error, and calls compared with both."""
