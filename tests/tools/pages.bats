#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output and status come from bats; each test is a subshell)
# Man pages, completions and --help are made from one table and agree.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
	pages=$top_builddir/tools/pages
	subs=$("$C" help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v '^help$')
	[ "$(wc -w <<< "$subs")" -ge 10 ]
	export PATH=${C%/*}:$PATH
}
teardown() {
	share_teardown
}

help_options() { # SUB: --long and -s of its help, sorted
	"$C" help "$1" | sed -n '/^Options:/,/^$/p' | grep -oE '^ +(-[a-zA-Z], )?--[a-z-]+' |
		grep -oE -- '--?[a-zA-Z][a-z-]*' | sort
}

@test "each subcommand has a page, and there is no other page" {
	[ "$(ls "$pages" | grep '^culimbo-.*\.1$' | sed 's/culimbo-\(.*\)\.1/\1/' | sort)" = "$(sort <<< "$subs")" ]
	for sub in $subs; do
		grep -qF ".BR culimbo\\-$sub (1)" "$pages/culimbo.1"
	done
}

@test "options are the same in --help, man page, bash, zsh and fish" {
	for sub in $subs; do
		want=$(help_options "$sub")
		page=$(sed -n '/^\.SH OPTIONS/,/^\.SH [^O]/p' "$pages/culimbo-$sub.1" | grep '^\\fB\\-' |
			sed 's/\\-/-/g' | grep -oE '\\fB--?[a-zA-Z][a-z-]*' | sed 's/\\fB//' | sort)
		bash=$(awk "/^\\t$sub\\)/,/kind=.* ;;\$/ { if (/words='/) print }" "$pages/culimbo.bash" |
			grep -oE -- '(^|[ '\''])--?[a-zA-Z][a-z-]*' | tr -d " '" | sort)
		zsh=$(awk "/^\\t$sub\\)/,/^\\t\\t;;/" "$pages/_culimbo" |
			sed -nE "s/^\\t\\t\\t'\\(([^)]*)\\).*/\\1/p; s/^\\t\\t\\t'(--[a-z-]+)=?\\[.*/\\1/p" | tr ' ' '\n' | sort)
		fish=$(grep "__fish_seen_subcommand_from $sub'" "$pages/culimbo.fish" |
			grep -oE "' (-s [a-zA-Z] )?-l [a-z-]+" | sed -E 's/ -s ([a-zA-Z])/ -\1/; s/ -l / --/' |
			grep -oE -- '--?[a-zA-Z][a-z-]*' | sort)
		for other in page bash zsh fish; do
			if [ "$want" != "${!other}" ]; then
				echo "$sub: --help has" $want, "$other has" ${!other}
				false
			fi
		done
	done
}

