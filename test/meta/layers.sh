#!/bin/sh
# Holds the #include lines of the library, the programs and the public headers against docs/layers.
# usage: layers.sh ROOT
set -eu
cd "$1"

# Every include as "file header", where a header in quotes without a folder is one beside the file and needs no permission.
find lib kernels cli examples bench include -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort |
    xargs grep -HoE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"][^>"]+[>"]' |
    sed -E 's/^([^:]+):[[:space:]]*#[[:space:]]*include[[:space:]]*/\1 /' >"${TMPDIR:-/tmp}/layers.$$"
trap 'rm -f "${TMPDIR:-/tmp}/layers.$$"' EXIT

awk -v includes="${TMPDIR:-/tmp}/layers.$$" '
    function complain(text) { print text; wrong++ }

    # The module that a file belongs to; "program" for what may only see public headers.
    function module_of_file(file,   part) {
        split(file, part, "/")
        if (part[1] == "lib") return part[2]
        if (part[1] == "kernels") return "kernels"
        if (part[1] == "include") return module_of_face(part[3])
        return "program"
    }
    # The module that a public header is the face of.
    function module_of_face(header) {
        sub(/\.h$/, "", header)
        return header == "rankloom" ? "umbrella" : header in face ? face[header] : header
    }
    function allowed_outside(file, header,   i, n, place) {
        n = split(outside[header], place, " ")
        for (i = 1; i <= n; i++)
            if (file == place[i] || index(file, place[i] "/") == 1) return 1
        return 0
    }
    function check(file, from, to) {
        if (!(to in known) && to != "umbrella") complain(file ": " to " is no module of docs/layers")
        else if (to == "umbrella") complain(file ": the umbrella header is for programs")
        else if (from != to && !((from, to) in edge)) complain(file ": " from " may not use " to)
        else edges++
    }

    /^#/ || /^[[:space:]]*$/ { next }
    FILENAME == "docs/layers" {
        split($0, half, ": *")
        n = split(half[2], right, " ")
        if (half[1] ~ /^face /) { sub(/^face /, "", half[1]); for (i = 1; i <= n; i++) face[right[i]] = half[1]; next }
        if (half[1] ~ /^outside /) { sub(/^outside /, "", half[1]); outside[half[1]] = half[2]; next }
        known[half[1]] = 1
        for (i = 1; i <= n; i++) edge[half[1], right[i]] = 1
        next
    }
    END {
        while ((getline line < includes) > 0) {
            split(line, word, " ")
            file = word[1]; header = substr(word[2], 2, length(word[2]) - 2); quoted = word[2] ~ /^"/
            from = module_of_file(file)
            if (from != "program" && from != "umbrella" && !(from in known)) complain(file ": " from " is no module of docs/layers")
            if (!quoted && header in outside && !allowed_outside(file, header)) complain(file ": only " outside[header] " may see " header)
            if (from == "umbrella") continue                       # it includes every public header
            if (header ~ /^rankloom\//) {
                sub(/^rankloom\//, "", header)
                if (from != "program") check(file, from, module_of_face(header))
            } else if (quoted && index(header, "/") && header !~ /^\.\.?\//) {
                split(header, part, "/")
                if (from == "program") complain(file ": a program sees <rankloom/...> and its own headers, not \"" header "\"")
                else check(file, from, part[1])
            } else if (quoted && header ~ /^\.\.\//) complain(file ": \"" header "\" climbs out of its folder")
        }
        if (edges < 100) complain("only " edges " includes were seen: the test looks in the wrong place")
        printf "%d includes inside the layers, %d outside\n", edges, wrong
        exit wrong > 0
    }' docs/layers
