#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace tutti::test {

/// A new temporary folder, deleted with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = (std::filesystem::temp_directory_path() / "tutti_test.XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no scratch folder");
  }
  ~ScratchFolder() {
    std::error_code status;
    std::filesystem::remove_all(path_, status);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string inside(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tutti::test
