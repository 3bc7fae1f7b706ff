#include "tutti/backends/shm/shm_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "tutti/backends/shm/place_table.h"
#include "tutti/base/error.h"
#include "tutti/base/process/fork_guard.h"

namespace tutti {

namespace {

constexpr size_t kPage = 4096;
constexpr int kMemorySeals = F_SEAL_SHRINK | F_SEAL_SEAL;

size_t whole_pages(size_t bytes) { return std::max(kPage, (bytes + kPage - 1) / kPage * kPage); }

/// A part of a shared file, mapped into this process.
class Mapping {
 public:
  Mapping(int file, uint64_t place, size_t bytes) : bytes_(bytes) {
    void* base =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(place));
    if (base == MAP_FAILED) throw system_error("cannot map shared memory", errno);
    data_ = static_cast<std::byte*>(base);
  }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_;
};

/// This rank's file and the regions in it. It may outlive the backend that made it.
class Heap {
 public:
  explicit Heap(SharedFile file) : file_(std::move(file)) {}

  using Span = PlaceTable::Span;

  Span add(size_t bytes) {
    const std::lock_guard lock(mutex_);
    // A discarded span has no pages any more, but the peers still have its addresses mapped. So a
    // new region of the same size uses its offsets again.
    const auto reuse = std::find_if(free_.begin(), free_.end(),
                                    [&](const Span& span) { return span.bytes == bytes; });
    if (reuse == free_.end()) return {file_.grow(bytes), bytes, nullptr};
    file_.restore(reuse->place, bytes);
    const Span span = *reuse;
    free_.erase(reuse);
    return span;
  }
  void placed(const Span& span) {
    const std::lock_guard lock(mutex_);
    places_.add(span);
  }
  void remove(uint64_t place) noexcept {
    // In a fork of the process the pages belong to the parent and its peers, so they are left
    // alone.
    if (fork_guard_.forked()) return;
    const std::lock_guard lock(mutex_);
    const auto span = places_.remove(place);
    if (!span) return;
    file_.discard(span->place, span->bytes);
    free_.push_back({span->place, span->bytes, nullptr});
  }
  uint64_t place_of(const std::byte* data, size_t bytes) const { return places_.find(data, bytes); }
  const SharedFile& file() const { return file_; }

 private:
  const ForkGuard fork_guard_;
  SharedFile file_;
  std::mutex mutex_;  // guards the members below; places_ is read without it
  PlaceTable places_;
  std::vector<Span> free_;
};

class ShmRegion final : public Region {
 public:
  ShmRegion(std::shared_ptr<Heap> heap, uint64_t place, Mapping mapping, bool is_for_good)
      : heap_(std::move(heap)),
        place_(place),
        mapping_(std::move(mapping)),
        is_for_good_(is_for_good) {}
  ~ShmRegion() override {
    if (!is_for_good_) heap_->remove(place_);
  }
  std::byte* data() const override { return mapping_.data(); }
  size_t bytes() const override { return mapping_.bytes(); }
  RegionHandle handle() const override {
    return {RegionHandle::Kind::file, heap_->file().descriptor(), place_, bytes()};
  }

 private:
  const std::shared_ptr<Heap> heap_;
  const uint64_t place_;
  const Mapping mapping_;
  const bool is_for_good_;
};

/// A peer's file. When an offset is beyond the last mapping, a larger mapping is made. The old
/// mappings are kept, so that their addresses stay valid.
class PeerFile {
 public:
  PeerFile(int rank, SharedFile file, size_t first_bytes) : rank_(rank), file_(std::move(file)) {
    mappings_.emplace_back(file_.descriptor(), 0, first_bytes);
  }
  std::byte* first() const { return mappings_.front().data(); }
  std::byte* at(uint64_t place, size_t bytes) {
    // This does not compute place + bytes, because that could wrap around for a forged offset.
    const auto lies_in = [&](size_t size) { return bytes <= size && place <= size - bytes; };
    if (!lies_in(mappings_.back().bytes())) {
      const size_t now = file_.bytes();
      if (!lies_in(now))
        throw Error(ErrorCode::corrupt_data,
                    fmt::format("rank {} named {} bytes at {} of its shared memory, which has {}",
                                rank_, bytes, place, now))
            .with_rank(rank_);
      mappings_.emplace_back(file_.descriptor(), 0, now);
    }
    return mappings_.back().data() + place;
  }

