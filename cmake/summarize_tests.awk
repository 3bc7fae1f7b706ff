# Reads ctest's JUnit reports: names what failed and what was skipped and why, counts all, and
# fails if a test failed.
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
# A program that is missing is "notrun" too; only these say that the test itself declined.
/<skipped message="SKIP_/ { by_choice = 1 }
# GTEST_SKIP prints "file:line: Skipped" and, on the next line, its reason.
follows { reason = $0; follows = 0 }
/: Skipped$/ { follows = 1 }
/<\/testcase>/ {
  if (status == "run") ++passed
  else if (by_choice) { ++skipped; print "skipped: " name " (" reason ")" }
  else { ++failed; print "failed: " name }
}
END {
  printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
  exit failed > 0 || passed == 0
}
