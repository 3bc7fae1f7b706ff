# From a list of sources, the output of sha1sum and that of `ninja -t deps`: for each of the sources
# a file in the folder `made_of` that has the checksum and name of each file of which it was compiled,
# and of clang-tidy's settings. `here` is the root of the tree, with a slash.

FNR == 1 { ++part }
part == 1 { wanted[$0] = 1; next }
part == 2 { sum[substr($0, 43)] = $1; next }
/^[^ ]/ {  # a target
  if (mark != "") close(mark)
  source = mark = ""
  next
}
/^    / {
  name = substr($0, 5)
  if (source == "") {  # the first is the source itself
    source = name
    if (index(source, here) == 1) source = substr(source, length(here) + 1)
    sub(/^(\.\.\/)+/, "", source)
    if (!(source in wanted)) { source = "-"; next }
    mark = source
    gsub(/\//, "_", mark)
    mark = made_of "/" mark
    print sum["../../.clang-tidy"], "its settings" > mark
  }
  if (source != "-") print sum[name], name > mark
}
