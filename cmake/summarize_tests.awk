# Names what failed and what was skipped and why, counts all, and fails if a test failed.
function case_over(name, result, reason) {
  ++count[result]
  if (result == "skipped") print "skipped: " name " (" reason ")"
  if (result == "failed") print "failed: " name
}
END {
  printf "%d passed, %d failed, %d skipped\n", count["passed"], count["failed"], count["skipped"]
  exit count["failed"] > 0 || count["passed"] == 0
}
