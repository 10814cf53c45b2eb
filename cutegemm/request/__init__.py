# SPDX-License-Identifier: Apache-2.0
"""A spec and a problem together: what they must agree on, and their swapped and grouped forms.

`requirements`    the rules on which both must agree, and the `Request` that they make with a device
`few_rows`        requests of few rows or columns of D, as rows
`operand_rules`   the axes of operands, their widest accesses, aligned copies, the halves of a gated pair
`promotion`       after how many elements of K partial sums are promoted
`swap`            the request for D's transpose, and its errors in D's coordinates
`group_forms`     how groups lie in A, B and D, which epilogues they allow, and the problem of an average group
"""
