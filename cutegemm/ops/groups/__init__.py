# SPDX-License-Identifier: Apache-2.0
"""`grouped_mm`: its arguments, op and gradients; gathering of rows, and weighting and scattering of results."""
