# Reads a list of sources, the output of sha1sum and the output of `ninja -t deps`. For each of the
# sources it writes a file into the folder `made_of`. The file holds the checksum and name of
# .clang-tidy and of each file that the source was compiled from. `here` is the root of the tree,
# with a slash at its end.

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
