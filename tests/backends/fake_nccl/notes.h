#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::test {

/// Ranks in different processes exchange data by notes in a folder that the test makes and removes.
/// A note appears completely or not at all. It outlives the process that wrote it, like data that
/// is on its way through a network. Any thread may use this class.
class FakeNotes {
 public:
  /// The names of all notes begin with `prefix`, which nobody else uses.
  FakeNotes(std::filesystem::path folder, std::string prefix);

  const std::filesystem::path& folder() const { return folder_; }
  const std::string& prefix() const { return prefix_; }

  void leave(const std::string& name, std::span<const std::byte> head,
             std::span<const std::byte> body = {}) const;
  std::optional<std::vector<std::byte>> read(const std::string& name) const;
  bool has(const std::string& name) const;
  void remove(const std::string& name) const;

 private:
  std::filesystem::path path_of(const std::string& name) const;

  const std::filesystem::path folder_;
  const std::string prefix_;
};

}  // namespace tutti::test
