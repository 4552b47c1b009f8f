#!/bin/sh
# Every public header compiles alone, as C17 and as C++, without a warning.
# usage: headers.sh ROOT CC [CXX]
set -eu
root=$1 cc=$2 cxx=${3:-}
failed=0 count=0
for header in "$root"/include/rankloom/*.h; do
    name=rankloom/$(basename "$header")
    printf '#include <%s>\n' "$name" |
        $cc -std=c17 -pedantic -Wall -Wextra -Werror -I"$root/include" -fsyntax-only -x c - || { echo "$name does not compile alone as C17"; failed=1; }
    if [ -n "$cxx" ]; then
        printf '#include <%s>\n' "$name" |
            $cxx -std=c++17 -Wall -Wextra -Werror -I"$root/include" -fsyntax-only -x c++ - || { echo "$name does not compile alone as C++"; failed=1; }
    fi
    count=$((count + 1))
done
echo "$count headers"
[ "$count" -gt 5 ] && [ "$failed" = 0 ]
