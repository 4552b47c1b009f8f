# What the tests of the command share: $rankloom, $data, a folder of their own, and two ways to say what must hold.
set -eu
rankloom=$1 data=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# has FILE TEXT…: every text is in the file.
has() {
    file=$1
    shift
    for text; do
        grep -qF -- "$text" "$file" || { echo "no \"$text\" in:"; cat "$file"; exit 1; }
    done
}

# ends STATUS COMMAND…: the command ends with that status; what it prints is in $folder/out and $folder/err.
ends() {
    wanted=$1 status=0
    shift
    "$@" >"$folder/out" 2>"$folder/err" || status=$?
    [ "$status" = "$wanted" ] || { echo "status $status, not $wanted: $*"; cat "$folder/out" "$folder/err"; exit 1; }
}