 private:
  const int rank_;
  const SharedFile file_;
  std::vector<Mapping> mappings_;
};

class ShmMemory final : public SharedMemory {
 public:
  ShmMemory(int rank, int size, SharedFile own,
            std::span<const std::unique_ptr<ShmEnds>* const> ends)
      : heap_(std::make_shared<Heap>(std::move(own))),
        first_(heap_->file().descriptor(), 0, whole_pages(shared_block_bytes())),
        rank_(rank) {
    peers_.resize(static_cast<size_t>(size));
    bells_.resize(static_cast<size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      auto& end = **ends[static_cast<size_t>(peer)];
      const auto at = static_cast<size_t>(peer);
      peers_[at] = std::make_unique<PeerFile>(
          peer, SharedFile::adopt(std::move(end.memory), first_.bytes()), first_.bytes());
      Descriptor bell(::fcntl(end.peer.descriptor(), F_DUPFD_CLOEXEC, 0));
      if (!bell) throw system_error("cannot duplicate an eventfd", errno);
      bells_[at] = std::make_unique<Bell>(std::move(bell));
    }
  }

  std::unique_ptr<Region> allocate(size_t bytes) override {
    const auto span = heap_->add(whole_pages(bytes));
    Mapping mapping(heap_->file().descriptor(), span.place, span.bytes);
    heap_->placed({span.place, span.bytes, mapping.data()});
    return std::make_unique<ShmRegion>(heap_, span.place, std::move(mapping), false);
  }
  std::unique_ptr<Region> allocate_for_good(size_t bytes) override {
    const auto span = heap_->add(whole_pages(bytes));
    return std::make_unique<ShmRegion>(
        heap_, span.place, Mapping(heap_->file().descriptor(), span.place, span.bytes), true);
  }
  uint64_t place_of(const std::byte* data, size_t bytes) const override {
    return heap_->place_of(data, bytes);
  }
  std::byte* at(int rank, uint64_t place, size_t bytes) override {
    return peers_[static_cast<size_t>(rank)]->at(place, bytes);
  }
  std::byte* first(int rank) override {
    return rank == rank_ ? first_.data() : peers_[static_cast<size_t>(rank)]->first();
  }
  void ring(int rank) override { bells_[static_cast<size_t>(rank)]->ring(); }

 private:
  const std::shared_ptr<Heap> heap_;
  const Mapping first_;
  const int rank_;
  std::vector<std::unique_ptr<PeerFile>> peers_;  // by rank; null for this rank
  std::vector<std::unique_ptr<Bell>> bells_;
};

}  // namespace

SharedFile SharedFile::create(size_t bytes) {
  SharedFile file(Descriptor(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!file.file_) throw system_error("cannot make shared memory (memfd)", errno);
  if (::fcntl(file.descriptor(), F_ADD_SEALS, kMemorySeals) != 0)
    throw system_error("cannot seal shared memory", errno);
  file.grow(whole_pages(bytes));
  return file;
}

SharedFile SharedFile::adopt(Descriptor descriptor, size_t bytes) {
  SharedFile file(std::move(descriptor));
  struct stat status {};
  const bool is_ours = ::fstat(file.descriptor(), &status) == 0 && S_ISREG(status.st_mode) &&
                       status.st_size >= static_cast<off_t>(bytes) &&
                       (::fcntl(file.descriptor(), F_GET_SEALS) & kMemorySeals) == kMemorySeals;
  if (!is_ours) throw Error(ErrorCode::corrupt_data, "what it sent is not memory to share");
  return file;
}

size_t SharedFile::bytes() const {
  struct stat status {};
  if (::fstat(descriptor(), &status) != 0) throw system_error("cannot see shared memory", errno);
  return static_cast<size_t>(status.st_size);
}

uint64_t SharedFile::grow(size_t bytes) {
  const auto place = static_cast<uint64_t>(this->bytes());
  restore(place, bytes);
  return place;
}

void SharedFile::restore(uint64_t place, size_t bytes) {
  allocate_pages(descriptor(), place, bytes);
}

void SharedFile::discard(uint64_t place, size_t bytes) noexcept {
  // Errors are ignored, because nothing depends on freeing the pages. Freed pages read as zeros.
  (void)::fallocate(descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(place), static_cast<off_t>(bytes));
}

std::unique_ptr<SharedMemory> make_shm_memory(
    int rank, int size, SharedFile own, std::span<const std::unique_ptr<ShmEnds>* const> ends) {
  return std::make_unique<ShmMemory>(rank, size, std::move(own), ends);
}

}  // namespace tutti
