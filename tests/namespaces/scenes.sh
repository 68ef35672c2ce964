#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Exporters and importers in namespaces of their own: see scenes.c.
exec bash "${top_srcdir:?}/tests/hostile/play.sh" "${top_builddir:?}/tests/namespaces/scenes" "$@"
