#include "tutti/base/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

namespace tutti {

namespace {

constexpr size_t kPage = 4096;

}  // namespace

ForkGuard::ForkGuard() : mark_(nullptr), process_(::getpid()) {
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, kPage, MADV_WIPEONFORK) != 0) {
    ::munmap(page, kPage);
    return;
  }
  mark_ = static_cast<volatile int*>(page);
  *mark_ = 1;
}

ForkGuard::~ForkGuard() {
  if (mark_ != nullptr) ::munmap(const_cast<int*>(mark_), kPage);
}

bool ForkGuard::has_other_number() const { return ::getpid() != process_; }

}  // namespace tutti
