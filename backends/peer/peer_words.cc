#include "tutti/backends/peer/peer_words.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {

namespace {

constexpr size_t kBlockBytes = 4096;
static_assert(sizeof(PeerWords) <= kBlockBytes);

PeerWords* map_words(int file) {
  void* memory = ::mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw system_error("cannot map the shared flags of a rank", errno);
  return static_cast<PeerWords*>(memory);
}

}  // namespace

// The free blocks of this process. Each block is listed with the kind of device whose runtime has
// registered it.
struct OwnWords::Pool {
  std::mutex mutex;  // guards the following
  std::vector<std::pair<DeviceKind, std::unique_ptr<Block>>> free;
};

OwnWords::Pool& OwnWords::pool() {
  static auto* const all = new Pool;
  return *all;
}

OwnWords::OwnWords(DeviceRuntime& runtime) : kind_(runtime.kind()) {
  {
    const std::lock_guard lock(pool().mutex);
    auto& free = pool().free;
    const auto found =
        std::find_if(free.begin(), free.end(), [&](const auto& one) { return one.first == kind_; });
    if (found != free.end()) {
      block_ = std::move(found->second);
      free.erase(found);
      return;
    }
  }
  block_ = std::make_unique<Block>();
  block_->file = Descriptor(::memfd_create("tutti words", MFD_CLOEXEC));
  if (!block_->file || ::ftruncate(block_->file.get(), kBlockBytes) != 0)
    throw system_error("cannot make the shared flags of a rank", errno);
  block_->words = map_words(block_->file.get());
  uint64_t token = 0;
  if (::getrandom(&token, sizeof token, 0) != sizeof token)
    throw system_error("cannot draw a random number", errno);
  // the two upper bits are 0, so that the token fits a signed number
  store_word(block_->words->token, token >> 2);
  runtime.register_host(block_->words, kBlockBytes);
}

OwnWords::~OwnWords() {
  const std::lock_guard lock(pool().mutex);
  // A block that must not be reused is listed under DeviceKind::cpu, which no rank asks for.
  pool().free.emplace_back(is_kept_ ? DeviceKind::cpu : kind_, std::move(block_));
}

TheirWords::TheirWords(DeviceRuntime& runtime, int pid, int number, uint64_t token)
    : runtime_(runtime) {
  const Descriptor file(
      ::open(fmt::format("/proc/{}/fd/{}", pid, number).c_str(), O_RDWR | O_CLOEXEC));
  if (!file)
    throw Error(ErrorCode::unavailable,
                fmt::format("cannot open what process {} shares ({}); ranks of backend peer are "
                            "processes of one user and one PID namespace",
                            pid, std::strerror(errno)));
  words_ = map_words(file.get());
  is_mapped_ = true;
  try {
    if (load_word(words_->token) != token)
      throw Error(ErrorCode::unavailable,
                  fmt::format("process {} is not a rank of this job any more", pid));
    runtime.register_host(words_, kBlockBytes);
  } catch (...) {
    ::munmap(words_, kBlockBytes);
    throw;
  }
}

TheirWords::~TheirWords() {
  if (!is_mapped_) return;
  runtime_.forget_host(words_);
  ::munmap(words_, kBlockBytes);
}

}  // namespace tutti