@test "columns are the same in --help, man page and completions; all of them work" {
	for sub in ps blocks gc doctor config; do
		want=$("$C" help "$sub" | sed -n '/^Columns/,/^$/s/^  [ *] \([A-Z0-9]\{1,\}\) .*/\1/p')
		[ "$(wc -w <<< "$want")" -ge 4 ]
		[ "$want" = "$(sed -n '/^\.SH COLUMNS/,/^\.SH "/s/^\\fB\([A-Z0-9]*\)\\fR.*/\1/p' "$pages/culimbo-$sub.1")" ]
		grep -qF "'columns $(xargs <<< "$want")'" "$pages/culimbo.bash"
		grep -qF "(__culimbo_columns $(xargs <<< "$want"))" "$pages/culimbo.fish"
		grep -qF "_culimbo_columns $(xargs <<< "$want")'" "$pages/_culimbo"
		[ "$sub" = doctor ] && continue
		"$C" "$sub" -o "$(xargs <<< "$want" | tr ' ' ,)" --json | jq -e . > /dev/null
	done
}

@test "help fits into 80 columns, except command lines and one long option" {
	for sub in $subs; do
		"$C" help "$sub" | sed '/^Examples:/,$d' |
			grep -vE '^ +(-[a-z], )?--[a-z]+=[^ ]+$' | awk 'length > 80 || /[^ ]  *$/ && / $/' > long
		if [ -s long ]; then
			echo "$sub:"
			cat long
			false
		fi
	done
	# such an option does not push all others' texts aside
	"$C" help blocks | grep -q '^      --held  *only those that somebody holds$'
}

@test "exit statuses and examples of --help are in the page" {
	for sub in $subs; do
		"$C" help "$sub" | sed -n '/^Exit status:/,/^$/s/^ *\([0-9][0-9]*\)  .*/.B \1/p' > want
		[ "$(wc -l < want)" -ge 1 ]
		diff want <(sed -n '/^\.SH "EXIT/,/^\.SH [^"]*$/p' "$pages/culimbo-$sub.1" | grep '^\.B [0-9]')
		[ "$("$C" help "$sub" | sed -n '/^Examples:/,$p' | grep -c '^  [^ ]')" -eq \
			"$(sed -n '/^\.SH EXAMPLES/,/^\.SH "SEE/p' "$pages/culimbo-$sub.1" | grep -c '^\.TP')" ]
	done
}

@test "every option of the library is in culimbo(7)" {
	for name in $(sed -n 's/^OPTION([a-z_]*, "\([A-Z_]*\)".*/\1/p' "$top_srcdir/shim/base/options.def"); do
		grep -q "^\\\\fB$name\\\\fR=" "$pages/culimbo.7"
	done
	if grep -q '@' "$pages/culimbo.7"; then false; fi
	if grep -F '(0 to )' "$pages/culimbo.7"; then false; fi # what has no limit
	for section in OPTIONS FILES EXAMPLES LIMITATIONS SECURITY MESSAGES 'EXIT STATUS'; do
		grep -qE "^\.SH \"?$section\"?$" "$pages/culimbo.7"
	done
}

@test "the messages and titles that culimbo(7) names are those of the library" {
	sed -n '/^\.SH MESSAGES/,/^\.SH "EXIT/p' "$pages/culimbo.7" > told
	grep -oE '^\.IR "[^"]+"' told | cut -d'"' -f2 > messages
	[ "$(wc -l < messages)" -ge 3 ]
	while read -r message; do
		echo "$message"
		grep -rqF "$message" "$top_srcdir/shim" --include='*.c'
	done < messages
	sed -n '/^The kinds are these:/,/^\.PP/p' told | grep -A1 '^\.TP' | sed 's/^\.[A-Z]*//' | grep -oE '[A-Z]+' > titles
	[ "$(wc -l < titles)" -ge 10 ]
	while read -r title; do
		echo "$title"
		grep -qF "\"$title" "$top_srcdir/shim/report/title.c"
	done < titles
}

@test "groff and mandoc give no warnings" {
	for page in "$pages"/culimbo*.[17]; do
		run groff -ww -man -Tutf8 -z "$page"
		exits 0
		[ -z "$output" ]
		run mandoc -Tlint -W warning "$page"
		[ -z "$output" ]
	done
	run man -l "$pages/culimbo-blocks.1"
	exits 0
	has "limbo-held"
}

@test "bash, zsh and fish load their completions" {
	bash -n "$pages/culimbo.bash"
	zsh -n "$pages/_culimbo"
	fish -n "$pages/culimbo.fish"
}

# complete WORD...: what bash offers for the last one
completes() {
	bash --norc -c 'source "$1"; shift
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		_culimbo 2>&1
		printf "%s\n" "${COMPREPLY[@]}"' bash "$pages/culimbo.bash" "$@" | sort | xargs
}

@test "bash: subcommands, options, values, columns" {
	[ "$(completes culimbo do)" = doctor ]
	[ "$(completes culimbo help bl)" = blocks ]
	[ "$(completes culimbo ps --j)" = --json ]
	[ "$(completes culimbo blocks --st)" = --state= ]
	[ "$(completes culimbo blocks --state = limbo-h)" = limbo-held ]
	[ "$(completes culimbo blocks --state limbo-h)" = limbo-held ]
	[ "$(completes culimbo blocks --state=limbo-h)" = --state=limbo-held ]
	[ "$(completes culimbo trace --format j)" = json ]
	[ "$(completes culimbo ps -o LIMBO)" = "LIMBO LIMBOBYTES" ]
	[ "$(completes culimbo ps -o +heldb)" = +HELDBYTES ]
	[ "$(completes culimbo ps -o PID,COMM)" = PID,COMMAND ]
	[ "$(completes culimbo ps --output = PID,STA)" = PID,STATE ]
	[ -z "$(completes culimbo ps x)" ]
	mkdir some-dir
	[ "$(completes culimbo ps --dir = some)" = some-dir ]
	[[ " $(completes culimbo run ca) " == *" cat "* ]]
}

@test "bash: the processes that share, for collect and show" {
	start P
	tell P "export 1024 1"
	[ "$(completes culimbo collect "")" = "${PID[P]}" ]
	[ "$(completes culimbo blocks --pid = "")" = "${PID[P]}" ]
	[[ " $(completes culimbo show "") " == *" ${PID[P]} "* ]]
	[ "$(completes culimbo show 0x)" = "$(column ADDRESS blocks)" ]
}

@test "fish offers the same as bash" {
	start P
	tell P "export 1024 1"
	offers() { HOME=$PWD fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$pages/culimbo.fish" "$1" | cut -f1 | sort | xargs; }
	[ "$(offers 'culimbo do')" = doctor ]
	[ "$(offers 'culimbo ps --js')" = --json ]
	[ "$(offers 'culimbo blocks --state limbo-h')" = limbo-held ]
	[ "$(offers 'culimbo collect ')" = "${PID[P]}" ]
	[ "$(offers 'culimbo ps -o HELDB')" = HELDBYTES ]
	[ "$(offers 'culimbo ps -o +HELDB')" = +HELDBYTES ]
	[ "$(offers 'culimbo ps -o +PID,HELDB')" = +PID,HELDBYTES ]
}

@test "zsh offers columns, also with a + before them" {
	# types $2 and a tab in a zsh with our completions, and reads until $3 is shown
	cat > driver <<- 'E'
		zmodload zsh/zpty
		zpty shell zsh -f -i
		zpty -w shell "PS1='> '; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; stty cols 200; bindkey '^I' complete-word; print -r r''eady"
		zpty -r -m shell all '*ready*'
		zpty -w -n shell "$2"$'\t'
		zpty -r -m shell all "*$3*" && print -r -- "$all"
	E
	timeout 60 zsh -f driver "$pages" 'culimbo ps -o +HELDB' '-o +HELDBYTES'
	timeout 60 zsh -f driver "$pages" 'culimbo ps -o PID,HELDB' '-o PID,HELDBYTES'
	timeout 60 zsh -f driver "$pages" $'culimbo ps -o +\t' EXPORTEDBYTES > list
	if grep -q -e '-default-' list; then false; fi # (compadd's, where an action is not called as it stands)
}

@test "make install puts them where man and the shells look, uninstall removes them" {
	make -s -C "$top_builddir" DESTDIR="$PWD/to" install-data-local > log 2>&1 || { cat log; false; }
	prefix=$(sed -n 's/^prefix = //p' "$top_builddir/Makefile")
	for file in man/man1/culimbo.1 man/man1/culimbo-ps.1 man/man7/culimbo.7 \
		bash-completion/completions/culimbo zsh/site-functions/_culimbo \
		fish/vendor_completions.d/culimbo.fish; do
		[ -s "to$prefix/share/$file" ]
	done
	[ -z "$(find to -type f -not -path "to$prefix/share/*")" ]
	make -s -C "$top_builddir" DESTDIR="$PWD/to" uninstall-local
	[ -z "$(find to -type f)" ]
}
