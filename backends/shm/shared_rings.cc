#include "tutti/backends/shm/shared_rings.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <new>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace {

// The controls of both rings come first, on a page of their own.
constexpr size_t kControlBytes = 4096;
static_assert(2 * sizeof(RingControl) <= kControlBytes);

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t total_bytes(size_t ring_bytes) { return kControlBytes + 2 * ring_bytes; }

}  // namespace

// A page that cannot be allocated later would raise SIGBUS in the middle of a copy.
void allocate_pages(int memory, uint64_t begin, size_t bytes) {
  if (::fallocate(memory, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    if (error != ENOSPC && error != ENOMEM)
      throw system_error("cannot allocate shared memory", error);
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot get {} bytes of shared memory; free memory, raise the memory "
                            "limit, or use backend tcp",
                            bytes));
  }
}

bool SharedRings::is_valid_size(uint64_t ring_bytes) {
  return std::has_single_bit(ring_bytes) && ring_bytes >= (4 << 10) && ring_bytes <= (64 << 20);
}

SharedRings::SharedRings(Descriptor memory, size_t ring_bytes)
    : memory_(std::move(memory)), ring_bytes_(ring_bytes) {
  void* base = ::mmap(nullptr, total_bytes(ring_bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                      memory_.get(), 0);
  if (base == MAP_FAILED) throw system_error("cannot map shared memory", errno);
  base_ = static_cast<std::byte*>(base);
}

SharedRings::SharedRings(SharedRings&& other) noexcept
    : memory_(std::move(other.memory_)),
      ring_bytes_(other.ring_bytes_),
      base_(std::exchange(other.base_, nullptr)) {}

SharedRings::~SharedRings() {
  if (base_) ::munmap(base_, total_bytes(ring_bytes_));
}

SharedRings SharedRings::create(size_t ring_bytes) {
  Descriptor memory(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) throw system_error("cannot make shared memory (memfd)", errno);
  allocate_pages(memory.get(), 0, total_bytes(ring_bytes));
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)
    throw system_error("cannot seal shared memory", errno);
  SharedRings rings(std::move(memory), ring_bytes);
  for (const int side : {0, 1}) new (&rings.control(side)) RingControl;
  return rings;
}

SharedRings SharedRings::adopt(Descriptor memory, size_t ring_bytes) {
  struct stat status {};
  const bool is_ours = ::fstat(memory.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                       status.st_size == static_cast<off_t>(total_bytes(ring_bytes)) &&
                       (::fcntl(memory.get(), F_GET_SEALS) & kSeals) == kSeals;
  if (!is_ours) throw Error(ErrorCode::corrupt_data, "what it sent is not a shared ring buffer");
  return {std::move(memory), ring_bytes};
}

RingControl& SharedRings::control(int side) const {
  return *std::launder(
      reinterpret_cast<RingControl*>(base_ + static_cast<size_t>(side) * sizeof(RingControl)));
}

std::span<std::byte> SharedRings::ring(int side) const {
  return {base_ + kControlBytes + static_cast<size_t>(side) * ring_bytes_, ring_bytes_};
}

}  // namespace tutti
