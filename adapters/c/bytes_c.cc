// The C interface's calls that send byte strings of any length to all ranks.

#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"

struct tutti_bytes {
  std::vector<std::vector<std::byte>> parts;
};

namespace tutti::c {

namespace {

std::span<const std::byte> given(const void* bytes, size_t size) {
  if (size > 0) need(bytes, "bytes");
  return {static_cast<const std::byte*>(bytes), size};
}

// Runs `body` and puts its result into a new handle.
template <class Body>
int bring(tutti_comm_t comm, const char* name, tutti_bytes_t* result, Body&& body) {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(name, "name");
    need(result, "result");
    *result = new tutti_bytes{body(communicator)};
  });
}

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_broadcast_bytes(tutti_comm_t comm, const char* name, const void* bytes, size_t size,
                          int root, tutti_bytes_t* result) {
  return bring(comm, name, result, [&](Communicator& communicator) {
    std::vector<std::vector<std::byte>> parts;
    parts.push_back(communicator.broadcast_made_bytes(
        name,
        [&] {
          const auto own = given(bytes, size);
          return std::vector(own.begin(), own.end());
        },
        root));
    return parts;
  });
}

int tutti_allgather_bytes(tutti_comm_t comm, const char* name, const void* bytes, size_t size,
                          tutti_bytes_t* result) {
  return bring(comm, name, result, [&](Communicator& communicator) {
    return communicator.allgather_bytes(name, given(bytes, size));
  });
}

size_t tutti_bytes_parts(tutti_bytes_t bytes) { return bytes == nullptr ? 0 : bytes->parts.size(); }

const void* tutti_bytes_part(tutti_bytes_t bytes, size_t part, size_t* size) {
  static const std::byte nothing{};  // an empty part has an address too
  const void* found = nullptr;
  if (size != nullptr) *size = 0;
  guarded([&] {
    need(bytes, "bytes");
    if (part >= bytes->parts.size())
      throw refused(fmt::format("there is no part {} (there are {})", part, bytes->parts.size()));
    const auto& there = bytes->parts[part];
    if (size != nullptr) *size = there.size();
    found = there.empty() ? &nothing : there.data();
  });
  return found;
}

void tutti_bytes_release(tutti_bytes_t bytes) { delete bytes; }
