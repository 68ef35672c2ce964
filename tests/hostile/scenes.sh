#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Plays the scenes that damage the exporter files of running processes: see scenes.c.
exec bash "${top_srcdir:?}/tests/hostile/play.sh" "${top_builddir:?}/tests/hostile/scenes" "$@"
