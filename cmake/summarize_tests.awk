# Prints the tests that failed, were flaky or were skipped, with reasons, and counts all tests.
# Fails if a test failed or if none passed. In CI (in_ci) it also fails if a flaky test is not in
# tests/flaky.txt, or a skipped one is not in tests/skips.txt.
#
# Reads tests/flaky.txt and tests/skips.txt first, then the reports. NAME.again.xml follows NAME.xml
# and reports the tests that failed there and were run once more, alone.
FNR == 1 {
  list = FILENAME ~ /flaky[.]txt$/ ? "flaky" : FILENAME ~ /skips[.]txt$/ ? "skips" : ""
  again = FILENAME ~ /[.]again[.]xml$/
}
# A line is "names | reasons | why and since when". Names and reasons are regular expressions, and
# only skips have reasons. A bar with spaces around it separates the columns, so an expression may
# contain a bar without spaces.
list != "" && !/^(#|$)/ {
  split($0, column, / +[|] +/)
  ++lines[list]
  names[list, lines[list]] = column[1]
  reasons[list, lines[list]] = list == "skips" ? column[2] : ""
}
function listed(list, name, reason, i) {
  for (i = 1; i <= lines[list]; ++i)
    if (name ~ ("^(" names[list, i] ")$") && reason ~ reasons[list, i]) return 1
  return 0
}
function case_over(name, result, reason) {
  if (again) {
    if (result == "passed") {
      --count["failed"]
      ++count["flaky"]
      is_listed = listed("flaky", name, "")
      print "flaky: " name (is_listed ? " (listed)" : " (not in tests/flaky.txt)")
      unlisted += in_ci && !is_listed
    } else {
      print "failed twice: " name
    }
    return
  }
  ++count[result]
  if (result == "failed") print "failed: " name
  if (result != "skipped") return
  print "skipped: " name " (" reason ")"
  if (in_ci && !listed("skips", name, reason)) {
    print "  which tests/skips.txt does not list"
    ++unlisted
  }
}
END {
  printf "%d passed, %d failed, %d flaky, %d skipped\n", count["passed"], count["failed"],
    count["flaky"], count["skipped"]
  exit count["failed"] > 0 || count["passed"] + count["flaky"] == 0 || unlisted > 0
}
