#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tutti::test {

/// How ranks that are processes of their own meet: by notes in a folder that the test makes and
/// removes. A note is there whole or not at all, and outlives the process that left it, as does
/// what is on its way through a network. Any thread.
class FakeNotes {
 public:
  /// `prefix`: of their names, which no one else's have.
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
