# SPDX-License-Identifier: Apache-2.0
"""Backends of a call: a GPU, the emulator, the torch reference, an artefact's recipes."""
