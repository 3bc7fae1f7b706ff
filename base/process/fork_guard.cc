#include "tutti/base/process/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace tutti {

namespace {

// Returns null if the kernel does not support MADV_WIPEONFORK. The page is never unmapped, as
// guards may live until the process ends.
std::atomic<uint32_t>* make_mark() {
  constexpr size_t kPage = 4096;
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, kPage, MADV_WIPEONFORK) == 0) return new (page) std::atomic<uint32_t>(0);
  ::munmap(page, kPage);
  return nullptr;
}

// Returns a number that differs between a process and its forks. A fork finds the page blank and
// therefore takes the next number. Its `count` begins at the parent's value.
uint32_t number_of_process(std::atomic<uint32_t>& mark) {
  static std::atomic<uint32_t> count{0};
  uint32_t number = mark.load(std::memory_order_relaxed);
  if (number != 0) return number;
  const uint32_t next = count.fetch_add(1, std::memory_order_relaxed) + 1;
  // If another thread stored its number first, `number` is now that thread's.
  return mark.compare_exchange_strong(number, next) ? next : number;
}

}  // namespace

ForkGuard::ForkGuard() {
  static std::atomic<uint32_t>* const mark = make_mark();
  mark_ = mark;
  process_ = mark != nullptr ? number_of_process(*mark) : static_cast<uint32_t>(::getpid());
}

void keep_for_good(const void* object) {
  struct Kept {
    const void* object;
    const Kept* before;
  };
  static std::atomic<const Kept*> last{nullptr};
  auto* kept = new (std::nothrow) Kept{object, last.load()};
  while (kept != nullptr && !last.compare_exchange_weak(kept->before, kept)) {
  }
}

bool ForkGuard::has_other_number() const { return static_cast<uint32_t>(::getpid()) != process_; }

}  // namespace tutti
