#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What is done to exporter files beneath real processes: see scenes.c.
exec bash "${top_srcdir:?}/tests/hostile/play.sh" "${top_builddir:?}/tests/hostile/scenes" "$@"
