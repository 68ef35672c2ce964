#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output and status come from bats' run; job scripts expand their own variables; a test is a subshell)
# The recipes of doc/deploy.md, as far as they can be tried without Docker and a cluster.
bats_require_minimum_version 1.5.0
load common.bash

# It ends the daemons of Slurm, if a test has started them.
teardown() {
	# shellcheck disable=SC2086 # words
	[ -z "${daemons-}" ] || { kill -KILL $daemons; wait $daemons || :; } 2> /dev/null
}

# blocks LANGUAGE: the code of that language in the document, one file each: block.1, block.2, ...
blocks() {
	rm -f block.*
	awk -v start="\`\`\`$1" '$0 == start { n++; out = "block." n; next } $0 == "```" { out = "" } out { print > out }' \
		"$top_srcdir/doc/deploy.md"
	[ -e block.1 ]
}

# row NAME: the commands in that row of the document's table, one a line, with this build instead of an
# installed culimbo, two processes instead of eight, and the job in this folder
row() {
	local library
	library=$(cd "$top_builddir/.libs" && pwd)/libculimbo.so
	sed -n "s/^| $1 | \(.*\) |\$/\1/p" "$top_srcdir/doc/deploy.md" | grep -o '`[^`]*`' | tr -d '`' |
		sed "s|culimbo run --|$C run --simulate --|; s|/opt/culimbo/lib/libculimbo.so|$library|; s|-n 8|-n 2|"
}

# job: makes ./job, for two processes that a launcher starts: one shares with the other
job() {
	mkdir fifos
	mkfifo fifos/down fifos/up
	cat > job <<-END
		#!/bin/sh
		export LD_LIBRARY_PATH='$top_builddir/tools/sim/.libs'
		exec '$top_builddir/tests/e2e/demo' "\${OMPI_COMM_WORLD_RANK-\$SLURM_PROCID}" '$PWD/fifos'
	END
	chmod +x job
	export CULIMBO_DIR=$PWD/limbo CULIMBO_SIM_DIR=$PWD/sim
}
right="right: the consumer reads 17, its own byte"

