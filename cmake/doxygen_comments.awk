# Doxygen's input filter for our headers: comments that stand behind a declaration, or before one in
# the C interface, are documentation as much as those marked so. Lines stay where they are.
FILENAME ~ /adapters\/c\// {
  if (FNR == 1) {
    sub(/\/\* /, "/** @file\n * ")
    print
    next
  }
  if (/;.*\/\*[^*]/ || /,.*\/\*[^*]/ || /[0-9] \/\*[^*]/) sub(/\/\*/, "/**<")
  else if (/^ *\/\* --- /) sub(/\/\*/, "/*")
  else sub(/^\/\* /, "/** ")
  sub(/^  *\/\* /, "  /** ")
  print
  next
}
{
  behind = $0 ~ /[;,{)}] +\/\/ / || $0 ~ /^ +[a-z_0-9]+ +\/\/ / || $0 ~ /= [^ ]+ +\/\/ /
  if (behind) {
    sub(/ \/\/ /, " ///< ")
    column = index($0, "///<")
  } else if (column && index($0, "//") == column && /^ +\/\/ /) {
    sub(/\/\/ /, "///< ")
  } else {
    column = 0
    if (/^ *\/\/ /) sub(/\/\/ /, "/// ")
  }
  print
}
