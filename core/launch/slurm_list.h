#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Of a list of hosts: those whose names it stands for.
struct HostList {
  std::string first;
  size_t count = 0;
};

/// Slurm's compressed lists. Both give nothing for text that is no such list, and for one that
/// would grow beyond 65,536 entries.

/// "n[1-3,07],login" is n1 n2 n3 n07 login. Several brackets in one name multiply; leading zeros
/// are a width: "n[08-10]" is n08 n09 n10. A few words may stand for 65,536 names, so they are
/// counted, and only the first is made.
std::optional<HostList> read_host_list(std::string_view text);

/// "4,1(x2)" is 4 1 1: how many tasks each node has.
std::optional<std::vector<int>> expand_task_counts(std::string_view text);

}  // namespace tutti
