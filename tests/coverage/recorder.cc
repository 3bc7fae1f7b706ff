// A build with TUTTI_COVERAGE calls this at the start of each basic block. When a process reaches a
// block for the first time, the block is written to the file that TUTTI_COVERAGE_LOG names, as
// "<object> <offset within it>". It is written immediately, so that ranks count too that are killed
// or end by _exit, for which gcov writes nothing. Any thread may call this, and signal handlers
// too.

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// An open hash table of the blocks that this process has reached. The whole library has about
// 200,000 blocks.
constexpr size_t kPlaces = size_t{1} << 20;
std::atomic<uintptr_t> seen[kPlaces];

// Returns false if this process has reached the block before.
bool is_new(uintptr_t block) {
  for (size_t place = (block * 0x9E3779B97F4A7C15u) >> 44;; place = (place + 1) % kPlaces) {
    auto there = seen[place].load(std::memory_order_relaxed);
    if (there == block) return false;
    if (there != 0) continue;
    if (seen[place].compare_exchange_strong(there, block, std::memory_order_relaxed)) return true;
    if (there == block) return false;
  }
}

struct Found {
  uintptr_t block;
  char line[512];
  int length = 0;
};

// The path of the program itself, which has no name among the loaded objects.
const char* own_path() {
  static char path[400];
  static const auto length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? path : "";
}

// Called for each loaded object until one contains the block.
int write_line(dl_phdr_info* object, size_t, void* data) {
  auto& found = *static_cast<Found*>(data);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    const auto begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type != PT_LOAD || found.block < begin || found.block >= begin + segment.p_memsz)
      continue;
    const char* name = *object->dlpi_name != 0 ? object->dlpi_name : own_path();
    found.length = std::snprintf(found.line, sizeof found.line, "%s %zx\n", name,
                                 size_t{found.block - object->dlpi_addr});
    return 1;
  }
  return 0;
}

int log_file() {
  static const int file = [] {
    const char* path = std::getenv("TUTTI_COVERAGE_LOG");
    return path == nullptr
               ? -1
               : ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
  }();
  return file;
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  const auto block = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  if (!is_new(block)) return;
  const int kept = errno;
  if (const int file = log_file(); file >= 0) {
    Found found{block, {}};
    ::dl_iterate_phdr(write_line, &found);
    // If a rank has no descriptors left, or a test closed this one, nothing more is recorded.
    if (found.length > 0 && ::write(file, found.line, size_t(found.length)) < 0) errno = 0;
  }
  errno = kept;
}
