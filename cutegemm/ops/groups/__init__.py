# SPDX-License-Identifier: Apache-2.0
"""`grouped_mm`: its arguments, its op and gradients, and rows on their way to groups and back."""
