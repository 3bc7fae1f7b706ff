# Prints a table of the backends and their tests: how many tests passed, or that one failed, was
# skipped, or is impossible (n/a). The reasons follow below the table. The names of the tests give
# the rows and columns:
#   <Backend>/BackendConformance.<case>/<variant>     a row for each case
#   <Suite>.<Case>/threads | processes | hosts        the API over the backend chosen by itself
#   Backends/WholeSuiteOver.<Mode>/<backend>          the API over the others
#   Faults.<Fault>[Over<Backend>], CutLink...         ranks that die, stop or are cut off
# A backend with two words has two levels: ShmUcx and shm_ucx are shm+ucx.
function backend_of(words) {
  gsub(/_/, "+", words)
  while (match(words, /[a-z0-9][A-Z]/))
    words = substr(words, 1, RSTART) "+" substr(words, RSTART + 1)
  return tolower(words)
}
function add(row, group, backend, result, reason) {
  if (!(backend in known)) {
    known[backend] = 1
    columns[++column_count] = backend
  }
  if (!((group, row) in known_rows)) {
    known_rows[group, row] = 1
    rows[group, ++row_count[group]] = row
  }
  ++cells[row, backend, result]
  if (result == "skipped") why[row, backend] = reason
}
function case_over(name, result, reason, parts, words) {
  split(name, parts, /[\/.]/)
  if (name ~ /^[A-Za-z]+\/BackendConformance\./)
    add(parts[3], 1, backend_of(parts[1]), result, reason)
  else if (name ~ /^Backends\/WholeSuiteOver\./)
    add("API suite: " (parts[3] == "TwoHosts" ? "hosts" : tolower(parts[3])), 2,
        backend_of(parts[4]), result, reason)
  else if (name ~ /^[A-Za-z]+\.[A-Za-z0-9]+\/(threads|processes|hosts)$/)
    add("API suite: " parts[3], 2,
        parts[3] == "threads" ? "memory" : parts[3] == "processes" ? "shm" : "shm+tcp", result,
        reason)
  else if (name ~ /^Faults\.(Killed|Stopped)/) {
    words = name ~ /Over/ ? name : "OverShm"
    sub(/.*Over/, "", words)
    add("faults: " (name ~ /Killed/ ? "killed" : "stopped"), 3, backend_of(words), result, reason)
  } else if (name ~ /CutLink\./)
    add("faults: cut link", 3, backend_of(parts[4]), result, reason)
}
# Returns why this test of the backend is impossible, or nothing.
function impossible(row, backend) {
  if (backend == "memory" && row ~ /processes|hosts|faults/)
    return "its ranks are threads of one process"
  if (backend == "shm" && row ~ /hosts|cut link/) return "its ranks share one host"
  if (backend == "shm" && row ~ /threads/) return "threads of one process use memory"
  if (backend == "choice" && row ~ /faults/ || backend == "example" && row ~ /^(API|faults)/)
    return "made of backends, or of channels, that are tested so"
}
function cell(row, backend, reason) {
  if (cells[row, backend, "failed"]) return "FAILED"
  if (cells[row, backend, "passed"]) return cells[row, backend, "passed"]
  if (cells[row, backend, "skipped"]) return "skipped " note(why[row, backend])
  reason = impossible(row, backend)
  return reason ? "n/a " note(reason) : "-"
}
function note(reason) {
  if (!(reason in notes)) {
    notes[reason] = ++note_count
    note_text[note_count] = reason
  }
  return notes[reason]
}
END {
  if (column_count == 0) exit
  printf "tests passed %-27s", ""
  for (c = 1; c <= column_count; ++c) printf " %-9s", columns[c]
  print ""
  for (group = 1; group <= 3; ++group)
    for (r = 1; r <= row_count[group]; ++r) {
      row = rows[group, r]
      printf "%-40s", row
      for (c = 1; c <= column_count; ++c) printf " %-9s", cell(row, columns[c])
      print ""
    }
  for (n = 1; n <= note_count; ++n) print "  " n ": " note_text[n]
}