# until_true COMMAND...: waits until it succeeds; fails after 60 s
until_true() {
	local end=$((SECONDS + 60))
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || return 1
		sleep 0.05
	done
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

@test "the Dockerfile's stages, copies and variables name files that the wheel has" {
	blocks dockerfile
	python3 - "$top_srcdir/tools/wheel/build.py" <<-'END'
		import os, re, sys
		wheel = re.findall(r'add\("(culimbo/native/[^"]+)"', open(sys.argv[1]).read())
		assert len(wheel) >= 4, wheel
		lines = open("block.1").read().replace("\\\n", " ").splitlines()
		stages, files, variables = {}, set(), {}
		for line in filter(None, lines):
		    word, rest = line.split(None, 1)
		    if word == "FROM":
		        files, variables = set(), {"PATH": "/usr/bin"}
		        image, *name = re.fullmatch(r"(\S+:\S+)(?: AS (\w+))?", rest).groups()
		        stages[name[0]] = files
		    elif word == "COPY" and rest.startswith("--from="):
		        stage, source, to = re.fullmatch(r"--from=(\w+) (\S+) (\S+)", rest).groups()
		        copied = {to + f[len(source):] for f in stages[stage] if f.startswith(source + "/")}
		        assert copied, line
		        files |= copied
		    elif word == "COPY":
		        folder = re.fullmatch(r"culimbo-\*\.whl (\S+/)", rest).group(1)
		    elif word == "RUN":
		        options = rest.split()
		        assert options[:2] == ["pip", "install"] and options[-1] == "culimbo", line
		        assert "--find-links=" + folder.rstrip("/") in options, line
		        target, = [o[len("--target="):] for o in options if o.startswith("--target=")]
		        files |= {target + "/" + name for name in wheel}
		    elif word == "ENV":
		        for setting in rest.split():
		            name, value = setting.split("=", 1)
		            variables[name] = value.replace("$PATH", variables["PATH"])
		    else:
		        raise SystemExit("what is " + line)
		assert variables["LD_PRELOAD"] in files, (variables, files)
		assert any(folder + "/culimbo" in files for folder in variables["PATH"].split(":")), (variables, files)
	END
	# the containers' folder is where the library looks for it
	[[ $(grep '^docker run' "$top_srcdir/doc/deploy.md") =~ -v\ ([^ :]*):([^ :]*)\ -e\ CULIMBO_DIR=([^ ]*)\  ]]
	[ "${BASH_REMATCH[2]}" = "${BASH_REMATCH[3]}" ]
}

@test "the init container's command makes a folder from which a program runs" {
	blocks yaml
	command=$(sed -n 's/^ *command: \[sh, -c, "\(.*\)"\]$/\1/p' block.1)
	[ -n "$command" ]
	mkdir -p image/bin image/lib/culimbo/sim emptydir run
	cp "$C" image/bin/
	cp "$top_builddir/.libs/libculimbo.so" image/lib/
	cp "$top_builddir/tools/sim/.libs/libcuda.so.1" image/lib/culimbo/sim/
	command=${command//\/opt\/culimbo/$PWD\/image}
	command=${command//\/run\/culimbo/$PWD\/run}
	command=${command// \/culimbo\// $PWD\/emptydir\/}
	sh -c "$command"
	[ "$(stat -c %a run)" = 1777 ]
	rm -r image
	library=$(sed -n 's/.*name: LD_PRELOAD, value: \(\/culimbo\/.*\)}$/\1/p' block.1)
	run -0 env LD_PRELOAD="$PWD/emptydir${library#/culimbo}" CULIMBO_DIR="$PWD/run" CULIMBO_SIM_DIR="$PWD/sim" \
		LD_LIBRARY_PATH="$PWD/emptydir/lib/culimbo/sim" "$top_builddir/tests/e2e/demo"
	[ "$output" = "$right" ]
	CULIMBO_DIR=$PWD/run CULIMBO_SIM_DIR=$PWD/sim run -0 emptydir/bin/culimbo run --simulate -- "$top_builddir/tests/e2e/demo"
	[ "$output" = "$right" ]
}

@test "Open MPI: two ranks, by culimbo run and by mpirun -x" {
	command -v mpirun > /dev/null || skip "there is no mpirun (Debian: openmpi-bin)"
	job
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
	row "Open MPI" > commands
	[ "$(wc -l < commands)" -eq 2 ]
	while read -r command; do
		# shellcheck disable=SC2086 # words
		run -0 timeout -s KILL 60 $command < /dev/null
		[ "$output" = "$right" ]
	done < commands
	# without culimbo the same ranks read another block's bytes
	run timeout -s KILL 60 mpirun -n 2 ./job < /dev/null
	has "CORRUPTED: the consumer reads 99"
}

@test "Slurm: two tasks, by srun culimbo run and by sbatch --export" {
	slurm=$top_builddir/tests/tools/slurm
	[ -x "$slurm/bin/slurmctld" ] || skip "no Slurm (fetch-slurm.sh has said why)"
	job
	host=$(uname -n)
	host=${host%%.*}
	python3 - <<-'END' > ports
		import socket
		free = [socket.socket() for _ in range(2)]
		for one in free:
		    one.bind(("127.0.0.1", 0))
		    print(one.getsockname()[1])
	END
	cat > slurm.conf <<-END
		ClusterName=one
		SlurmctldHost=$host(127.0.0.1)
		SlurmctldPort=$(sed -n 1p ports)
		SlurmdPort=$(sed -n 2p ports)
		SlurmUser=$(id -un)
		SlurmdUser=$(id -un)
		PluginDir=$slurm/lib
		AuthType=auth/none
		CredType=cred/none
		ProctrackType=proctrack/pgid
		TaskPlugin=task/none
		SelectType=select/linear
		SchedulerType=sched/builtin
		SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000
		StateSaveLocation=$PWD/state
		SlurmdSpoolDir=$PWD/spool
		SlurmctldPidFile=$PWD/slurmctld.pid
		SlurmdPidFile=$PWD/slurmd.pid
		NodeName=$host NodeAddr=127.0.0.1 CPUs=2
		PartitionName=all Nodes=$host Default=YES
	END
	mkdir state spool
	export SLURM_CONF=$PWD/slurm.conf LD_LIBRARY_PATH=$slurm/lib PATH=$slurm/bin:$PATH
	slurmctld -D -c < /dev/null > slurmctld.log 2>&1 3>&- &
	daemons=$!
	slurmd -D -c -d "$slurm/bin/slurmstepd" < /dev/null > slurmd.log 2>&1 3>&- &
	daemons="$daemons $!"
	is_idle() { [ "$(sinfo -h -o %t 2> sinfo.log)" = idle ]; }
	until_true is_idle || { tail -n 20 slurmctld.log slurmd.log; false; }

	row Slurm > commands
	[ "$(wc -l < commands)" -eq 2 ]
	# shellcheck disable=SC2046 # words
	SLURM_NTASKS=2 run -0 timeout -s KILL 60 $(sed -n 1p commands) < /dev/null
	[ "$output" = "$right" ]
	printf '%s\n' '#!/bin/sh' '#SBATCH --ntasks=2 --output=job.out' 'echo $PPID > step' 'srun ./job' 'echo "status $?"' > job.sh
	# shellcheck disable=SC2046 # words
	run -0 timeout -s KILL 60 $(sed -n 2p commands) < /dev/null
	until_true test -s step
	daemons="$daemons $(< step)"
	until_true grep -qs '^status' job.out || { cat job.out; tail -n 20 slurmctld.log slurmd.log; false; }
	[ "$(cat job.out)" = "$right"$'\n'"status 0" ]
}

@test "Ray: the runtime_env puts a worker under the library" {
	mkdir -p culimbo/native/lib
	cp "$top_srcdir"/tools/wheel/culimbo/*.py culimbo/
	ln -s "$(cd "$top_builddir/.libs" && pwd)/libculimbo.so" culimbo/native/lib/
	row Ray > line
	# instead of Ray: its worker is a process with these variables added
	cat > ray.py <<-'END'
		import os, subprocess, sys
		def init(runtime_env):
		    assert set(runtime_env) == {"env_vars"}
		    sys.exit(subprocess.run(os.environ["DEMO"], env={**os.environ, **runtime_env["env_vars"]}).returncode)
	END
	{ echo "import culimbo, ray"; cat line; } > driver.py
	export DEMO=$top_builddir/tests/e2e/demo CULIMBO_DIR=$PWD/limbo CULIMBO_SIM_DIR=$PWD/sim
	LD_LIBRARY_PATH=$top_builddir/tools/sim/.libs run -0 python3 driver.py
	[ "$output" = "$right" ]
}

@test "vLLM, DataLoader: workers inherit the library, by fork, forkserver and spawn, and env -i loses it" {
	cat > workers.py <<-'END'
		import multiprocessing
		def check(queue):
		    queue.put("libculimbo.so" in open("/proc/self/maps").read())
		if __name__ == "__main__":
		    for method in "fork", "forkserver", "spawn":
		        context = multiprocessing.get_context(method)
		        queue = context.SimpleQueue()
		        worker = context.Process(target=check, args=(queue,))
		        worker.start()
		        print(method, queue.get())
		        worker.join()
	END
	# without a driver, run says on stderr what --simulate is
	run -0 sh -c '"$1" run -- python3 workers.py 2> messages' sh "$C"
	[ "$output" = $'fork True\nforkserver True\nspawn True' ]
	# a launcher that clears the environment: culimbo run stands behind it
	run "$C" run --simulate -- env -i "LD_LIBRARY_PATH=$top_builddir/tools/sim/.libs" "$top_builddir/tests/e2e/demo"
	has "CORRUPTED"
	run -0 env -i "$C" run --simulate -- "$top_builddir/tests/e2e/demo"
	has "$right"
}

@test "/etc/ld.so.preload: it protects; a missing library is a complaint, one for a newer library the end of each program" {
	unshare -m true 2> /dev/null || skip "only root can have another /etc"
	mkdir etc
	cp /etc/ld.so.cache etc/
	# two versions of a library: the second lacks what ours was linked with
	echo 'int added(void) { return 1; }' > new.c
	echo 'int added(void); int use(void) { return added(); }' > ours.c
	for version in 2 1; do
		echo "V_$version { global: added; };" > map
		$CC -shared -fPIC -o libnew.so -Wl,--version-script=map new.c
		[ -e ours.so ] || $CC -shared -fPIC -o ours.so ours.c -L. -lnew -Wl,-rpath,"$PWD"
	done
	export CULIMBO_DIR=$PWD/limbo CULIMBO_SIM_DIR=$PWD/sim LD_LIBRARY_PATH=$top_builddir/tools/sim/.libs
	in_preload() { # LIBRARY COMMAND...
		echo "$1" > etc/ld.so.preload.to_be
		shift
		# the file gets its name when no program starts before the command
		unshare -m sh -c 'mount --bind etc /etc && mv /etc/ld.so.preload.to_be /etc/ld.so.preload; exec "$@"' - "$@"
	}
	run -0 in_preload "$(cd "$top_builddir/.libs" && pwd)/libculimbo.so" "$top_builddir/tests/e2e/demo"
	[ "$output" = "$right" ]
	run -0 in_preload /nowhere/libculimbo.so /bin/echo on
	has "cannot be preloaded"
	[ "${lines[-1]}" = on ]
	run in_preload "$PWD/ours.so" /bin/echo on
	[ "$status" -ne 0 ]
	has "version \`V_2' not found"
}

@test "systemd reads the drop-in without a complaint" {
	command -v systemd-analyze > /dev/null || skip "there is no systemd-analyze"
	blocks ini
	mkdir NAME.service.d
	printf '%s\n' '[Service]' 'ExecStart=/bin/true' > NAME.service
	mv block.1 NAME.service.d/override.conf
	SYSTEMD_UNIT_PATH=$PWD: run -0 systemd-analyze verify --man=no ./NAME.service
	[ -z "$output" ]
}
