# Writes the version script of libtutti to the file `out`: cmake/libtutti.map.in, which comes last, with
# the classes and functions that the headers before it define and declare. Those begin a line, as
# clang-format lays out what a namespace holds; what is inline has no symbol of the library's.
#   awk -v out=FILE -f cmake/version_script.awk HEADER... cmake/libtutti.map.in
function add(pattern) {
  if (!(pattern in known)) patterns[++count] = pattern
  known[pattern]
}
FILENAME ~ /[.]in$/ {
  if ($1 != "@public@")
    print > out
  else
    for (i = 1; i <= count; ++i) print "      " patterns[i] ";" > out
  next
}
{ sub(/^\[\[[^]]*\]\] /, "") }
/^(class|struct) / {
  name = $0
  sub(/^(class|struct) (\[\[.*\]\] )?/, "", name)
  if (name !~ /^[A-Za-z0-9]+( final)? *(:|[{])/) next
  sub(/[^A-Za-z0-9].*/, "", name)
  add("tutti::" name "::*")
  add("*?for?tutti::" name)
  next
}
/^(inline|constexpr|using|template|namespace|enum|extern|static_assert|concept|requires) / { next }
/^[A-Za-z].* [*&]?[a-z_0-9]+[(]/ {
  match($0, /[a-z_0-9]+[(]/)
  add("tutti::" substr($0, RSTART, RLENGTH - 1) "?*")
}
END { close(out) }
