# SPDX-License-Identifier: Apache-2.0
"""The units beside the ALU: TMA, bulk copies, wgmma, mma, barriers, atomics; CTAs and clusters."""
