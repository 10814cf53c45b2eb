# SPDX-License-Identifier: Apache-2.0
"""Which work tile a CTA does next, where a work tile lies in A, B and D, and how launches depend on one another."""
