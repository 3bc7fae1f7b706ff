#include <fmt/format.h>

#include <thread>

#include "tutti/base/error.h"
#include "tutti/core/launch/exchange.h"

namespace tutti {

namespace {

constexpr size_t kLongestText = 4096;

}  // namespace

PrivateFile::PrivateFile(const std::string& folder, const std::string& name, std::string_view text)
    : folder_(folder), name_(name) {
  folder_.put(name_, text);
}

PrivateFile::~PrivateFile() { folder_.remove(name_); }

std::string read_private_file(const std::string& folder, const std::string& name,
                              Deadline deadline) {
  const PrivateFolder place(folder);
  while (true) {
    if (auto text = place.read(name, kLongestText)) return std::move(*text);
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("rank 0 left no address in {}/{} before the deadline; if ranks do "
                              "not share that folder, use srun --mpi=pmi2 or set TUTTI_SECRET",
                              folder, name));
    // This host gets no notification of a file that another host writes, so this polls.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace tutti
