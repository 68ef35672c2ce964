#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes the seeds of the fuzz targets: seeds.sh FOLDER.  corpus/ holds exactly this
# output: tests/fuzz/run.sh compares the two.
#
# A seed is a list of steps for the target of its folder's name; the target explains them.
set -eu
to=${1:?usage: seeds.sh FOLDER}

put() { # TARGET NAME FORMAT...: the bytes, as printf has them
	mkdir -p "$to/$1"
	file=$to/$1/$2
	shift 2
	# shellcheck disable=SC2059 # it is the format that says the bytes
	printf "$@" > "$file"
}

# ------------------------------------------------------------------- region.c
# 4 hold, 6 unhold, 7 look, 8 release, 9 ready, 10 reap, 11 claim, 12 grow, 13 files,
# 14 pin, 15 publish, 16 view, 3 open; 0 and 2: part, offset (3), length - 1, bytes
put region life '\004\001\000\000\007\001\001\010\001\001\001\006\001\010\001\001\001\011\100'
put region several '\004\000\000\000\004\001\000\000\004\002\000\000\004\003\000\000\010\001\001\001\006\001\011\377\007\002\000'
put region publish '\017\017\017\004\014\000\000\010\014\001\001\006\014\011\000'
put region stranger '\013\001\003\012\001\012\000\010\003\001\001\011\010'
put region stays '\004\001\000\000\013\000\012\000\012\001\015\010\001\001\001'
put region pinned '\016\001\010\001\001\001\010\001\000\000'
put region gone '\004\001\000\000\010\001\001\000\006\001\011\000\010\001\000\001'
put region grows '\014\001\014\001\014\000\005\014\000\017\004\001\000\000'
put region no-record '\004\000\000\200\000\000\000\004\377\377\377\000\000\000'
# every field of the header, inverted, then opened again
for at in 0 8 12 16 20 24 28 32 36 40 48 64 88 96 104; do
	put region "header-$at" "$(printf '\\002\\000\\%03o\\000\\000\\003\\003\\004\\001\\000\\000' "$at")"
done
put region chunks-many '\000\001\000\000\000\003\377\377\377\377\004\001\000\000\011\377\012\000\010\001\001\001'
put region chunks-none '\000\001\000\000\000\003\000\000\000\000\004\001\000\000\012\001\014\001'
put region slots-none '\004\001\000\000\000\001\004\000\000\003\000\000\000\000\010\001\001\001\012\000'
put region slots-many '\000\001\004\000\000\003\377\377\377\377\012\001\013\000'
put region words '\000\002\000\000\000\017\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\012\000\007\001\000'
put region ready '\000\003\000\000\000\007\377\377\377\377\377\377\377\377\000\003\040\000\000\007\377\377\377\377\377\377\377\377\011\377'
put region slots '\002\005\000\000\000\017\002\005\020\000\000\017\002\005\100\000\000\017\012\000\013\001\002'
put region slot-state '\000\005\000\000\000\001\127\001\012\000\013\000\010\001\001\001'
put region closing '\000\005\054\000\000\003\377\377\377\377\013\001\002\012\000'
put region life-dying '\000\007\200\000\000\000\003\004\001\000\000\010\001\001\001'
put region life-future '\000\007\200\000\000\007\377\377\377\377\377\377\377\377\010\001\001\001\017\004\001\000\000'
put region handle '\002\007\230\000\000\017\004\001\000\000'
put region holders '\000\011\000\000\000\017\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\012\000\007\000\000\010\000\001\001'
put region view '\020\000\000\004\000\000\000\020\001\000\010\001\001\001\020\377\377'
# all counts of the report data, then a stack of two frames in one module, an import and a finding
put region view-counts '\000\012\000\000\000\017\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\020\001\000\020\377\377'
put region view-stack '\000\012\000\000\000\017\001\000\000\000\010\000\000\000\001\000\000\000\001\000\000\000\000\013\000\000\000\017\000\020\000\000\000\000\000\000\000\040\000\000\000\000\000\000\000\014\010\000\000\000\002\000\014\020\000\000\001\001\020\020\001\000'
put region view-import '\000\012\010\000\000\003\001\000\000\000\000\015\000\000\000\000\001\000\015\060\000\000\003\001\000\000\000\000\015\064\000\000\000\001\020\000\000'
put region view-finding '\000\012\014\000\000\003\002\000\000\000\000\016\000\000\000\003\001\000\000\000\000\016\110\000\000\003\033\133\012\177\020\000\000'

