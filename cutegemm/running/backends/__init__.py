# SPDX-License-Identifier: Apache-2.0
"""Backends of a call: a GPU, the emulator, torch's reference, an artefact's recipes."""
