# SPDX-License-Identifier: Apache-2.0
"""The page of `explain --html`: one file without links, with a light and a dark theme.

page            the document, from figures and tables
figures         owners of D's elements, shared memory, TMA boxes
charts          raster, timeline, roofline
marks           SVG elements as text, colored by classes of `style.css`
layout_picture  the SVG of `cutegemm layout`

`script.js` shows details under the pointer and computes the owner of an element.
"""
