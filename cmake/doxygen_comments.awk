# Doxygen's input filter for the project's headers. Comments after a declaration, and comments
# before one in the C interface, become documentation. Line numbers stay the same.
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
