#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

using Lines = std::vector<std::string>;

/// A file of a pure room (one without time, locks and threads) that has one of them, and the
/// reason.
struct ImpureFile {
  std::string_view path;
  std::string_view reason;
};
std::span<const ImpureFile> impure_files();

/// A class that has more fields than the rule allows, and its number of fields. The list only
/// shrinks: a change that removes fields lowers the number here, and removes the entry when the
/// class keeps the rule.
struct LargeClass {
  std::string_view path, name;
  int fields;
  std::string_view reason;
};
std::span<const LargeClass> large_classes();

/// The faults that check_tree() finds, one line each.
struct Report {
  int file_count = 0;
  Lines faults;
};
/// Checks all rules on the tree under `root`. The classes in `listed` may be large.
Report check_tree(const std::filesystem::path& root, std::span<const LargeClass> listed);

}  // namespace tutti
