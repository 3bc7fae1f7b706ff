#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::run {

/// One host of `--hosts a:2,b:2` and the number of ranks that it may run.
struct Host {
  std::string name;
  int slots = 1;
};

/// Parses "a:2,b,[fd00::1]:4". A host without a number has one slot. Throws
/// Error(invalid_argument).
std::vector<Host> parse_hosts(std::string_view text);

/// The host on which a rank runs, and its rank there.
struct Seat {
  int rank = 0;
  int host = 0;  // index into the list of hosts
  int local_rank = 0;
  int local_size = 1;
};

/// Fills one host after another. `ranks` = 0 means one rank per slot. Throws
/// Error(invalid_argument) if there are more ranks than slots.
std::vector<Seat> place_ranks(const std::vector<Host>& hosts, int ranks);

/// Returns the text as one word for a shell, quoted if necessary.
std::string shell_quote(std::string_view word);

}  // namespace tutti::run
