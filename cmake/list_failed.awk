# Prints the names of the failed tests, one per line. Needs junit.awk.
function case_over(name, result, reason) {
  if (result == "failed") print name
}
