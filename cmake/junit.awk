# Reads ctest's JUnit reports and calls case_over(name, result, reason) for every test. The result
# is passed, failed or skipped. Another program must define case_over (awk -f a -f b).
/<testcase / {
  name = $0
  sub(/.*<testcase name="/, "", name)
  sub(/".*/, "", name)
  status = $0
  sub(/.* status="/, "", status)
  sub(/".*/, "", status)
  reason = "see its output"
  by_choice = follows = 0
}
# A test whose program is missing is "notrun" too. Only these messages mean that the test skipped
# itself.
/<skipped message="SKIP_/ { by_choice = 1 }
# GTEST_SKIP prints "file:line: Skipped" and, on the next line, its reason.
follows { reason = $0; follows = 0 }
/: Skipped$/ { follows = 1 }
/<\/testcase>/ {
  case_over(name, status == "run" ? "passed" : by_choice ? "skipped" : "failed", reason)
}