# ------------------------------------------------------------------ request.c
# record, first piece, number of changes, each: where, to what; 3: another size, which
put request right '\000\000\000\000'
put request both-batches '\002\000\000\000\002\100\000\000\002\106\000\000'
put request beyond '\002\377\000\000'
put request free '\001\000\000\000'
put request no-record '\377\000\000\000'
put request generation '\000\000\001\030\001\000'
put request other-file '\000\000\001\020\377\000'
put request magic '\000\000\001\000\130\000'
put request version '\000\000\001\010\002\000'
put request size '\000\000\001\014\051\000'
put request short '\000\000\000\003\047'
put request long '\000\000\000\003\051'
put request empty '\000\000\000\003\000\000\000\000\000'
put request first-many '\000\377\003\035\377\036\377\037\377\000'

# ------------------------------------------------------------------- answer.c
# 2 open: record, number of answers (0: right ones), each: number of changes, each of them: where (2), to what;
# descriptors, size (0: as they should be); 0 close; 1 refuse: which call of the driver
put answer right '\002\000\000'
put answer right-twice '\002\001\000\002\001\000\000'
put answer both-reservations '\002\000\000\002\004\000\002\007\000\000\000'
put answer inside-first '\002\003\000\002\000\000\000\002\001\000'
put answer other-mark '\002\100\001\050\000\000'
put answer other-size '\002\100\001\060\001\000'
put answer other-offset '\002\300\000\000\040\000\000\000\000\000\000'
put answer odd-offset '\002\301\001\000\040\000\000\000\000\000\000'
put answer next-generation '\002\200\000\000\000\001\000\000\000'
put answer no-record '\002\200\377\377\017\000\000\000\000'
put answer hangs-up '\002\000\001\000\000\200'
put answer hangs-up-after-descriptors '\002\000\001\000\000\304'
put answer error '\002\000\001\004\020\000\214\021\000\377\022\000\377\023\000\377\000\000'
put answer error-positive '\002\000\001\001\020\000\003\000\000'
put answer version '\002\000\001\001\010\000\002\000\000'
put answer no-descriptor '\002\000\001\000\105\000'
put answer fewer '\002\000\001\000\002\000'
put answer more '\002\000\001\000\101\000'
put answer short '\002\000\001\000\000\004'
put answer none '\002\003\001\002\024\000\000\034\000\000\105\000'
put answer total-many '\002\003\001\003\025\000\377\026\000\377\027\000\377\000\000'
put answer in-two '\002\003\002\001\024\000\002\000\000\001\030\000\001\000\000'
put answer overlap '\002\000\001\002\075\000\000\076\000\020\000\000'
put answer no-size '\002\003\001\001\052\000\000\000\000'
put answer size-odd '\002\003\001\001\050\000\001\000\000'
put answer size-huge '\002\003\001\001\057\000\177\000\000'
put answer beyond '\002\003\001\001\043\000\040\000\000'
put answer record-other '\002\003\001\001\060\000\001\000\000\000'
put answer record-many '\002\003\001\002\061\000\377\062\000\377\000\000'
put answer generation-other '\002\003\001\001\064\000\001\000\000'
put answer refused-reserve '\001\005\002\000\000\002\000\000'
put answer refused-import '\001\002\002\000\000\002\000\000'
put answer refused-map '\001\007\002\000\000\002\000\000'
put answer refused-access '\001\010\002\003\000\001\003\002\003\000'

