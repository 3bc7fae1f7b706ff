#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// The number of hosts in a list, and the name of the first host.
struct HostList {
  std::string first;
  size_t count = 0;
};

/// Parsers of Slurm's compressed lists. Both return nothing for invalid text, and for a list with
/// more than 65,536 entries.

/// Parses a list of hosts: "n[1-3,07],login" means n1 n2 n3 n07 login. A name with several brackets
/// stands for all combinations. Leading zeros set a width: "n[08-10]" means n08 n09 n10. A short
/// text may name 65,536 hosts. So the hosts are only counted, and only the first name is built.
std::optional<HostList> read_host_list(std::string_view text);

/// Parses the number of tasks on each node: "4,1(x2)" means 4 1 1.
std::optional<std::vector<int>> expand_task_counts(std::string_view text);

}  // namespace tutti
