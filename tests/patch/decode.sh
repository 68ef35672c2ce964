#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# All functions that a program can get from the library and from the simulated driver can be
# patched.  The decoder, which checks this, also finds functions that can't be.
set -u
build=${1:-${top_builddir:-build}}
decode=${2:-$build/tests/patch/decode}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
number=0 result=0

ok() { # STATUS TEXT
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then echo "ok $number - $2"; else echo "not ok $number - $2"; fi
	[ "$1" -eq 0 ] || result=1
}

echo 1..13
for library in .libs/libculimbo.so tools/sim/.libs/libcuda.so; do
	"$decode" "${library##*/}" "$build/$library" > "$tmp/said"
	status=$?
	grep '^#' "$tmp/said"
	while read -r line; do
		case $line in
		ok*) ok 0 "${library##*/}: ${line#* - }" ;;
		not*) ok 1 "${library##*/}: ${line#* - }" ;;
		esac
	done < "$tmp/said"
	[ "$(grep -c '^\(not \)\?ok' "$tmp/said")" = 4 ] || ok 1 "${library##*/} can be read ($status)"
done

# An instruction that can't be moved, as a byte (octal) at one of its places: endbr64 begins
# with f3 on x86-64; on aarch64 d5 ends one of the family that bti and nop are of.
case $(readelf -h "$build/.libs/libculimbo.so") in
*X86-64*) byte=363 first=0 third=10 jump=15 more=270 by_variable=15 ;;
*) byte=325 first=3 third=11 jump=19 more=122 by_variable=31 ;;
esac

# Returns whether the decoder names the library's function $1 when that byte is at its offset $2; or when its jump,
# at offset $2, is $3, of one more instruction that can be moved, so that the function goes on too late.
spoiled() {
	byte=${3:-$byte}
	cp "$build/.libs/libculimbo.so" "$tmp/spoiled.so"
	address=$(readelf -sW "$tmp/spoiled.so" | awk -v name="$1" '$8 == name { print $2; exit }')
	# where the code is in the file, and in memory
	code=$(readelf -lW "$tmp/spoiled.so" | awk '$1 == "LOAD" && / R E / { print $2, $3 }')
	printf '%b' "\\0$byte" | dd of="$tmp/spoiled.so" bs=1 conv=notrunc status=none \
		seek=$((0x$address - ${code#* } + ${code% *} + $2))
	"$decode" libculimbo.so "$tmp/spoiled.so" > "$tmp/said"
	why='has an instruction'
	[ -z "${3-}" ] || why='does not jump after so few instructions'
	grep -q "^# ${1#cl_door_}: $why" "$tmp/said" && grep -q '^not ok' "$tmp/said"
}
spoiled cl_stub_cuMemFree_v2 "$first"
ok $? "a stub that begins with another instruction is found"
spoiled cl_stub_cuEventCreate "$third"
ok $? "so is one that has it later"
spoiled cl_door_cuMemAlloc_v2 "$first"
ok $? "and an exported call"
spoiled cl_stub_cuMemFree_v2 "$jump" "$more"
ok $? "a stub with one more instruction before its jump is found"
spoiled cl_door_cuMemAlloc_v2 "$by_variable" "$more"
ok $? "and an exported call"
exit "$result"
