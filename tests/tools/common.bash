# SPDX-License-Identifier: Apache-2.0
# Shared by the tests of the command.
# shellcheck shell=bash disable=SC2034,SC2154
# (C is for the tests; output and status come from bats' run)

setup() {
	C=${CULIMBO:?run me by make check, or set CULIMBO to the command}
	# remove the caller's settings
	unset LD_PRELOAD LD_LIBRARY_PATH COLUMNS
	cd "$BATS_TEST_TMPDIR" || return 1
}

# has TEXT: the output of `run` contains it, a report's also across the fold of a line
has() {
	if [[ $output != *"$1"* && ${output//$'\n        '/ } != *"$1"* ]]; then
		printf 'not there: %s\nin: %s\n' "$1" "$output"
		return 1
	fi
}

# exits STATUS: `run` got this exit status
exits() {
	if [ "$status" -ne "$1" ]; then
		printf 'status %s, not %s; output: %s\n' "$status" "$1" "$output"
		return 1
	fi
}
