#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154
# (output and status come from bats' run)
# The recipes of doc/deploy.md, as far as they can be tried without Docker and a cluster.
bats_require_minimum_version 1.5.0
load common.bash

# blocks LANGUAGE: the code of that language in the document, one file each: block.1, block.2, ...
blocks() {
	rm -f block.*
	awk -v start="\`\`\`$1" '$0 == start { n++; out = "block." n; next } $0 == "```" { out = "" } out { print > out }' \
		"$top_srcdir/doc/deploy.md"
	[ -e block.1 ]
}

@test "the manifests are YAML of the stated kinds" {
	python3 -c 'import yaml' 2> /dev/null || skip "there is no yaml module for python3"
	blocks yaml
	python3 - <<-'END' > kinds
		import glob, yaml
		for name in sorted(glob.glob("block.*")):
		    print(yaml.safe_load(open(name))["kind"])
	END
	[ "$(tr '\n' ' ' < kinds)" = "Pod DaemonSet " ]
}

@test "the DaemonSet's command writes a file that node_exporter can read" {
	blocks yaml
	mkdir -m 700 shared
	mkdir textfile
	command=$(sed -n 's/^ *command: \[culimbo, \(metrics.*\)\]$/\1/p' block.*)
	command=${command//,/}
	command=${command/ --every=15s/}
	command=${command//=\/run\/culimbo/=$PWD\/shared}
	command=${command//=\/textfile/=$PWD\/textfile}
	# shellcheck disable=SC2086 # words
	run -0 "$C" $command
	grep -q '^# TYPE culimbo_' textfile/culimbo.prom
	# which is of OpenMetrics, and node_exporter does not read that
	[[ $(< textfile/culimbo.prom) != *"# EOF"* ]]
}

@test "the DaemonSet's user may write into folders that kubelet has made for root" {
	[ "$(id -u)" -eq 0 ] || skip "only root can become that user"
	blocks yaml
	user=$(sed -n 's/^ *runAsUser: \([1-9][0-9]*\)$/\1/p' block.* | tail -n 1)
	folders=$(sed -n 's/^ *command: \[\(chown.*\)\]$/\1/p' block.*)
	[ -n "$user" ] && [ -n "$folders" ]
	# (that user may not enter the test's own folder)
	top=$(mktemp -d /tmp/culimbo-deploy.XXXXXX)
	chmod 755 "$top"
	mkdir -m 755 "$top/run" "$top/run/culimbo" "$top/textfile"
	cp "$C" "$top/culimbo"
	folders=${folders//[,\"]/}
	folders=${folders//\/run\/culimbo/$top\/run\/culimbo}
	folders=${folders//\/textfile/$top\/textfile}
	$folders
	status=0
	setpriv --reuid="$user" --clear-groups "$top/culimbo" metrics --format=prometheus --dir="$top/run/culimbo" \
		--output="$top/textfile/culimbo.prom" || status=$?
	grep -q '^# TYPE culimbo_' "$top/textfile/culimbo.prom" || status=1
	rm -rf "$top"
	[ "$status" -eq 0 ]
}

@test "the pod's variables protect a program, in a world-writable sticky folder" {
	mkdir -m 1777 shared
	library=$(cd "$top_builddir/.libs" && pwd)/libculimbo.so
	run -0 env LD_PRELOAD="$library" CULIMBO_DIR="$PWD/shared" CULIMBO_SIM_DIR="$PWD/sim" \
		LD_LIBRARY_PATH="$top_builddir/tools/sim/.libs" "$top_builddir/tests/e2e/demo"
	[ "$output" = "right: the consumer reads 17, its own byte" ]
}

@test "the Python code is valid and calls only functions of the module" {
	blocks python
	python3 - "$top_srcdir/tools/wheel/culimbo/__init__.py" <<-'END'
		import ast, sys
		has = {f.name for f in ast.parse(open(sys.argv[1]).read()).body if isinstance(f, ast.FunctionDef)}
		used = {n.attr for n in ast.walk(ast.parse(open("block.1").read()))
		        if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "culimbo"}
		assert used and used <= has, (used, has)
	END
}

@test "the variables of the systemd drop-in are options of the library" {
	blocks ini
	variables=$(sed -n 's/^Environment=//p' block.1)
	# systemd makes one percent sign of two
	variables=${variables//%%/%}
	# shellcheck disable=SC2086 # words
	run -0 env $variables LD_PRELOAD= "$C" config REPORT_FILE
	has "/var/log/culimbo/%n"
	[[ $output != *warning* ]]
}
