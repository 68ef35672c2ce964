#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks how ucx_table.py judges times: rounds are made up, with a spread and a slowness that are known.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
number=0 failed=0

# rounds N SPREAD SLOWNESS: N rounds of two operations; the times spread by SPREAD percent, and culimbo's
# are SLOWNESS percent longer
rounds()
{
	awk -v n="$1" -v spread="$2" -v slowness="$3" 'BEGIN {
		srand(7)
		for (i = 1; i <= n; i++)
			for (v = split("bare culimbo again", variant, " "); v > 0; v--)
				for (t = split("put:65536 put:1048576 get:65536", test, " "); t > 0; t--)
					print i, variant[v], test[t], 10 * t * (1 + spread / 100 * (rand() - 0.5)) * \
						(variant[v] == "culimbo" ? 1 + slowness / 100 : 1)
	}' >"$folder/rounds"
}

# judged STATUS TEXT WHAT: the exit status, and a pattern that some line must match
judged()
{
	number=$((number + 1))
	python3 "$here/ucx_table.py" --least "${least:-7}" "$folder/rounds" >"$folder/out" 2>&1
	if [ $? -eq "$1" ] && grep -Eq "$2" "$folder/out"; then
		echo "ok $number - $3"
		return
	fi
	echo "not ok $number - $3"
	sed 's/^/#   /' "$folder/out"
	failed=1
}

echo 1..10
rounds 12 2 0
judged 0 '^put .* within 1\.03$' "as fast as bare: it is within the limit"
judged 0 '^0 of 3 ratios not sure$' "and the last line says that all are sure"
rounds 12 2 6
judged 1 '^get .*<-- over 1\.03$' "6 percent slower, and the rounds agree: it is over the limit"
rounds 4 30 0
least=4 judged 0 '^all .*\(not sure\)$' "four rounds that differ by 30 percent: nobody can be sure"
least=4 judged 0 "^$(grep -c '(not sure)$' "$folder/out") of 3 ratios not sure\$" "and the last line says of how many that is so"
rounds 80 30 6
judged 1 '^put .*<-- over 1\.03$' "many rounds that differ by 30 percent: 6 percent show"
rounds 12 2 0
sed -i '/culimbo get/d' "$folder/rounds"
judged 1 '^get .*no result of 1 of 1 sizes' "an operation that never ended under culimbo is no success"
rounds 6 2 0
judged 1 '^6 complete rounds: 7 are needed' "six rounds are too few, whatever they say"
rounds 7 2 0
printf '8 bare put:65' >>"$folder/rounds"
judged 0 '^all .* 7  within 1\.03$' "where a run was cut off within a line, that line is left out"
: >"$folder/rounds"
judged 1 '^there are no times in ' "a file without a time is no success"
exit $failed
