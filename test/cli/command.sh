#!/usr/bin/env bash
# The rankloom command as a whole: every command explains itself, wrong ones are named, completion and manual page know them all.
#   command.sh RANKLOOM_PROGRAM
set -uo pipefail
rankloom=$1
failures=0

fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
expect() { # expect STATUS WORDS COMMAND …
    local status=$1 words=$2 said actual; shift 2
    said=$("$@" 2>&1); actual=$?
    [ "$actual" = "$status" ] || fail "$*: exit status $actual, expected $status"
    [[ $said == *"$words"* ]] || fail "$*: \"$words\" is not in: $said"
}

mapfile -t commands < <("$rankloom" help | sed -n 's/^  \([a-z]*\) .*/\1/p')
((${#commands[@]} >= 4)) || fail "help lists ${#commands[@]} commands"
manual=$("$rankloom" manual)
bash_completion=$("$rankloom" completion bash)
zsh_completion=$("$rankloom" completion zsh)

for c in "${commands[@]}"; do
    expect 0 "rankloom $c" "$rankloom" "$c" --help
    expect 0 "rankloom $c" "$rankloom" help "$c"
    expect 2 "--no-such-option is not known" "$rankloom" "$c" --no-such-option
    [[ $manual == *".SS rankloom $c"* ]] || fail "the manual page lacks $c"
    [[ $zsh_completion == *"'$c:"* ]] || fail "the completion of zsh lacks $c"
    for o in $("$rankloom" "$c" --help | grep -oE '^  (-., )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+'); do
        grep -qF -- "${o//-/\\-}" <<<"$manual" || fail "the manual page lacks $c $o"
        grep -E "^    $c\) words=" <<<"$bash_completion" | grep -qF -- "$o" || fail "the completion of bash lacks $c $o"
    done
done

expect 0 "rankloom " "$rankloom" --version
expect 0 "  run " "$rankloom"
expect 0 "  run " "$rankloom" --help
expect 2 "\"rum\" is no command; did you mean run" "$rankloom" rum
expect 2 "\"hlep\" is no command; did you mean help" "$rankloom" hlep
expect 2 "did you mean run" "$rankloom" help rnu
expect 2 "did you mean --max-restarts" "$rankloom" run --max-restart 3 -- true
expect 2 "is no setting of Rankloom" env RANKLOOM_TIMOUT_S=3 "$rankloom" run -- true
expect 2 "no completion for \"fish\"" "$rankloom" completion fish
expect 0 "" "$rankloom" run -n 2 -- true
expect 1 "rank " "$rankloom" run -n 2 -- false
expect 2 "cannot start the program" "$rankloom" run -n 2 -- /no/such/program

# The completion script does what it says.
eval "$bash_completion"
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _rankloom; echo "${COMPREPLY[*]}"; }
[ "$(complete_words rankloom ru)" = run ] || fail "rankloom ru<TAB> gives $(complete_words rankloom ru)"
[ "$(complete_words rankloom run --max)" = --max-restarts ] || fail "rankloom run --max<TAB> gives $(complete_words rankloom run --max)"
[ "$(complete_words rankloom completion z)" = zsh ] || fail "rankloom completion z<TAB> gives $(complete_words rankloom completion z)"
command -v zsh >/dev/null && { zsh -n <(echo "$zsh_completion") || fail "zsh does not take its completion"; }
if command -v groff >/dev/null; then
    warnings=$(groff -ww -man -Tutf8 -K utf8 <<<"$manual" 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "groff about the manual page: $warnings"
fi
exit $((failures > 0))
