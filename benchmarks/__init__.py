# SPDX-License-Identifier: Apache-2.0
"""Speed measurements: what is measured and how is in NOTES.md, the figures are in results/."""
