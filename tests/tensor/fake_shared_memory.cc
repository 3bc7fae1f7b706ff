#include "tests/tensor/fake_shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti {

namespace {

struct Inside {
  int pid = 0;
  int file = -1;
  uint64_t bytes = 0;
  uint64_t inode = 0;  // the process may have another file under this descriptor by now
};
static_assert(sizeof(Inside) <= sizeof(DeviceHandle));

uint64_t inode_of(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

}  // namespace

FakeSharedMemory::~FakeSharedMemory() {
  for (const auto& [memory, own] : own_) ::munmap(memory, own.bytes);
  for (const auto& [memory, mapped] : mapped_) ::munmap(memory, mapped.bytes);
}

void* FakeSharedMemory::allocate(size_t bytes, Device device, DeviceHandle& handle) {
  constexpr size_t kPage = 4096;
  const size_t size = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(own_.begin(), own_.end(), [&](const auto& one) {
    return one.second.is_free && one.second.bytes == size;
  });
  if (found == own_.end()) {
    Descriptor file(::memfd_create("fake device", MFD_CLOEXEC));
    void* memory = MAP_FAILED;
    if (size >= bytes && file && ::ftruncate(file.get(), static_cast<off_t>(size)) == 0)
      memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED)
      throw Error(ErrorCode::out_of_memory,
                  fmt::format("cannot allocate {} bytes on {}", bytes, to_string(device)));
    found = own_.emplace(memory, Own{std::move(file), size, false}).first;
  }
  found->second.is_free = false;
  std::memset(found->first, 0xa5, size);
  const Inside inside{static_cast<int>(::getpid()), found->second.file.get(), size,
                      inode_of(found->second.file.get())};
  handle = {};
  std::memcpy(handle.data(), &inside, sizeof inside);
  return found->first;
}

void FakeSharedMemory::give_back(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  own_.at(memory).is_free = true;
}

void* FakeSharedMemory::map(const DeviceHandle& handle) {
  const std::lock_guard lock(mutex_);
  for (auto& [memory, mapped] : mapped_)
    if (mapped.handle == handle) {
      ++mapped.uses;
      return memory;
    }
  Inside inside;
  std::memcpy(&inside, handle.data(), sizeof inside);
  if (inside.pid == ::getpid())
    throw Error(ErrorCode::unavailable, "the fake device: this process' own memory is not mapped");
  const Descriptor file(
      ::open(fmt::format("/proc/{}/fd/{}", inside.pid, inside.file).c_str(), O_RDWR | O_CLOEXEC));
  if (!file || inode_of(file.get()) != inside.inode)
    throw Error(ErrorCode::unavailable,
                fmt::format("the fake device: process {} has no such memory", inside.pid));
  void* memory = ::mmap(nullptr, inside.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw system_error("mmap", errno);
  mapped_.emplace(memory, Mapped{handle, static_cast<size_t>(inside.bytes), 1});
  return memory;
}

void FakeSharedMemory::unmap(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(memory);
  TUTTI_CHECK(found != mapped_.end());
  if (--found->second.uses > 0) return;
  ::munmap(memory, found->second.bytes);
  mapped_.erase(found);
}

}  // namespace tutti
