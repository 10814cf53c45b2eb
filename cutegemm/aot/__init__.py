# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time artefacts: the launches of chosen problems in one file that needs neither the DSL nor its runtime.

`recipe`    a plan's launches as bytes, with the places of a call's addresses and numbers
`artefact`  the file: manifest, cubins, PTX, checksum
`driver`    launches a recipe through the CUDA driver API
`header`    the same recipes as one C header
"""
