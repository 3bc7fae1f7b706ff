#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

using Lines = std::vector<std::string>;

/// A file of a pure room that has a clock, a lock or a thread, and why.
struct ImpureFile {
  std::string_view path;
  std::string_view reason;
};
std::span<const ImpureFile> impure_files();

/// A class that has more fields than the rule allows, and how many it has. The list only shrinks:
/// a change that takes fields away writes the lower number, and strikes the line when the class
/// keeps the rule.
struct LargeClass {
  std::string_view path, name;
  int fields;
  std::string_view reason;
};
std::span<const LargeClass> large_classes();

/// The faults that the rules of the house find in a tree, a line each.
struct Report {
  int file_count = 0;
  Lines faults;
};
/// `listed`: the classes that may be large.
Report check_tree(const std::filesystem::path& root, std::span<const LargeClass> listed);

}  // namespace tutti
