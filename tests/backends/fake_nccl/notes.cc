#include "tests/backends/fake_nccl/notes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "tutti/base/error.h"

namespace tutti::test {

FakeNotes::FakeNotes(std::filesystem::path folder, std::string prefix)
    : folder_(std::move(folder)), prefix_(std::move(prefix)) {}

std::filesystem::path FakeNotes::path_of(const std::string& name) const {
  return folder_ / fmt::format("{}.{}", prefix_, name);
}

void FakeNotes::leave(const std::string& name, std::span<const std::byte> head,
                      std::span<const std::byte> body) const {
  const auto path = path_of(name);
  const std::filesystem::path draft = fmt::format("{}.draft{}", path.string(), ::getpid());
  std::ofstream file(draft, std::ios::binary);
  for (const auto part : {head, body})
    file.write(reinterpret_cast<const char*>(part.data()),
               static_cast<std::streamsize>(part.size()));
  file.close();
  if (!file) throw system_error(fmt::format("fake NCCL: cannot write {}", draft.string()), errno);
  std::filesystem::rename(draft, path);
}

std::optional<std::vector<std::byte>> FakeNotes::read(const std::string& name) const {
  std::ifstream file(path_of(name), std::ios::binary | std::ios::ate);
  if (!file) return {};
  std::vector<std::byte> note(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(note.data()), static_cast<std::streamsize>(note.size()));
  return note;
}

bool FakeNotes::has(const std::string& name) const {
  return ::access(path_of(name).c_str(), F_OK) == 0;
}

void FakeNotes::remove(const std::string& name) const {
  std::error_code is_gone;
  std::filesystem::remove(path_of(name), is_gone);
}

}  // namespace tutti::test
