# Writes a C source with <tutti.h> and a body for each function that it declares. abidw describes
# what a library defines. Given the real library, it would describe all the C++ in it too.
/^(static|typedef|struct|enum|extern|#|})/ { in_function = 0 }
/^(int|int64_t|size_t|void\*?|const [a-z]+\*?) ?\*?tutti_[a-z_]+\(/ { in_function = 1 }
in_function && /\);/ {
  sub(/\);.*/, ") { __builtin_trap(); }")
  in_function = 0
}
{ print }
# No function has a parameter of an enum's type, so variables make abidw describe the enums.
match($0, /^enum [a-z_]+ \{/) { enums[++count] = $2 }
END { for (i = 1; i <= count; ++i) printf "enum %s numbers_%s;\n", enums[i], enums[i] }