# -------------------------------------------------------------- pool_answer.c
# as answer.c, and 3 damage: record, where (below 64 export data, below 128 kind, else size), to what
put pool_answer right '\002\000\000'
put pool_answer right-twice '\002\001\000\002\001\000\000\000'
put pool_answer both-pools '\002\000\000\002\004\000\002\007\000\000\000'
put pool_answer bytes-differ '\002\101\001\040\002\000'
put pool_answer next-generation '\002\200\000\000\000\001\000\000\000'
put pool_answer no-record '\002\200\377\377\017\000\000\000\000'
put pool_answer other-pool '\002\300\011\000\002\000\000'
put pool_answer hangs-up '\002\000\001\000\000\200'
put pool_answer error '\002\000\001\004\020\000\214\021\000\377\022\000\377\023\000\377\000\000'
put pool_answer no-descriptor '\002\000\001\000\106\000'
put pool_answer two-descriptors '\002\000\001\002\024\000\002\034\000\002\002\000'
put pool_answer two-pieces '\002\000\001\004\024\000\002\034\000\002\071\000\010\101\000\004\002\000'
put pool_answer no-size '\002\003\001\001\051\000\000\000\000'
put pool_answer record-other '\002\003\001\001\060\000\001\000\000\000'
put pool_answer short '\002\000\001\000\000\004'
put pool_answer data-damaged '\003\001\010\125\002\001\000'
put pool_answer data-damaged-while-open '\002\001\000\003\001\010\125\002\001\000\000\000'
put pool_answer kind-damaged '\003\001\100\001\002\001\000'
put pool_answer size-huge '\003\001\200\377\377\377\377\377\377\377\177\002\001\000'
put pool_answer refused-import '\001\001\002\000\000\002\000\000'
put pool_answer refused-access '\001\002\002\000\000\002\000\000'
put pool_answer refused-pointer '\001\003\002\000\000\002\000\000'

# --------------------------------------------------------------------- pool.c
put pool right '\002\000\000'
put pool right-twice '\002\000\002\000\001\000'
put pool others-bytes '\002\040\003\000\377\010\001\067\002'
put pool others-stamped '\002\100\030\377\001\002\003'
put pool no-record '\002\140\377\377\017\000\000\000'
put pool next-generation '\002\140\001\000\000\001\000\000\001\000\000'
put pool all-zero '\002\200%064d' 0

# ------------------------------------------------------------------- handle.c
put handle right '\002\000\000'
put handle right-twice '\002\000\002\000\000\000'
put handle own '\002\001\002\003\000\000'
put handle event '\001\000\001\002'
put handle others-bytes '\002\100\003\000\377\010\001\067\002'
put handle no-record '\002\200\377\377\017\000\000\000'
put handle next-generation '\002\200\001\000\000\001\000\000\002\200\001\000\000\000\000\000'
put handle own-generation '\002\201\001\000\000\001\000\000'
put handle all-zero '\002\300%064d' 0
put handle all-ones '\002\300\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377'

# ------------------------------------------------------------------ options.c
put options none '\000'
put options grace '\001CULIMBO_GRACE=500ms\000CULIMBO_SETTLE=1.5s'
put options numbers '\000CULIMBO_GRACE=99999999999999999999h\000CULIMBO_MAX_EVENTS=-1\000CULIMBO_WARN_BLOCKS=1e9'
put options fractions '\000CULIMBO_GRACE=.5s\000CULIMBO_SETTLE=0.0000001ns\000CULIMBO_PRESSURE_WAIT=+3m'
put options choices '\001CULIMBO_LOG=wran\000CULIMBO_REPORT=ALWAYS\000CULIMBO_COLLECTOR=inlin\000CULIMBO_DISABLE=maybe'
put options paths '\001CULIMBO_DIR=relative/dir\000CULIMBO_LOG_FILE=x.%%p\000CULIMBO_REPORT_FILE=%%%%%%p%%'
put options names '\000CULIMBO_\000CULIMBO_=\000CULIMBO_GARCE=1\000CULIMBO=1\000CULIMBO_GRACE\000=\000'
put options control '\001CULIMBO_GRACE=\033[31m\n\r\377\000CULIMBO_\033X=1'
put options twice '\001CULIMBO_LOG=debug\000CULIMBO_LOG=off\000CULIMBO_LOG=\000CULIMBO_GRACE= \t 1 ms \t'
put options long '\001CULIMBO_DIR=/%02000d\000CULIMBO_LOG_FILE=%01500d' 0 0
