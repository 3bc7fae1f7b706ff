# The names of the tests that failed, a line each; beside junit.awk.
function case_over(name, result, reason) {
  if (result == "failed") print name
}
