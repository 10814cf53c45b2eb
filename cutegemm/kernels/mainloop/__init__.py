# SPDX-License-Identifier: Apache-2.0
"""The pipeline of stages, the producer and consumers around it, and a CTA's shared memory and cluster."""
