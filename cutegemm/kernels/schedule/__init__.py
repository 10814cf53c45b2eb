# SPDX-License-Identifier: Apache-2.0
"""Which work a CTA does next, where a work lies in A, B and D, and how launches depend on one another."""
